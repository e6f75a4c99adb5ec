"""The table of aliases. Each item maps one id of an author to another, and is written once. A number is an id, too:

    acme/whatsapp/1065/DE.11          leadsTo 491701234567    the number in the first webhook with this id
    acme/whatsapp/1065/491701234567   leadsTo DE.11           the first id that came with this number

A number's item prevents other authors from using the number's conversation, and lets the command `forget` find the id.

An item expires a year after it was written. A reader must not rely on DynamoDB's own expiry, which may take days.
"""

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, number, text
from message_buffer.limits import DAY_MS, SECOND_MS
from message_buffer.messages.conversation_id import ConversationId

# An alias expires this long after it was written. If the author writes again after that, ingest writes a new alias.
ALIAS_LIFE_MS = 365 * DAY_MS


class AliasesTable(Table):
    def __init__(self, name: str) -> None:
        # A webhook waits for each call, and ingest can go on without the table.
        super().__init__(name, patience=aws.HURRIED)

    def get(self, conversation: ConversationId, *, now_ms: int) -> str | None:
        """Return the id that the conversation's user part must be replaced with, or None if the table has no item for
        it."""
        return _leads_to(self._get("read alias", _key(conversation)), now_ms)

    def put(self, conversation: ConversationId, leads_to: str, *, now_ms: int) -> str:
        """Write an alias for the id in this conversation, unless it has one. Return the id to which the table now maps
        it."""
        item: Values = {**_key(conversation), "leadsTo": leads_to, "expiresAt": (now_ms + ALIAS_LIFE_MS) // SECOND_MS}
        free = "attribute_not_exists(#leadsTo) OR #expiresAt <= :now"
        request = self._new(item, {"now": now_ms // SECOND_MS}, only_if=free)["Put"]
        written = self._asked("write alias", "put_item", request)
        return leads_to if written.done else text(written.item, "leadsTo")

    def other_name(self, conversation: ConversationId, *, now_ms: int) -> ConversationId | None:
        """Return the conversation under the author's other id, or None if the author has only one id."""
        found = self.get(conversation, now_ms=now_ms)
        return conversation._replace(user=found) if found not in (None, conversation.user) else None

    def count(self, conversation: ConversationId, *, now_ms: int) -> int:
        """Return the number of items that `forget` would delete."""
        return len(self._items_of(conversation, now_ms))

    def forget(self, conversation: ConversationId, *, now_ms: int) -> int:
        """Delete the items of all of the author's ids. Return how many there were."""
        found = self._items_of(conversation, now_ms)
        if found:
            self._transact("forget aliases", [self._delete(_key(each)) for each in found])
        return len(found)

    def _items_of(self, conversation: ConversationId, now_ms: int) -> list[ConversationId]:
        """Return the author's ids for which the table has an item, each as a conversation."""
        names = {conversation, self.other_name(conversation, now_ms=now_ms) or conversation}
        return [each for each in names if self.get(each, now_ms=now_ms) is not None]


def _key(conversation: ConversationId) -> dict[str, str]:
    return {"conversation": str(conversation)}


def _leads_to(item: Item, now_ms: int) -> str | None:
    """Return the id in an item's `leadsTo`, or None if the item is missing, expired, or broken by an edit by hand."""
    return text(item, "leadsTo") or None if number(item, "expiresAt") * SECOND_MS > now_ms else None
