"""Charges a webhook to the quotas of its accounts and tenants before any of it is done."""

from collections.abc import Iterator

from lambdas.ingest.preparation import Prepared
from lambdas.ingest.refusals import Refusals
from lambdas.ingest.report import Done
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.rules.quota import Charge


class _Work:
    """The items of a webhook that are charged together."""

    def __init__(self) -> None:
        self.conversations: dict[ConversationId, None] = {}
        self.messages = 0
        self.others = 0
        """Control words, changes and human replies."""


def charge_all(lane: Lane, prepared: Prepared, done: Done, *, comes_again: bool) -> Refusals:
    """Charge the webhook to the quotas, and return the refusals by quotas. Raise StoreError or SendFailed.

    If the platform would not send the webhook again (not `comes_again`), refuse nothing.
    """
    refusals = Refusals()
    for charge, work in _work_by_charge(prepared).items():
        first = str(next(iter(work.conversations)))
        outcome = lane.charge(first, charge, messages=work.messages, others=work.others)
        if isinstance(outcome, o.Charged):
            continue
        for conversation in work.conversations:
            done.note_limited(conversation)
            if comes_again:
                refusals.add(conversation, outcome)
        if not comes_again:
            done.over_quota += work.messages + work.others
    return refusals


def _work_by_charge(prepared: Prepared) -> dict[Charge, _Work]:
    found: dict[Charge, _Work] = {}
    for conversation, charge, is_message in _items(prepared):
        if charge is not None:
            work = found.setdefault(charge, _Work())
            work.conversations[conversation] = None
            work.messages += is_message
            work.others += not is_message
    return found


def _items(prepared: Prepared) -> Iterator[tuple[ConversationId, Charge | None, bool]]:
    """Yield each item's conversation and charge, and whether it is a message to buffer."""
    for message in prepared.messages:
        yield message.conversation, message.charge, message.control_word is None
    for change in prepared.changes:
        yield change.change.conversation, change.charge, False
    for reply in prepared.human_replies:
        yield reply.conversation, reply.charge, False
