"""Records which messages of a webhook are refused for now, while its other messages are buffered."""

from lambdas.ingest.preparation import PreparedMessage
from message_buffer.lanes import outcomes as o
from message_buffer.messages.conversation_id import ConversationId


class Refusals:
    """The messages of one webhook that were refused, and those that must be refused because of them.

    Later messages of the same conversation are refused too, because the redelivery would otherwise change their order.
    Once a quota of messages is used up, further messages of its account or tenant are refused without asking the lane.
    """

    def __init__(self) -> None:
        self._conversations: dict[ConversationId, o.RefusalReason] = {}
        self._accounts: set[tuple[str, str]] = set()
        self._tenants: set[str] = set()
        self._no_new_authors: dict[tuple[str, str], o.RefusalReason] = {}
        self.messages: list[tuple[PreparedMessage, o.RefusalReason]] = []
        """The refused messages, without control words."""
        self.has_others = False
        """Control words or changes were refused."""
        self.wait_ms = 0
        """The longest `wait_ms` of the refused messages."""

    def __bool__(self) -> bool:
        return bool(self._conversations)

    @property
    def are_by_quota(self) -> bool:
        return any(reason != "waiting" for reason in self._conversations.values())

    def add(self, conversation: ConversationId, refused: o.MessageRefused) -> None:
        self._conversations[conversation] = refused.reason
        self.wait_ms = max(self.wait_ms, refused.wait_ms)
        if refused.reason == "account_messages":
            self._accounts.add(_account_of(conversation))
        if refused.reason == "tenant_messages":
            self._tenants.add(conversation.tenant)
        if refused.reason in ("account_conversations", "tenant_conversations"):
            self._no_new_authors[_account_of(conversation)] = refused.reason

    def add_unasked(self, conversation: ConversationId, reason: o.RefusalReason) -> None:
        """Record a refusal without a call to the lane, so that the conversation's later messages are refused too."""
        self._conversations.setdefault(conversation, reason)

    def in_conversation(self, conversation: ConversationId) -> o.RefusalReason | None:
        """Return the reason why a message of this conversation was refused, or None if none was."""
        return self._conversations.get(conversation)

    def of_new_author(self, conversation: ConversationId) -> o.RefusalReason | None:
        """Return why a message of a new author is refused, or None. No aliases are stored for a refused author."""
        return self._no_new_authors.get(_account_of(conversation)) or self.around(conversation)

    def around(self, conversation: ConversationId) -> o.RefusalReason | None:
        """Return the reason to refuse a message of this conversation, of its account or of its tenant, or None."""
        if _account_of(conversation) in self._accounts:
            return "account_messages"
        if conversation.tenant in self._tenants:
            return "tenant_messages"
        return self._conversations.get(conversation)


def _account_of(conversation: ConversationId) -> tuple[str, str]:
    return conversation.platform, conversation.account
