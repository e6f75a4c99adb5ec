"""To whom an update belongs, by the account through which it came."""

from typing import NamedTuple

from lambdas.ingest.platforms.base import Incoming, Update
from message_buffer.messages.changes import Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId, escape_part
from message_buffer.rules.layers import Owner


class Belongs(NamedTuple):
    conversation: ConversationId
    agent: str | None


def belongs(conversation: ConversationId, owner: Owner | None, *, agent: str | None = None) -> Belongs:
    """What is told with a message goes before what is known of its account; the default tenant is as good as none."""
    if owner is None or conversation.tenant not in (DEFAULT_TENANT, owner.tenant):
        return Belongs(conversation, agent)
    return Belongs(conversation._replace(tenant=owner.tenant), agent or owner.agent)


def update_belongs(update: Update, owner: Owner | None) -> Belongs:
    agent = update.agent if isinstance(update, Incoming | Edited) else None
    found = belongs(update.conversation, owner, agent=agent)
    author = _author_in_group(update)
    if owner is None or not owner.per_author or author is None:
        return found
    # The last slash divides: no author's name has one then.
    user = f"{found.conversation.user}/{escape_part(author)}"
    return found._replace(conversation=found.conversation._replace(user=user))


def _author_in_group(update: Update) -> str | None:
    # Who reacts need not be who wrote: a reaction belongs to the group.
    if isinstance(update, Reacted) or not update.group:
        return None
    return update.message.author if isinstance(update, Incoming | Edited) else update.author
