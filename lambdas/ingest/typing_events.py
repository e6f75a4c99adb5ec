"""Lets buffers wait a little longer while their author is typing, but not beyond the maximum wait of the rules."""

from collections.abc import Iterable

from lambdas.ingest.ownership import belongs
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.rules.rule_book import RuleBook


def extend_waits(typing: Iterable[ConversationId], book: RuleBook, lane: Lane) -> dict[str, dict[str, int | None]]:
    """Extend the waits. Return each conversation's new due time, or null if no message waits in it.

    Raise StoreError, or SendFailed if the rules were never read.
    """
    conversations: dict[str, dict[str, int | None]] = {}
    for named in typing:
        conversation, agent = belongs(named, book.owner_of(named.platform, named.account))
        timing = book.for_conversation(conversation, agent).rules.timing
        extend_ms = max(timing.typing_ms, timing.silence_ms)
        name = str(conversation)
        outcome = lane.extend_wait(name, extend_ms=extend_ms, max_wait_ms=timing.max_wait_ms)
        conversations[name] = {"dueAt": None if isinstance(outcome, o.BufferEmpty) else outcome.due_at_ms}
    return conversations
