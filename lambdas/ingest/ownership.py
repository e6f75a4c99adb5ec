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
    conversation, agent = belongs(update.conversation, owner, agent=agent)
    # Anyone in the group may react to a message, so a reaction goes to the conversation of the whole group.
    in_group, group = not isinstance(update, Reacted) and update.group, conversation.user
    if in_group:
        author = update.message.author if isinstance(update, Incoming | Edited) else update.author
        if author is None or owner is None or not owner.per_author:
            return Belongs(conversation, agent)
        conversation = conversation._replace(user=author)
    if aliases and update.author_ids:
        conversation = aliases.conversation_of(conversation, update.author_ids, learn=learn)
    if in_group:
        # The author is escaped, so the last slash separates group and author.
        conversation = conversation._replace(user=f"{group}/{escape_part(conversation.user)}")
    return Belongs(conversation, agent)
