"""The table of aliases: an item for each number and each id of an author, which names the author's conversation.

    acme/whatsapp/1065/491701234567   leadsTo 491701234567   ids [DE.11, DE.22]
    acme/whatsapp/1065/DE.11          leadsTo 491701234567
    acme/whatsapp/1065/DE.22          leadsTo 491701234567

`leadsTo` always names the conversation itself, and never another alias, so one look-up is enough, and no alias can lead
back to itself. The item of the conversation lists the ids that lead to it. That is how a number that comes with another
id is recognised as another person's, and how a forget finds all aliases.

An item expires a year after its last use. A reader must not rely on DynamoDB's own expiry, which may take days.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, encode, number, text, texts
from message_buffer.errors import SendFailed
from message_buffer.limits import (
    ALIAS_LIFE_MS,
    MAX_IDS_OF_AN_AUTHOR,
    MAX_ITEMS_IN_A_READ,
    REMEMBERED_MS,
    SECOND_MS,
    UNDONE_PAUSES_SECONDS,
)
from message_buffer.messages.conversation_id import ConversationId

_FREE = "attribute_not_exists(#conversation) OR #expiresAt <= :now"


# The outcomes of a write that lets names lead to a conversation. `done`: it was made. `full`: too many names lead there
# already. `changed`: another request has changed one of the items.
Led = Literal["done", "full", "changed"]


class Alias(NamedTuple):
    leads_to: str
    """The user part of the conversation's id."""
    ids: tuple[str, ...] = ()
    """In the item of a conversation: the ids and other numbers that lead to it. In the item of another number: its
    author's id, if that is known."""
    expires_at_ms: int = 0
    is_forgotten: bool = False
    """The conversation was forgotten. The alias remains for a day, so that a redelivered message is recognised."""
    is_reassigned: bool = False
    """The number has come with another person's id, so the number alone no longer says who is meant."""


