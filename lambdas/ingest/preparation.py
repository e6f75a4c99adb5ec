"""Gives each update its owner, its rules and its wire form, before any update is stored.

So ingest can still refuse the whole body because of one wrong update.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal, NamedTuple

from lambdas.ingest.platforms.base import BusinessReply, Incoming, Intake, Update
from message_buffer.aliases.aliases import Aliases
from message_buffer.errors import InvalidInput
from message_buffer.limits import MAX_MESSAGE_ID_BYTES
from message_buffer.messages.changes import Change, Edited, Failed, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId, encode_conversation, escape_part
from message_buffer.messages.message import Message, encode
from message_buffer.rules.queues import queue_of
from message_buffer.rules.quota import Charge
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_and_defaults import Owner, Rules
from message_buffer.rules.timing import Timing

# Attachments that come without a caption.
WITHOUT_CAPTION = {"contact", "location", "sticker"}
# Types of messages that the author chose and did not type: a button, a list's row, a quick reply, a flow's answer, an
# order.
PRESSED = {"button", "interactive", "order"}


class Belongs(NamedTuple):
    conversation: ConversationId
    agent: str | None


class PreparedMessage(NamedTuple):
    """A message in the form in which a lane stores it, or a control word, which is carried out instead."""

    conversation: ConversationId
    id: str
    payload: bytes
    timing: Timing
    control_word: Literal["stop", "flush"] | None
    charge: Charge
    agent: str | None = None
    learn_author: Callable[[], Belongs] | None = None
    """Stores a new author's aliases, and returns the conversation. None if the author has no aliases to store."""


class PreparedChange(NamedTuple):
    """A report about a message that was sent earlier: an edit, a deletion, a reaction or a failed delivery."""

    change: Change | Failed
    charge: Charge
    agent: str | None
    payload: bytes = b""
    """The new wire form, if the message was edited."""
    timing: Timing | None = None
    """How long the buffer waits after the edit. None if the message has no attachments, because only a message with
    attachments may wait for a caption or transcript."""


class PreparedReply(NamedTuple):
    """A message of a human agent, because of which the conversation is put on hold."""

    conversation: ConversationId
    agent: str | None
    id: str
    at_ms: int
    hold_ms: int
    charge: Charge


class Prepared(NamedTuple):
    messages: list[PreparedMessage]
    changes: list[PreparedChange]
    human_replies: list[PreparedReply]

    def items(self) -> Iterator[tuple[ConversationId, Charge, bool]]:
        """Yield each item's conversation and charge, and whether it is a message to buffer."""
        for message in self.messages:
            yield message.conversation, message.charge, message.control_word is None
        for change in self.changes:
            yield change.change.conversation, change.charge, False
        for reply in self.human_replies:
            yield reply.conversation, reply.charge, False


def prepare(intake: Intake, book: RuleBook, *, aliases: Aliases | None = None, skip_invalid: bool) -> Prepared:
    """Return the intake's messages and changes, ready to be stored.

    If an update cannot be stored, raise InvalidInput. With `skip_invalid`, leave it out instead, and count it in the
    intake as `unreadable`. Raise SendFailed if the rules were never read.
    """
    prepared = Prepared([], [], [])
    for update in intake.updates:
        try:
            _prepare_one(update, intake, book, aliases, prepared=prepared)
        except InvalidInput:
            if not skip_invalid:
                raise
            intake.ignored["unreadable"] += 1
    prepared.human_replies.extend(
        filter(None, (_prepare_reply(reply, book, aliases) for reply in intake.human_replies))
    )
    return prepared


