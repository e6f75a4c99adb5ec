"""Charges the items of a webhook to quotas, and remembers which items are refused for now."""

from collections import defaultdict
from collections.abc import Iterable

from lambdas.ingest.preparation import PreparedMessage
from lambdas.ingest.report import Done
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.rules.quota import Charge


class Refusals:
    """The messages of one webhook that were refused, and those that must be refused because of them.

    Later messages of the same conversation are refused too, because the redelivery would otherwise change their order.
    Once a quota of messages is used up, further messages of its account or tenant are refused without asking the lane.
    """

    def __init__(self) -> None:
        self._conversations: dict[ConversationId, o.RefusalReason] = {}
        self._changes: dict[ConversationId, o.RefusalReason] = {}
        """Why a conversation's changes, control words and human replies are refused. A refused control word keeps the
        messages behind it out; a change does not, because changes are made after all messages."""
        self._others: dict[tuple[str, ...], o.RefusalReason] = {}
        """Why messages of a tenant or account are refused, or those of an account's new authors."""
        self.messages: list[tuple[PreparedMessage, o.RefusalReason]] = []
        """The refused messages, without control words."""
        self.wait_ms = 0
        """The longest `wait_ms` of the refused messages."""

    def __bool__(self) -> bool:
        return bool(self._conversations or self._changes)

    @property
    def are_by_quota(self) -> bool:
        return any(reason != "waiting" for reason in (*self._conversations.values(), *self._changes.values()))

    def add(self, conversation: ConversationId, refused: o.MessageRefused, *, is_message: bool) -> None:
        """Record that messages of this conversation are refused, or other items."""
        (self._conversations if is_message else self._changes)[conversation] = refused.reason
        self.wait_ms = max(self.wait_ms, refused.wait_ms)

    def add_message(self, message: PreparedMessage, refused: o.MessageRefused) -> None:
        """Record that the lane refused this message, and which other messages are refused because of it."""
        self.messages.append((message, refused.reason))
        self.add(message.conversation, refused, is_message=True)
        account = _account_of(message.conversation)
        others = {"account_messages": account, "tenant_messages": (message.conversation.tenant,)}
        if refused.reason != "waiting":
            self._others[others.get(refused.reason, ("new", *account))] = refused.reason

    def of_message(self, message: PreparedMessage) -> o.RefusalReason | None:
        """Return why this message is refused without asking the lane, or None.

        Then the conversation's later messages are refused, too. No aliases are stored for a refused new author.
        """
        conversation = message.conversation
        if message.control_word:
            reason = self._conversations.get(conversation) or self._changes.get(conversation)
        else:
            of_new = self._others.get(("new", *_account_of(conversation))) if message.learn_author else None
            reason = of_new or self._around(conversation)
        if reason:
            self._conversations.setdefault(conversation, reason)
        return reason

    def of_change(self, conversation: ConversationId) -> o.RefusalReason | None:
        """Return the reason to refuse a change, a human reply or a typing event of this conversation, or None."""
        return self._around(conversation) or self._changes.get(conversation)

    def _around(self, conversation: ConversationId) -> o.RefusalReason | None:
        """Return why messages of this conversation, of its account or of its tenant are refused, or None."""
        return (
            self._others.get(_account_of(conversation))
            or self._others.get((conversation.tenant,))
            or self._conversations.get(conversation)
        )


def charge_all(
    lane: Lane, items: Iterable[tuple[ConversationId, Charge, bool]], done: Done, *, comes_again: bool = True
) -> Refusals:
    """Charge the items, and return the refusals by quotas. Raise StoreError or SendFailed.

    An item is a conversation, its charge, and whether it is a message to buffer. If the platform would not send the
    webhook again (not `comes_again`), refuse nothing.
    """
    refusals = Refusals()
    work = defaultdict(list)
    for conversation, charge, is_message in items:
        work[charge].append((conversation, is_message))
    for charge, charged in work.items():
        first, messages = str(charged[0][0]), sum(is_message for _, is_message in charged)
        outcome = lane.charge(first, charge, messages=messages, others=len(charged) - messages)
        if isinstance(outcome, o.Charged):
            continue
        # A lane that charges each message when it buffers the message has refused only the others.
        fit = messages and isinstance(lane.charge(first, charge, messages=messages, others=0), o.Charged)
        for conversation, is_message in (each for each in charged if not (fit and each[1])):
            done.note_limited(conversation)
            if comes_again:
                refusals.add(conversation, outcome, is_message=is_message)
            else:
                done.count("taken")
    return refusals


def _account_of(conversation: ConversationId) -> tuple[str, str]:
    return conversation.platform, conversation.account