class AliasesTable(Table):
    def __init__(self, name: str) -> None:
        # A webhook waits for each call. If it fails, the caller can go on without the table.
        super().__init__(name, patience=aws.HURRIED)

    def get(self, conversation: ConversationId, *, now_ms: int) -> Alias | None:
        return _alias(self._get("read alias", _key(conversation)), now_ms)

    def get_all(
        self, conversations: Iterable[ConversationId], *, now_ms: int, has_time: Callable[[], bool]
    ) -> dict[ConversationId, Alias | None]:
        """Return what `get` returns for each conversation. If time runs out, some conversations are missing.

        Raises SendFailed.
        """
        found: dict[ConversationId, Alias | None] = {}
        waiting = {str(conversation): conversation for conversation in conversations}
        pauses = iter(UNDONE_PAUSES_SECONDS)
        while waiting and has_time():
            asked = list(islice(waiting, MAX_ITEMS_IN_A_READ))
            items, undone = self._get_some(asked)
            for name in asked:
                if name not in undone:
                    found[waiting.pop(name)] = _alias(items.get(name, {}), now_ms)
            if undone:
                pause = next(pauses, None)
                if pause is None:
                    raise SendFailed("read aliases: the table is too busy")
                time.sleep(pause)
        return found

    def _get_some(self, names: Sequence[str]) -> tuple[dict[str, Item], set[str]]:
        """Return the items that exist, by their names, and the names that DynamoDB did not process."""
        keys = [encode({"conversation": name}) for name in names]
        with aws.errors_as_ours("read aliases"):
            answer = self._client.batch_get_item(RequestItems={self.name: {"Keys": keys, "ConsistentRead": True}})
        items = {text(item, "conversation"): item for item in answer["Responses"].get(self.name, [])}
        undone = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
        return items, {text(key, "conversation") for key in undone}

    def put(self, conversation: ConversationId, alias: Alias, *, now_ms: int) -> Alias | None:
        """Write a new alias and return None. If there is one already, return that one instead."""
        written = self._asked("write alias", "put_item", self._create(conversation, alias, now_ms)["Put"])
        return None if written.done else _alias(written.item, 0)

    def renew(self, conversation: ConversationId, *, expires_at_ms: int) -> None:
        """Let an alias expire later."""
        self._update(
            "renew alias",
            _key(conversation),
            "SET #expiresAt = :later",
            {"later": expires_at_ms // SECOND_MS},
            only_if="attribute_exists(#conversation) AND attribute_not_exists(#forgotten)",
        )

    def mark_reassigned(self, conversation: ConversationId) -> None:
        """Record that a number has come with another person's id."""
        self._update(
            "mark number",
            _key(conversation),
            "SET #reassigned = :yes",
            {"yes": 1},
            only_if="attribute_exists(#conversation)",
        )

    def take_number(self, conversation: ConversationId, user_id: str) -> bool:
        """Record the first id of a changed number. Return False if the number has an id already."""
        return self._update(
            "write alias",
            _key(conversation),
            "SET #ids = :ids",
            {"ids": [user_id], "none": 0},
            only_if="attribute_exists(#conversation) AND size(#ids) = :none",
        ).done

    def release_number(self, conversation: ConversationId, user_id: str, *, now_ms: int) -> None:
        """Let the item of a number expire now, if no other id than this one came with the number."""
        self._update(
            "release number",
            _key(conversation),
            "SET #expiresAt = :now",
            {"now": now_ms // SECOND_MS, "ids": [user_id], "own": conversation.user},
            only_if="#ids = :ids AND #leadsTo = :own",
        )

    def lead(
        self,
        root: ConversationId,
        moving: Mapping[str, str | None],
        *,
        now_ms: int,
        expires_at_ms: int | None = None,
        ids: tuple[str, ...] = (),
    ) -> Led:
        """Let names lead to the conversation `root`, all of them or none.

        `moving` has each name's present target, or None if the name has none. `ids` are the ids that came with a new
        number.
        """
        found = self.get(root, now_ms=now_ms)
        present = found or Alias(root.user, expires_at_ms=now_ms + ALIAS_LIFE_MS)
        names = list(dict.fromkeys([*present.ids, *moving]))
        if present.leads_to != root.user:
            return "changed"
        if len(names) > MAX_IDS_OF_AN_AUTHOR:
            return "full"
        expires_at_ms = min(present.expires_at_ms, expires_at_ms or present.expires_at_ms)
        new = Alias(root.user, ids, expires_at_ms, present.is_forgotten)
        writes = [self._list_ids(root, found, present._replace(ids=tuple(names)), now_ms=now_ms)]
        writes += [self._redirect(_of(root, each), new, target, now_ms) for each, target in moving.items()]
        return "done" if self._transact("move alias", writes) else "changed"

    def _list_ids(self, root: ConversationId, found: Alias | None, new: Alias, *, now_ms: int) -> dict[str, Any]:
        """Return the write that lists the ids in the conversation's item, if no other request has changed it."""
        if found is None:
            return self._create(root, new, now_ms)
        values: Values = {
            "ids": new.ids,
            "old": found.ids,
            "target": root.user,
            "expires": found.expires_at_ms // SECOND_MS,
        }
        # A renewal and a forget change the time of expiry.
        unchanged = "#leadsTo = :target AND #ids = :old AND #expiresAt = :expires"
        return self._change(_key(root), "SET #ids = :ids", values, only_if=unchanged)

    def _redirect(
        self, conversation: ConversationId, alias: Alias, leads_to: str | None, now_ms: int
    ) -> dict[str, Any]:
        """Return the write of an alias. It fails unless the present alias leads to `leads_to`, or is missing if that is
        None."""
        if leads_to is None:
            return self._create(conversation, alias, now_ms)
        # Keep the ids of a number, so that it is still recognised as another person's when it comes with another id.
        values: Values = {"to": alias.leads_to, "expires": alias.expires_at_ms // SECOND_MS, "target": leads_to}
        do = "SET #leadsTo = :to, #expiresAt = :expires"
        if alias.is_forgotten:
            values, do = {**values, "yes": 1}, f"{do}, #forgotten = :yes"
        return self._change(_key(conversation), do, values, only_if="#leadsTo = :target")

    def _create(self, conversation: ConversationId, alias: Alias, now_ms: int) -> dict[str, Any]:
        return self._new({**_key(conversation), **_fields(alias)}, {"now": now_ms // SECOND_MS}, only_if=_FREE)

    def leads_elsewhere(self, conversation: ConversationId, *, now_ms: int) -> ConversationId | None:
        """Return the conversation to which this one's name leads, or None if the name is not an alias."""
        alias = self.get(conversation, now_ms=now_ms)
        return None if alias is None or alias.leads_to == conversation.user else _of(conversation, alias.leads_to)

    def other_names(self, conversation: ConversationId, *, now_ms: int) -> list[ConversationId]:
        """Return the conversations under the author's other names. Messages may have come to them during an outage."""
        return [each for each, _ in self._items_of(conversation, now_ms) if each != conversation]

    def count(self, conversation: ConversationId, *, now_ms: int) -> int:
        """Return how many items a forget would erase."""
        return sum(not alias.is_forgotten for _, alias in self._items_of(conversation, now_ms))

    def forget(self, conversation: ConversationId, *, now_ms: int) -> int:
        """Let the items of a conversation expire after a day, and return how many there were.

        Until then a redelivered message still leads to the conversation, which remembers the message's id.
        """
        erased = 0
        for each, alias in self._items_of(conversation, now_ms):
            done = self._update(
                "forget alias",
                _key(each),
                "SET #forgotten = :yes, #expiresAt = :soon",
                {"yes": 1, "soon": (now_ms + REMEMBERED_MS) // SECOND_MS, "target": conversation.user},
                only_if="#leadsTo = :target",
            ).done
            erased += done and not alias.is_forgotten
        return erased

    def _items_of(self, conversation: ConversationId, now_ms: int) -> list[tuple[ConversationId, Alias]]:
        """Return the item of a conversation, and those of the ids that lead to it."""
        root = self.get(conversation, now_ms=now_ms)
        if root is None or root.leads_to != conversation.user:
            return []
        found = [(conversation, root)]
        for user_id in root.ids:
            alias = self.get(_of(conversation, user_id), now_ms=now_ms)
            if alias is not None and alias.leads_to == conversation.user and user_id != conversation.user:
                found.append((_of(conversation, user_id), alias))
        return found


def _of(conversation: ConversationId, user: str) -> ConversationId:
    return conversation._replace(user=user)


def _key(conversation: ConversationId) -> dict[str, str]:
    return {"conversation": str(conversation)}


def _fields(alias: Alias) -> Values:
    return {
        "leadsTo": alias.leads_to,
        "ids": list(alias.ids),
        "expiresAt": alias.expires_at_ms // SECOND_MS,
        **({"forgotten": 1} if alias.is_forgotten else {}),
        **({"reassigned": 1} if alias.is_reassigned else {}),
    }


def _alias(item: Item, now_ms: int) -> Alias | None:
    """Return the alias of an item, or None if there is none, it has expired, or an edit by hand has broken it."""
    expires_at_ms = number(item, "expiresAt") * SECOND_MS
    leads_to = text(item, "leadsTo")
    if not leads_to or expires_at_ms <= now_ms:
        return None
    return Alias(
        leads_to,
        tuple(texts(item, "ids")),
        expires_at_ms,
        is_forgotten="forgotten" in item,
        is_reassigned="reassigned" in item,
    )
