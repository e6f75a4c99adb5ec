"""Edits and deletes messages that still wait, and publishes the changes of all others, and every reaction."""

from collections.abc import Iterable
from typing import Any

from lambdas.ingest.amendments import Amendments, event_of
from lambdas.ingest.platforms.base import Deleted, Edited, Reacted
from lambdas.ingest.preparation import PreparedChange
from lambdas.ingest.report import Done
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.fallback import Lane
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.rules.timing import Timing


class Changes:
    def __init__(self, lane: Lane, starter: ProcessorStarter, amendments: Amendments) -> None:
        self._lane = lane
        self._starter = starter
        self._amendments = amendments

    def apply_all(self, changes: Iterable[PreparedChange], done: Done) -> None:
        """Make or publish the changes and count them in `done`. Raises StoreError or SendFailed."""
        events = []
        for change in changes:
            event = self._apply(change)
            if event is None:
                done.changed += 1
            else:
                events.append(event)
        self._amendments.send(events)
        done.amended += len(events)

    def _apply(self, change: PreparedChange) -> dict[str, Any] | None:
        """Return the event to publish, or None if the message was changed in its buffer."""
        conversation, batch_id = str(change.amendment.conversation), None
        match change.amendment:
            case Edited(_, message):
                edited = self._lane.edit_message(conversation, message.id, payload=change.payload)
                if isinstance(edited, o.Edited):
                    # Only the last message decides how long the buffer waits, and it may need a transcript of its own.
                    if change.timing is not None and edited.behind == 0:
                        self._retime(conversation, change.timing)
                    return None
                batch_id = edited.batch_id
            case Deleted(_, message_id):
                deleted = self._lane.delete_message(conversation, message_id)
                if isinstance(deleted, o.Deleted):
                    return None
                batch_id = deleted.batch_id
            case Reacted():
                found = self._lane.find_message(conversation, change.amendment.message_id)
                if not isinstance(found, o.Waiting):
                    batch_id = found.batch_id
        return event_of(change.amendment, batch_id=batch_id)

    def _retime(self, conversation: str, timing: Timing) -> None:
        retimed = self._lane.retime_buffer(conversation, timing=timing)
        if isinstance(retimed, o.Retimed) and retimed.start_processor:
            self._starter.start(self._lane.shard_of(conversation))
