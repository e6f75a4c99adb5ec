"""Turns a batch into its event, or into its dead letter.

All of their content comes from the batch, except the time of the emission in an event.

`docs/schema/messages.batch.ready.json` is the event's schema.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from message_buffer.errors import InvalidInput
from message_buffer.events.dead_letters import DeadLetter, ObjectReference
from message_buffer.events.message_fields import message_fields
from message_buffer.json_object import Json, to_json
from message_buffer.lanes.outcomes import BatchTaken, lane_of
from message_buffer.lanes.valkey.keys import batch_prefix
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.messages.reply_window import reply_until_ms
from message_buffer.messages.wire_form import decode_fields, sent_at_ms

DETAIL_TYPE = "messages.batch.ready"
EVENT_VERSION = 1
LETTER_VERSION = 1
# The bucket's folders.
BATCHES, DEAD_LETTERS = "batches", "dead-letters"
# Matches the beginning of an object's key. The group is the time at which the batch's last message arrived.
_LAST_ARRIVAL = re.compile(r"^[a-z-]+/[0-9a-f]{24}/(\d+)-")


class Content(NamedTuple):
    """The part of an event that depends on the messages. It is the same in every attempt to emit the batch."""

    messages: list[Json]
    text: str
    agent: str | None
    """The agent of the newest message that has an agent."""
    last_sent_at_ms: int

    @property
    def wire(self) -> bytes:
        """Return the messages and their text as JSON. This part of the event may be too large for the bus."""
        return to_json({"messages": self.messages, "text": self.text})


def content_of(payloads: list[bytes]) -> Content:
    stored = [decode_fields(payload) for payload in payloads]
    messages = [message_fields(each) for each in stored]
    agents = [agent for each in stored if isinstance(agent := each.get("agent"), str)]
    return Content(
        messages,
        "\n".join(message["text"] for message in messages if message["text"]),
        agents[-1] if agents else None,
        max(map(sent_at_ms, messages), default=0),
    )


def event_of(conversation: str, taken: BatchTaken, content: Content, *, emitted_at_ms: int) -> Json:
    return _envelope(conversation, taken, content, emitted_at_ms) | {
        "messages": content.messages,
        "text": content.text,
    }


def event_by_reference(
    conversation: str, taken: BatchTaken, content: Content, *, emitted_at_ms: int, reference: ObjectReference
) -> Json:
    """Return the event with a reference in place of its messages and their text."""
    return _envelope(conversation, taken, content, emitted_at_ms) | {
        "messages": [],
        "text": None,
        "messagesRef": reference,
    }


def _envelope(conversation: str, taken: BatchTaken, content: Content, emitted_at_ms: int) -> Json:
    name = parse_conversation_id(conversation)
    reply_until = reply_until_ms(name, content.last_sent_at_ms)
    return {
        "version": EVENT_VERSION,
        "batchId": taken.batch_id,
        "conversationId": conversation,
        "tenant": name.tenant,
        **({} if content.agent is None else {"agent": content.agent}),
        "generation": taken.generation,
        "attempt": taken.attempt,
        "messageCount": len(taken.payloads),
        "bufferedAt": emitted_at_ms,
        "flushReason": taken.flush_reason,
        "lane": taken.lane,
        **({} if reply_until is None else {"replyUntil": reply_until}),
        "metadata": {
            "platform": content.messages[0]["platform"],
            "firstMessageAt": taken.first_at_ms,
            "lastMessageAt": taken.last_at_ms,
            # Measure up to the due time, not up to the emission, so that the wait is the same in every attempt.
            "waitMs": max(taken.due_at_ms - taken.first_at_ms, 0),
            "rule": taken.rule,
            "appliedWaitMs": max(taken.applied_wait_ms, 0),
        },
    }


def object_key(conversation: str, taken: BatchTaken) -> str:
    """Return a key that is the same for every attempt, so that a retry overwrites the object."""
    return _key(BATCHES, conversation, taken)


def _key(folder: str, conversation: str, taken: BatchTaken) -> str:
    # `forget` finds a conversation's objects by the batch prefix. It keeps an object whose last message arrived after
    # all messages that it erases.
    return f"{folder}/{batch_prefix(conversation)}/{taken.last_at_ms}-{taken.batch_id}.json"


def is_newer(key: str, at_ms: int) -> bool:
    """Return whether the object's last message arrived after `at_ms`, or False if the key contains no time."""
    found = _LAST_ARRIVAL.search(key)
    return found is not None and int(found[1]) > at_ms


# -- dead letters ----------------------------------------------------------------------------------


def letter_of(conversation: str, taken: BatchTaken, *, reason: str) -> DeadLetter:
    """Return the batch's dead letter, still without the messages."""
    return {
        "version": LETTER_VERSION,
        "reason": reason,
        "batchId": taken.batch_id,
        "conversationId": conversation,
        "attempt": taken.attempt,
        "generation": taken.generation,
        "firstAt": taken.first_at_ms,
        "lastAt": taken.last_at_ms,
        "dueAt": taken.due_at_ms,
        "flushReason": taken.flush_reason,
        "rule": taken.rule,
        "appliedWaitMs": taken.applied_wait_ms,
        "lane": taken.lane,
    }


def letter_payloads(taken: BatchTaken) -> list[str | Json]:
    return [_readable(payload) for payload in taken.payloads]


def _readable(payload: bytes) -> str | Json:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(payload).decode()}


def letter_key(conversation: str, taken: BatchTaken) -> str:
    return _key(DEAD_LETTERS, conversation, taken)


def taken_from_letter(letter: Mapping[str, Any], payloads: list[Any]) -> tuple[str, BatchTaken]:
    """Return a dead letter's conversation and batch. Raise InvalidInput if the body is not a dead letter."""
    try:
        return letter["conversationId"], BatchTaken(
            batch_id=letter["batchId"],
            attempt=letter["attempt"] + 1,
            generation=letter["generation"],
            first_at_ms=letter["firstAt"],
            last_at_ms=letter["lastAt"],
            due_at_ms=letter["dueAt"],
            flush_reason=letter["flushReason"],
            rule=letter["rule"],
            applied_wait_ms=letter["appliedWaitMs"],
            payloads=[
                payload.encode() if isinstance(payload, str) else b64decode(payload["base64"]) for payload in payloads
            ],
            lane=lane_of(letter["lane"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("this is not the body of a dead letter") from error
