"""Lets an author's new number or id lead to the old conversation, before the messages of the same webhook are read."""

from collections.abc import Sequence
from contextlib import suppress

from lambdas.ingest.ownership import belongs
from lambdas.limits import MAX_IDENTITY_CHANGES_IN_A_WEBHOOK
from message_buffer.aliases.aliases import Aliases
from message_buffer.errors import InvalidInput
from message_buffer.messages.author_ids import IdentityChange
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.rules.rule_book import RuleBook


def learn_changes(changes: Sequence[IdentityChange], book: RuleBook, aliases: Aliases) -> None:
    """Record the changes. Raises SendFailed if a change is not recorded, so that the platform sends the webhook again.

    The platform reports a change only once. Without it, the author's conversation would stay split.
    """
    for change in changes[:MAX_IDENTITY_CHANGES_IN_A_WEBHOOK]:
        name = change.previous.user_id or change.previous.number or ""
        named = ConversationId(DEFAULT_TENANT, change.platform, change.account, name)
        conversation, _ = belongs(named, book.owner_of(change.platform, change.account))
        with suppress(InvalidInput):  # without a valid name there is no conversation that could move
            aliases.move(conversation, change)
