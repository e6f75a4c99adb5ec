"""The table of aliases. Each item leads from one name of an author to another, and is written once:

    acme/whatsapp/1065/DE.11          leadsTo 491701234567    the first name under which this id's author wrote
    acme/whatsapp/1065/491701234567   leadsTo DE.11           the first id that came with this number

The item of a number prevents other authors from using the number, and lets a forget find the id.

An item expires a year after it was written. A reader must not rely on DynamoDB's own expiry, which may take days.
"""

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, number, text
from message_buffer.limits import DAY_MS, SECOND_MS
from message_buffer.messages.conversation_id import ConversationId

# An alias expires this long after it was written. An author who still writes is then learned again.
ALIAS_LIFE_MS = 365 * DAY_MS


class AliasesTable(Table):
    def __init__(self, name: str) -> None:
        # A webhook waits for each call. If it fails, the caller can go on without the table.
        super().__init__(name, patience=aws.HURRIED)

    def get(self, conversation: ConversationId, *, now_ms: int) -> str | None:
        """Return the name to which this conversation's name leads, or None if it leads nowhere."""
        return _leads_to(self._get("read alias", _key(conversation)), now_ms)

    def put(self, conversation: ConversationId, leads_to: str, *, now_ms: int) -> str:
        """Write an alias unless there is one, and return the name to which the conversation's name leads now."""
        item: Values = {**_key(conversation), "leadsTo": leads_to, "expiresAt": (now_ms + ALIAS_LIFE_MS) // SECOND_MS}
        free = "attribute_not_exists(#leadsTo) OR #expiresAt <= :now"
        request = self._new(item, {"now": now_ms // SECOND_MS}, only_if=free)["Put"]
        written = self._asked("write alias", "put_item", request)
        return leads_to if written.done else text(written.item, "leadsTo")

    def other_name(self, conversation: ConversationId, *, now_ms: int) -> ConversationId | None:
        """Return the conversation under the author's other name, or None if the author has one name."""
        found = self.get(conversation, now_ms=now_ms)
        return conversation._replace(user=found) if found not in (None, conversation.user) else None

    def count(self, conversation: ConversationId, *, now_ms: int) -> int:
        """Return the number of items that a forget would delete."""
        return len(self._items_of(conversation, now_ms))

    def forget(self, conversation: ConversationId, *, now_ms: int) -> int:
        """Delete the items of the author's names, and return their number."""
        found = self._items_of(conversation, now_ms)
        if found:
            self._transact("forget aliases", [self._delete(_key(each)) for each in found])
        return len(found)

    def _items_of(self, conversation: ConversationId, now_ms: int) -> list[ConversationId]:
        """Return the names of the conversation's author that have an item."""
        names = {conversation, self.other_name(conversation, now_ms=now_ms) or conversation}
        return [each for each in names if self.get(each, now_ms=now_ms) is not None]


def _key(conversation: ConversationId) -> dict[str, str]:
    return {"conversation": str(conversation)}


def _leads_to(item: Item, now_ms: int) -> str | None:
    """Return the target of an item, or None if there is none, it has expired, or an edit by hand has broken it."""
    return text(item, "leadsTo") or None if number(item, "expiresAt") * SECOND_MS > now_ms else None
