"""Edits and deletes messages that still wait. Publishes every other edit or deletion, every reaction, and every failed
delivery."""

from collections.abc import Iterable

from lambdas.ingest.outbox import Outbox
from lambdas.ingest.preparation import PreparedChange
from lambdas.ingest.report import Done
from message_buffer.events.conversation_events import AMENDED, REPLY_FAILED, amended_event, failed_event
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane
from message_buffer.messages.changes import Change, Deleted, Edited, Failed


def apply_changes(lane: Lane, bus: EventBus, changes: Iterable[PreparedChange], done: Done) -> None:
    """Make or publish the changes and count them in `done`. Raise StoreError or SendFailed."""
    with (
        Outbox(bus, AMENDED, lambda sent: done.count("amended", sent)) as amendments,
        Outbox(bus, REPLY_FAILED, lambda sent: done.count("failed", sent)) as failures,
    ):
        for each in changes:
            change = each.change
            if isinstance(change, Failed):
                failures.add(failed_event(change, agent=each.agent))
                continue
            found = _apply(lane, change, each)
            if isinstance(found, o.MessageEdited | o.MessageDeleted):
                done.count("changed")
            else:
                amendments.add(amended_event(change, batch_id=found.batch_id, lane=found.lane, agent=each.agent))


def _apply(
    lane: Lane, change: Change, prepared: PreparedChange
) -> o.MessageEdited | o.MessageDeleted | o.MessageWaiting | o.MessageFrozen | o.MessageAbsent:
    conversation = str(change.conversation)
    match change:
        case Edited(_, message):
            return lane.edit_message(conversation, message.id, payload=prepared.payload, timing=prepared.timing)
        case Deleted(_, message_id):
            return lane.delete_message(conversation, message_id)
        case reaction:
            return lane.find_message(conversation, reaction.message_id)
