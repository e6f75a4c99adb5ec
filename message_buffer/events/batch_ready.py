"""Turns a batch into its event, or into its dead letter.

`docs/schema/messages.batch.ready.json` is the event's schema.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from message_buffer.errors import InvalidInput, MalformedMessage
from message_buffer.json_object import Json, to_json
from message_buffer.lanes.holds import shown_end
from message_buffer.lanes.outcomes import BatchTaken, lane_of
from message_buffer.lanes.valkey.keys import batch_prefix
from message_buffer.messages.conversation_id import parse_conversation_id, reply_until_ms
from message_buffer.messages.wire_form import decode_fields, sent_at_ms

DETAIL_TYPE = "messages.batch.ready"
EVENT_VERSION = 1
LETTER_VERSION = 1
# The bucket's folders.
BATCHES, DEAD_LETTERS = "batches", "dead-letters"
# The fields that every message has in an event, and their values if the wire form leaves them out.
_ALWAYS: Json = {"id": None, "text": "", "type": "text", "timestamp": None, "attachments": []}
_REQUIRED = {"id": str, "text": str, "receivedAt": int, "platform": str}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the `Z` is added to the text
# The fields of a dead letter that come from its batch, and their names in BatchTaken.
_OF_THE_BATCH = {
    "batchId": "batch_id",
    "attempt": "attempt",
    "generation": "generation",
    "firstAt": "first_at_ms",
    "lastAt": "last_at_ms",
    "previousAt": "previous_at_ms",
    "dueAt": "due_at_ms",
    "flushReason": "flush_reason",
    "rule": "rule",
    "appliedWaitMs": "applied_wait_ms",
    "lane": "lane",
}


class Content(NamedTuple):
    """The part of an event that depends on the messages. It is the same in every attempt to emit the batch."""

    messages: list[Json]
    text: str
    agent: str | None
    """The agent of the newest message that has an agent."""
    queue: str | None
    """The queue that ingest stored in the newest message."""
    last_sent_at_ms: int
    traceparent: str | None = None
    """The trace of the first message that has one."""
    idle_after_ms: list[int] = []  # noqa: RUF012 - nobody changes a content
    """The steps of the rule `idleAfterMs` that ingest stored in the newest message."""

    @property
    def wire(self) -> bytes:
        """Return the messages and their text as JSON. This part of the event may be too large for the bus."""
        return to_json({"messages": self.messages, "text": self.text})


def content_of(payloads: list[bytes]) -> Content:
    stored = [decode_fields(payload) for payload in payloads]
    messages = [message_fields(each) for each in stored]
    agents = [agent for each in stored if isinstance(agent := each.get("agent"), str)]
    queue = stored[-1].get("queue")
    traces = (trace for each in stored if isinstance(trace := each.get("traceparent"), str))
    return Content(
        messages,
        "\n".join(message["text"] for message in messages if message["text"]),
        agents[-1] if agents else None,
        queue if isinstance(queue, str) else None,
        max(map(sent_at_ms, messages), default=0),
        next(traces, None),
        stored[-1].get("idleAfterMs") or [],
    )


def message_fields(wire: Json) -> Json:
    """Return a message as events contain it, from the fields of its wire form. Leave out fields that have no value.

    Raise MalformedMessage.
    """
    message = _ALWAYS | {name: value for name, value in wire.items() if value is not None}
    for name, kind in _REQUIRED.items():
        if type(message.get(name)) is not kind:
            raise MalformedMessage(f"the message's {name} is missing or has the wrong type")
    for name in ("agent", "queue", "traceparent", "idleAfterMs"):  # fields of the batch, or of nobody
        message.pop(name, None)
    sent_at = _EPOCH + timedelta(milliseconds=sent_at_ms(message))
    message["timestamp"] = sent_at.isoformat(timespec="milliseconds") + "Z"
    return message


def event_of(
    conversation: str,
    taken: BatchTaken,
    content: Content,
    *,
    emitted_at_ms: int,
    queue: str | None = None,
    reference: Json | None = None,
) -> Json:
    """Return the event. It contains the reference, if there is one, in place of the messages and their text."""
    name = parse_conversation_id(conversation)
    reply_until = reply_until_ms(name, content.last_sent_at_ms)
    return {
        "version": EVENT_VERSION,
        "batchId": taken.batch_id,
        "conversationId": conversation,
        "tenant": name.tenant,
        **({} if content.agent is None else {"agent": content.agent}),
        **({} if queue is None else {"queue": queue}),
        **({"handoff": {"cause": mark.cause, "until": shown_end(mark.until_ms)}} if (mark := taken.handoff) else {}),
        "generation": taken.generation,
        "attempt": taken.attempt,
        "messageCount": len(taken.payloads),
        "bufferedAt": emitted_at_ms,
        "flushReason": taken.flush_reason,
        "lane": taken.lane,
        **({} if reply_until is None else {"replyUntil": reply_until}),
        **({} if content.traceparent is None else {"traceparent": content.traceparent}),
        "metadata": {
            "platform": content.messages[0]["platform"],
            "firstMessageAt": taken.first_at_ms,
            "lastMessageAt": taken.last_at_ms,
            "previousMessageAt": taken.previous_at_ms,
            # Measure up to the due time, not up to the emission, so that the wait is the same in every attempt.
            "waitMs": max(taken.due_at_ms - taken.first_at_ms, 0),
            "rule": taken.rule,
            "appliedWaitMs": max(taken.applied_wait_ms, 0),
        },
        "messages": [] if reference else content.messages,
        "text": None if reference else content.text,
        **({"messagesRef": reference} if reference else {}),
    }


def object_key(folder: str, conversation: str, taken: BatchTaken) -> str:
    """Return a key that is the same for every attempt, so that a retry overwrites the object."""
    # `forget` finds a conversation's objects by the batch prefix. It keeps an object whose last message arrived after
    # all messages that it erases.
    return f"{folder}/{batch_prefix(conversation)}/{taken.last_at_ms}-{taken.batch_id}.json"


def is_newer(key: str, at_ms: int) -> bool:
    """Return whether the object's last message arrived after `at_ms`, or False if the key contains no time."""
    last_at = key.rpartition("/")[2].partition("-")[0]
    return last_at.isdecimal() and int(last_at) > at_ms


# -- dead letters ----------------------------------------------------------------------------------


def letter_of(conversation: str, taken: BatchTaken, *, reason: str) -> Json:
    """Return the batch's dead letter, still without the messages."""
    of_the_batch = {name: getattr(taken, field) for name, field in _OF_THE_BATCH.items()}
    return {"version": LETTER_VERSION, "reason": reason, "conversationId": conversation, **of_the_batch}


def letter_payloads(taken: BatchTaken) -> list[str | Json]:
    return [_readable(payload) for payload in taken.payloads]


def _readable(payload: bytes) -> str | Json:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(payload).decode()}


def taken_from_letter(letter: Mapping[str, Any], payloads: list[Any]) -> tuple[str, BatchTaken]:
    """Return a dead letter's conversation and batch. Raise InvalidInput if the body is not a dead letter."""
    try:
        fields = {field: letter[name] for name, field in _OF_THE_BATCH.items()}
        fields |= {"attempt": letter["attempt"] + 1, "lane": lane_of(letter["lane"])}
        messages = [each.encode() if isinstance(each, str) else b64decode(each["base64"]) for each in payloads]
        return letter["conversationId"], BatchTaken(**fields, payloads=messages)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("this is not the body of a dead letter") from error
