"""Carries out control words: a stop word empties the buffer, a flush word makes it due now. Neither is buffered."""

from lambdas.ingest.outbox import Outbox
from lambdas.ingest.preparation import PreparedMessage
from lambdas.ingest.report import Done
from message_buffer.clock import Clock
from message_buffer.events.conversation_events import CANCELLED, cancelled_event
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane


class ControlWordActions:
    def __init__(self, lane: Lane, bus: EventBus, clock: Clock) -> None:
        self._lane = lane
        self._bus = bus
        self._clock = clock

    def outbox(self) -> Outbox:
        """Return the outbox for the events of a webhook's stop words."""
        return Outbox(self._bus, CANCELLED)

    def stop(self, message: PreparedMessage, done: Done, outbox: Outbox) -> None:
        """Drop the conversation's messages and publish the cancel. Raise StoreError or SendFailed.

        A stop word that is delivered again publishes the cancel again, because the first publish may have failed.
        """
        name = str(message.conversation)
        outcome = self._lane.cancel_buffer(name, cancel_id=message.id)
        event = cancelled_event(
            message.conversation,
            outcome,
            reason="stop_word",
            at_ms=self._clock(),
            message_id=message.id,
            agent=message.agent,
        )
        outbox.add(event)
        done.conversations[name] = {"dueAt": None, "count": 0, "rule": None}

    def flush(self, message: PreparedMessage, done: Done) -> None:
        """Make the buffer due now. Raise StoreError.

        A buffer on hold keeps waiting, because a human agent has taken over, and an author cannot end a hold.
        """
        timing = message.timing._replace(flush_reason="flush", silence_rule="flushWords")
        outcome = self._lane.retime_buffer(str(message.conversation), timing=timing)
        retimed = outcome if isinstance(outcome, o.BufferRetimed) else None
        if retimed:
            done.note_wait(message.conversation, retimed)
        if retimed and retimed.due_at_ms <= self._clock():
            done.flushed += 1
        else:
            done.ignored["flush"] += 1
