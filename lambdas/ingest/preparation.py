"""Gives each update its owner, its rules and its wire form, before any update is stored.

So ingest can still refuse the whole body because of one wrong update.
"""

from typing import Literal, NamedTuple

from lambdas.ingest.ownership import update_belongs
from lambdas.ingest.platforms.base import Incoming, Intake, Update
from lambdas.limits import MAX_CHANGES_IN_A_WEBHOOK, MAX_CONVERSATIONS_IN_A_WEBHOOK
from message_buffer.errors import InvalidInput
from message_buffer.lanes.valkey.keys import encode_conversation
from message_buffer.messages.changes import Change, Edited
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.messages.message import Message, encode
from message_buffer.rules.layers import Rules
from message_buffer.rules.quota import Charge
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.timing import Timing

# Attachments that come without a caption.
WITHOUT_CAPTION = {"contact", "location", "sticker"}
# Types of messages that come from a button: also a list's row, a quick reply, a flow's answer, a basket.
PRESSED = {"button", "interactive", "order"}


class TooManyUpdates(InvalidInput):
    """The webhook contains more than any platform sends. The exception's text is for the sender."""


class PreparedMessage(NamedTuple):
    """A message in the form in which a lane stores it, or a control word, which is carried out instead."""

    conversation: ConversationId
    id: str
    payload: bytes
    timing: Timing
    control_word: Literal["stop", "flush"] | None
    charge: Charge | None = None


class PreparedChange(NamedTuple):
    """An edit or a deletion of a message that was sent earlier, or a reaction to one."""

    change: Change
    payload: bytes = b""
    """The new wire form, if the message was edited."""
    timing: Timing | None = None
    """How long the buffer waits after the edit, if the message has attachments, because the edit may bring a caption or
    transcript. Otherwise None."""


class Prepared(NamedTuple):
    messages: list[PreparedMessage]
    changes: list[PreparedChange]


def prepare(intake: Intake, book: RuleBook, *, leave_out: bool) -> Prepared:
    """Return the intake's messages and changes, ready to be stored.

    If an update cannot be stored, raise InvalidInput. With `leave_out`, leave it out instead, and count it in the
    intake as `unreadable`. Raise SendFailed if the rules were never read, and TooManyUpdates if there are too many.
    """
    prepared = Prepared([], [])
    for update in intake.updates:
        try:
            _prepare_one(update, book, prepared)
        except InvalidInput:
            if not leave_out:
                raise
            intake.ignored["unreadable"] += 1
    _require_few(prepared)
    return prepared


def _require_few(prepared: Prepared) -> None:
    if len(prepared.changes) > MAX_CHANGES_IN_A_WEBHOOK:
        raise TooManyUpdates(f"A webhook has at most {MAX_CHANGES_IN_A_WEBHOOK} edits, deletions and reactions.")
    updates = (*prepared.messages, *(each.change for each in prepared.changes))
    if len({each.conversation for each in updates}) > MAX_CONVERSATIONS_IN_A_WEBHOOK:
        raise TooManyUpdates(f"A webhook has at most {MAX_CONVERSATIONS_IN_A_WEBHOOK} conversations.")


def _prepare_one(update: Update, book: RuleBook, prepared: Prepared) -> None:
    owner = book.owner_of(update.conversation.platform, update.conversation.account)
    conversation, agent = update_belongs(update, owner)
    encode_conversation(str(conversation))
    match update:
        case Incoming(_, message):
            rules = book.for_conversation(conversation, agent).rules
            word = rules.control_words.control_word_in(message.text) if _is_typed(message) else None
            prepared.messages.append(
                PreparedMessage(
                    conversation,
                    message.id,
                    encode(message),
                    timing_of(message, rules),
                    word,
                    book.charge_for(conversation),
                )
            )
        case Edited(_, message):
            rules = book.for_conversation(conversation, agent).rules
            # The edit may bring the caption or transcript that the buffer waits for, and so end that wait.
            timing = timing_of(message, rules) if message.attachments else None
            prepared.changes.append(PreparedChange(update._replace(conversation=conversation), encode(message), timing))
        case _:
            prepared.changes.append(PreparedChange(update._replace(conversation=conversation)))


def _is_typed(message: Message) -> bool:
    """Return whether the author typed this as a message of its own.

    A caption belongs to its file. A button's title was chosen by the bot, which waits for it as an answer.
    """
    return not message.attachments and message.type not in PRESSED


def timing_of(message: Message, rules: Rules) -> Timing:
    """Return how long the rules let a buffer wait after this message."""
    files = [each for each in message.attachments if each.type not in WITHOUT_CAPTION]
    return rules.timing_of(
        is_media=bool(files) and not message.text,
        is_pending=any(each.pending for each in message.attachments),
        in_album=message.group_id is not None,
        is_pressed=message.type in PRESSED,
    )