def _prepare_one(
    update: Update, intake: Intake, book: RuleBook, aliases: Aliases | None, *, prepared: Prepared
) -> None:
    owner = book.owner_of(update.conversation.platform, update.conversation.account)
    named = update.agent if isinstance(update, Incoming | Edited) else None
    if intake.only_agents_of_rules and named not in (None, owner and owner.agent):
        raise InvalidInput("agent may not be named here: the rules say which agent serves the account.")
    conversation, agent = update_belongs(update, owner, aliases=aliases)
    encode_conversation(str(conversation))
    charge = book.charge_for(conversation)
    match update:
        case Incoming(_, message):
            rules = book.for_conversation(conversation, agent).rules
            # A caption belongs to its file. A button's title is the bot's text, and the bot waits for this answer.
            is_typed = not message.attachments and message.type not in PRESSED
            word = rules.control_words.control_word_in(message.text) if is_typed else None
            learn = None
            if aliases and update.author_ids and aliases.is_new(conversation, update.author_ids):
                learn = partial(update_belongs, update, owner, aliases=aliases, learn=True)
            queue = queue_of(book.queues, conversation, agent=agent, rule=rules.queue)
            payload = _payload_of(message, rules, agent=agent, queue=queue, traceparent=intake.traceparent)
            timing = timing_of(message, rules)
            prepared.messages.append(
                PreparedMessage(conversation, message.id, payload, timing, word, charge, agent, learn)
            )
        case Edited(_, message):
            rules = book.for_conversation(conversation, agent).rules
            # The edit may bring the caption or transcript that the buffer waits for, and so end that wait.
            new_timing = timing_of(message, rules) if message.attachments else None
            queue = queue_of(book.queues, conversation, agent=agent, rule=rules.queue)
            change = update._replace(conversation=conversation)
            payload = _payload_of(message, rules, agent=agent, queue=queue, traceparent=intake.traceparent)
            prepared.changes.append(PreparedChange(change, charge, agent, payload, new_timing))
        case _:
            texts = (update.message_id, *(getattr(update, name, None) for name in ("author", "emoji")))
            # The event of the change could otherwise be larger than the bus accepts.
            if any(len(each) > MAX_MESSAGE_ID_BYTES for each in texts if each):
                raise InvalidInput(f"an id, an author and a reaction have at most {MAX_MESSAGE_ID_BYTES} characters")
            if isinstance(update, Failed):
                # Failures have a quota of their own. Otherwise many failures would use up that of stop words.
                charge = charge.under("failed")
            prepared.changes.append(PreparedChange(update._replace(conversation=conversation), charge, agent))


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
    # Anyone in the group may react to a message, so a reaction goes to the conversation of the whole group. A failed
    # delivery goes there, too.
    in_group, group = False, conversation.user
    if not isinstance(update, Reacted | Failed) and update.group:
        in_group = True
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


def _payload_of(message: Message, rules: Rules, **route: str | None) -> bytes:
    """Encode the message with its agent, queue and trace, and the steps after silence. Rules of the bus can route its
    batch by the agent."""
    found = {**route, "idle_after_ms": rules.idle_after_ms or None}
    known = {name: value for name, value in found.items() if value is not None}
    return encode(message.model_copy(update=known) if known else message)


def _prepare_reply(reply: BusinessReply, book: RuleBook, aliases: Aliases | None) -> PreparedReply | None:
    """Return the prepared reply, or None if it does not put its conversation on hold.

    The rules decide that. They also say whether people type in the app that sent the reply.
    """
    found = reply_belongs(reply, book, aliases)
    if found is None:
        return None
    conversation, agent = found
    rules = book.for_conversation(conversation, agent).rules
    if rules.on_human_reply is None or not (reply.app is None or rules.is_inbox(reply.app)):
        return None
    hold_ms, charge = rules.on_human_reply.hold_ms, book.charge_for(conversation)
    return PreparedReply(conversation, agent, reply.id, reply.at_ms, hold_ms, charge)


def noted_replies(
    intake: Intake, book: RuleBook, aliases: Aliases | None, *, notes_all: bool
) -> Iterator[tuple[str, int, bool]]:
    """Yield (conversation, time, whether the rules have `idleAfterMs`) for each reply, oldest first. Unless
    `notes_all`, skip replies without that rule, and do not look up their aliases."""
    for reply in sorted([*intake.sent, *intake.human_replies], key=lambda each: each.at_ms):
        found = reply_belongs(reply, book, None)
        if found and (notes_all or book.for_conversation(*found).rules.idle_after_ms):
            found = reply_belongs(reply, book, aliases) or found
            yield str(found.conversation), reply.at_ms, bool(book.for_conversation(*found).rules.idle_after_ms)


def reply_belongs(reply: BusinessReply, book: RuleBook, aliases: Aliases | None) -> Belongs | None:
    """Return the conversation and the agent of a message of the business, or None if its id is not valid."""
    owner = book.owner_of(reply.conversation.platform, reply.conversation.account)
    conversation, agent = belongs(reply.conversation, owner)
    try:
        encode_conversation(str(conversation))
        if aliases and reply.customer_ids:
            # Do this before reading the rules, because the conversation may have rules of its own.
            conversation = aliases.conversation_of(conversation, reply.customer_ids, learn=False)
    except InvalidInput:
        return None
    return Belongs(conversation, agent)


def timing_of(message: Message, rules: Rules) -> Timing:
    """Return how long a buffer waits after this message by these rules."""
    files = [each for each in message.attachments if each.type not in WITHOUT_CAPTION]
    return rules.timing_of(
        message.text,
        message.received_at,
        is_media=bool(files) and not message.text,
        is_pending=any(each.pending for each in message.attachments),
        in_album=message.group_id is not None,
        is_pressed=message.type in PRESSED,
    )
