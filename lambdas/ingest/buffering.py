"""Stores a webhook's messages in the lane, in their order.

A control word is carried out instead: a stop word empties the buffer, and a flush word makes it due now.
"""

from collections.abc import Iterable

from lambdas.ingest.charging import Refusals
from lambdas.ingest.outbox import Outbox
from lambdas.ingest.preparation import PreparedMessage
from lambdas.ingest.report import Done
from message_buffer.clock import Clock
from message_buffer.events.conversation_events import CANCELLED, cancelled_event
from message_buffer.events.event_bus import EventBus
from message_buffer.events.idle import IdleTable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.holds import NO_END_MS
from message_buffer.lanes.lane import Lane
from message_buffer.messages.wire_form import decode_fields, sent_at_ms
from message_buffer.rules.quota import Charge


class Buffering:
    def __init__(self, lane: Lane, bus: EventBus, takeovers: IdleTable, clock: Clock) -> None:
        self._lane = lane
        self._bus = bus
        self._takeovers = takeovers
        self._clock = clock

    def buffer_all(
        self, messages: Iterable[PreparedMessage], done: Done, refusals: Refusals, *, comes_again: bool
    ) -> None:
        """Buffer the messages and count them in `done`. Raise StoreError or SendFailed at the first failure.

        Add each message that a quota or a full conversation refuses to `refusals`. If the platform does not send
        refused messages again (`comes_again` is False), buffer messages over a quota too.
        """
        with Outbox(self._bus, CANCELLED, lambda sent: done.count("stopped", sent)) as outbox:
            for message in messages:
                if reason := refusals.of_message(message):
                    done.note_refused(message.conversation, reason)
                    if not message.control_word:
                        refusals.messages.append((message, reason))
                elif message.control_word == "stop":
                    outbox.add(self._stop(message, done))
                elif message.control_word == "flush":
                    self._flush(message, done)
                else:
                    self._buffer(message, done, refusals, comes_again=comes_again)

    def _stop(self, message: PreparedMessage, done: Done) -> str:
        """Drop the conversation's messages, and return the event of the cancel.

        A stop word that is delivered again publishes the cancel again, because the first publish may have failed.
        """
        name = str(message.conversation)
        outcome = self._lane.cancel_buffer(name, cancel_id=message.id)
        is_repeat = isinstance(outcome, o.AlreadyCancelled)  # and must not end the steps after a newer message
        self._takeovers.end_steps(name, upto_ms=sent_at_ms(decode_fields(message.payload)) if is_repeat else NO_END_MS)
        done.conversations[name] = {"dueAt": None, "count": 0, "rule": None}
        return cancelled_event(
            message.conversation,
            outcome,
            reason="stop_word",
            at_ms=self._clock(),
            message_id=message.id,
            agent=message.agent,
        )

    def _flush(self, message: PreparedMessage, done: Done) -> None:
        """Make the buffer due now.

        A buffer on hold keeps waiting, because a human agent has taken over, and an author cannot end a hold.
        """
        timing = message.timing._replace(flush_reason="flush", silence_rule="flushWords")
        outcome = self._lane.retime_buffer(str(message.conversation), timing=timing)
        if isinstance(outcome, o.BufferRetimed):
            done.note_wait(message.conversation, outcome)
        if isinstance(outcome, o.BufferRetimed) and outcome.due_at_ms <= self._clock():
            done.count("flushed")
        else:
            self._takeovers.end_steps(str(message.conversation), upto_ms=sent_at_ms(decode_fields(message.payload)))
            done.ignored["flush"] += 1

    def _buffer(self, message: PreparedMessage, done: Done, refusals: Refusals, *, comes_again: bool) -> None:
        if message.learn_author:
            # Another instance may have stored this author's aliases after our look-up. So use the conversation that is
            # stored now.
            message = message._replace(conversation=message.learn_author().conversation)
        outcome = self._store(message, charge=message.charge)
        if isinstance(outcome, o.MessageRefused):
            done.note_limited(message.conversation)
            if outcome.reason != "waiting" and not comes_again:
                outcome = self._store(message, charge=None)
                done.count("taken", isinstance(outcome, o.MessageBuffered))
        if isinstance(outcome, o.MessageRefused):
            done.note_refused(message.conversation, outcome.reason)
            refusals.add_message(message, outcome)
            return
        if isinstance(outcome, o.MessageBuffered):
            done.count("accepted")
        else:
            done.count("duplicates")
        done.note_wait(message.conversation, outcome)

    def _store(
        self, message: PreparedMessage, *, charge: Charge | None
    ) -> o.MessageBuffered | o.MessageDuplicate | o.MessageRefused:
        return self._lane.buffer_message(
            str(message.conversation), message.id, payload=message.payload, timing=message.timing, charge=charge
        )
