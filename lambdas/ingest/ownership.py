"""Assigns an update to its tenant, agent and conversation, by the account that received it."""

from typing import NamedTuple

from lambdas.ingest.platforms.base import Incoming, Update
from message_buffer.aliases.aliases import Aliases
from message_buffer.messages.changes import Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId, escape_part
from message_buffer.rules.rules_and_defaults import Owner


class Belongs(NamedTuple):
    conversation: ConversationId
    agent: str | None


def belongs(conversation: ConversationId, owner: Owner | None, *, agent: str | None = None) -> Belongs:
    """Return the conversation under its owner's tenant, and the agent that serves it.

    If the message names a tenant or an agent, ignore that of the account. The default tenant counts as no tenant.
    """
    if owner is None or conversation.tenant not in (DEFAULT_TENANT, owner.tenant):
        return Belongs(conversation, agent)
    return Belongs(conversation._replace(tenant=owner.tenant), agent or owner.agent)


def update_belongs(
    update: Update, owner: Owner | None, *, aliases: Aliases | None = None, learn: bool = False
) -> Belongs:
    """Return an update's conversation and agent.

    If the owner has `per_author`, each author in a group has a conversation of their own. `aliases` finds the
    conversation of an author to whom the platform gives several ids, and can `learn` new ones.
    """
    agent = update.agent if isinstance(update, Incoming | Edited) else None
    found = belongs(update.conversation, owner, agent=agent)
    author = _author_in_group(update)
    if author is None or owner is None or not owner.per_author:
        is_of_author = isinstance(update, Reacted) or not update.group
        by_author = _of_author(found.conversation, update, aliases, learn=learn) if is_of_author else found.conversation
        return found._replace(conversation=by_author)
    author = _of_author(found.conversation._replace(user=author), update, aliases, learn=learn).user
    # The author is escaped, so the last slash separates group and author.
    user = f"{found.conversation.user}/{escape_part(author)}"
    return found._replace(conversation=found.conversation._replace(user=user))


def _of_author(named: ConversationId, update: Update, aliases: Aliases | None, *, learn: bool) -> ConversationId:
    return aliases.conversation_of(named, update.author_ids, learn=learn) if aliases and update.author_ids else named


def _author_in_group(update: Update) -> str | None:
    # Anyone in the group may react to a message, so a reaction goes to the conversation of the whole group.
    if isinstance(update, Reacted) or not update.group:
        return None
    return update.message.author if isinstance(update, Incoming | Edited) else update.author
