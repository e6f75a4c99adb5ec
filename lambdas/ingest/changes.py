"""Edits and deletes messages that still wait. Publishes every other edit or deletion, and every reaction."""

from collections.abc import Iterable

from lambdas.ingest.outbox import Outbox
from lambdas.ingest.preparation import PreparedChange
from lambdas.ingest.report import Done
from message_buffer.events.conversation_events import AMENDED, amended_event
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane
from message_buffer.messages.changes import Deleted, Edited, Reacted


class Changes:
    def __init__(self, lane: Lane, bus: EventBus) -> None:
        self._lane = lane
        self._bus = bus

    def apply_all(self, changes: Iterable[PreparedChange], done: Done) -> None:
        """Make or publish the changes and count them in `done`. Raise StoreError or SendFailed."""
        outbox = Outbox(self._bus, AMENDED)
        try:
            with outbox:
                for change in changes:
                    event = self._apply(change)
                    if event is None:
                        done.changed += 1
                    else:
                        outbox.add(event)
        finally:
            done.amended += outbox.published

    def _apply(self, prepared: PreparedChange) -> str | None:
        """Return the event to publish, or None if the message was changed in its buffer."""
        conversation = str(prepared.change.conversation)
        found: o.MessageWaiting | o.MessageFrozen | o.MessageAbsent
        match prepared.change:
            case Edited(_, message):
                edited = self._lane.edit_message(
                    conversation, message.id, payload=prepared.payload, timing=prepared.timing
                )
                if isinstance(edited, o.MessageEdited):
                    return None
                found = edited
            case Deleted(_, message_id):
                deleted = self._lane.delete_message(conversation, message_id)
                if isinstance(deleted, o.MessageDeleted):
                    return None
                found = deleted
            case Reacted(_, message_id):
                found = self._lane.find_message(conversation, message_id)
        return amended_event(prepared.change, batch_id=found.batch_id, lane=found.lane, agent=prepared.agent)
