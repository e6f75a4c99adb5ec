"""Learns from webhooks which names belong to one author, and records that once.

Each step is one conditional write, so instances that learn at the same time agree. Every crash between two steps leaves
a state from which the next message continues.
"""

from collections.abc import Callable, Iterable
from threading import Lock

from message_buffer.aliases.aliases_table import Alias, AliasesTable, Led
from message_buffer.clock import Clock
from message_buffer.errors import SendFailed
from message_buffer.limits import (
    ALIAS_LIFE_MS,
    CHANGED_NUMBER_LIFE_MS,
    MAX_MOVES_TRIED,
    MIN_ALIAS_LIFE_LEFT_MS,
)
from message_buffer.messages.author_ids import AuthorIds, IdentityChange
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.telemetry import Telemetry


class AliasLearner:
    def __init__(self, table: AliasesTable, telemetry: Telemetry, *, clock: Clock) -> None:
        self._table = table
        self._telemetry = telemetry
        self._clock = clock
        # Several threads may learn at the same time, but the counts are not made for threads.
        self._counting = Lock()

    def find_or_learn(self, by_id: ConversationId, number: str | None) -> str:
        """Return the user part of the conversation to which the id leads. Raises SendFailed.

        Let a new id lead to the conversation of its number, unless the number is another person's.
        """
        return self.learn(by_id, number, self._table.get(by_id, now_ms=self._clock()))

    def find_all(
        self, by_ids: Iterable[ConversationId], *, has_time: Callable[[], bool]
    ) -> dict[ConversationId, Alias | None]:
        """Return the aliases of the ids, as far as there is time. Raises SendFailed."""
        return self._table.get_all(by_ids, now_ms=self._clock(), has_time=has_time)

    def is_settled(self, known: Alias | None, number: str | None) -> bool:
        """Return whether `learn` would make no request, because the alias is known and up to date."""
        return known is not None and number in (None, known.leads_to) and not self._is_to_be_renewed(known)

    def learn(self, by_id: ConversationId, number: str | None, known: Alias | None) -> str:
        """Return what `find_or_learn` returns, given the alias of the id, or None if it has none. Raises SendFailed."""
        if known is not None:
            self._maintain(by_id, known, number)
            return known.leads_to
        root = self._claim_number(by_id._replace(user=number), by_id.user) if number else None
        new = self._new(by_id.user) if root is None else root._replace(ids=(), is_reassigned=False)
        existing = self._table.put(by_id, new, now_ms=self._clock())
        if existing is not None:
            if number and existing.leads_to != new.leads_to:
                # The id came alone at the same time, and has a conversation of its own.
                self._table.release_number(by_id._replace(user=number), by_id.user, now_ms=self._clock())
            return existing.leads_to
        if new.leads_to != by_id.user:
            conversation = str(by_id._replace(user=new.leads_to))
            self._telemetry.info("alias", outcome="learned", conversation=conversation, conversations=[str(by_id)])
        return new.leads_to

    def move(self, account: ConversationId, change: IdentityChange) -> str | None:
        """Let the new id, or without an id the new number, lead to the author's conversation.

        Return the conversation's user part, or None if it is not known. Raises SendFailed.
        """
        if not any(change.current):
            return None
        for _ in range(MAX_MOVES_TRIED):
            led, root = self._try_to_move(account, change)
            if led == "changed":
                continue
            if root is not None:
                conversation = str(account._replace(user=root))
                self._telemetry.info("alias", outcome=f"move: {led}", conversation=conversation)
            return root if led == "done" else None
        raise SendFailed("move alias: other requests are changing it")

    def _try_to_move(self, account: ConversationId, change: IdentityChange) -> tuple[Led, str | None]:
        """Return the outcome, and the user part of the author's conversation, or None if it is not known."""
        moved = change.current.user_id or str(change.current.number)
        present = self._table.get(account._replace(user=moved), now_ms=self._clock())
        moving: dict[str, str | None] = {moved: None}
        expires_at_ms = None
        if present is not None and self._is_first_seen(account, change.previous):
            # Keep the conversation that exists, and let the id that never came lead to it.
            moving = {str(change.previous.user_id): None}
            return self._lead(account, present.leads_to, moving), present.leads_to
        root = self._root_of(account, change.previous)
        if root is None or moved == root or (present is not None and present.leads_to == root):
            return "done", root
        if change.current.user_id is None:
            if present is not None:
                # The number may be another person's.
                return "done", None
            expires_at_ms = self._clock() + CHANGED_NUMBER_LIFE_MS
        if present is not None:
            moving = {moved: present.leads_to, **self._family(account._replace(user=present.leads_to))}
        return self._lead(account, root, moving, expires_at_ms=expires_at_ms), root

    def _lead(
        self, account: ConversationId, root: str, moving: dict[str, str | None], *, expires_at_ms: int | None = None
    ) -> Led:
        conversation = account._replace(user=root)
        return self._table.lead(conversation, moving, now_ms=self._clock(), expires_at_ms=expires_at_ms)

    def _family(self, root: ConversationId) -> dict[str, str | None]:
        """Return the names that lead to the conversation `root`, including its own, each with `root` as its target.

        Messages that came before the report of a change began a conversation, and other names may lead to it by now.
        """
        now_ms = self._clock()
        alias = self._table.get(root, now_ms=now_ms)
        names = (root.user, *alias.ids) if alias else ()
        found = {each: self._table.get(root._replace(user=each), now_ms=now_ms) for each in names}
        return {name: root.user for name, each in found.items() if each and each.leads_to == root.user}

    def _is_first_seen(self, account: ConversationId, ids: AuthorIds) -> bool:
        """Return whether an author is named by an id alone, and this id never came before."""
        if not ids.user_id or ids.number:
            return False
        return self._table.get(account._replace(user=ids.user_id), now_ms=self._clock()) is None

    def _root_of(self, account: ConversationId, ids: AuthorIds) -> str | None:
        if ids.user_id:
            return self.find_or_learn(account._replace(user=ids.user_id), ids.number)
        if not ids.number:
            return None
        by_number = account._replace(user=ids.number)
        new = self._new(ids.number)
        found = self._table.put(by_number, new, now_ms=self._clock()) or new
        return None if found.is_reassigned else found.leads_to

    def _claim_number(self, by_number: ConversationId, user_id: str) -> Alias | None:
        """Return the alias of the number if it is this author's, or None if another person came with it before."""
        now_ms = self._clock()
        new = self._new(by_number.user, user_id)
        found = self._table.put(by_number, new, now_ms=now_ms)
        if found is None:
            return new
        if user_id in found.ids:
            return found
        is_changed_number = found.leads_to != by_number.user
        if is_changed_number and self._table.take_number(by_number, user_id):
            root = by_number._replace(user=found.leads_to)
            if self._table.lead(root, {user_id: None}, now_ms=now_ms) == "done":
                return found
        self._table.mark_reassigned(by_number)
        self._telemetry.info("alias", outcome="reassigned", conversation=str(by_number))
        return None

    def _maintain(self, by_id: ConversationId, known: Alias, number: str | None) -> None:
        """Renew a known alias, and record its author's number, so that no other person gets the conversation.

        The conversation is known already, so a failure here must not split it. A later look-up does this again.
        """
        try:
            self._renew(by_id, known)
            if number is not None and number != known.leads_to:
                self._keep_number(by_id, known, number)
        except SendFailed as error:
            with self._counting:
                self._telemetry.count("AliasesUnreachable")
            self._telemetry.debug("alias was not maintained", reason=str(error))

    def _keep_number(self, by_id: ConversationId, known: Alias, number: str) -> None:
        """Record that this is the author's number, unless the number has an alias already.

        Messages with the number alone are in the number's own conversation. Without this record, the next
        person to whom the number is given would get that conversation.
        """
        now_ms = self._clock()
        if self._table.get(by_id._replace(user=number), now_ms=now_ms) is None:
            root = by_id._replace(user=known.leads_to)
            self._table.lead(root, {number: None}, now_ms=now_ms, ids=(by_id.user,))

    def _renew(self, by_id: ConversationId, known: Alias) -> None:
        if not self._is_to_be_renewed(known):
            return
        now_ms = self._clock()
        # The conversation's item must not expire before its aliases, because it keeps the number from other persons.
        if known.leads_to != by_id.user:
            self._table.renew(by_id._replace(user=known.leads_to), expires_at_ms=now_ms + ALIAS_LIFE_MS)
        self._table.renew(by_id, expires_at_ms=now_ms + ALIAS_LIFE_MS)

    def _is_to_be_renewed(self, known: Alias) -> bool:
        return not known.is_forgotten and known.expires_at_ms - self._clock() <= MIN_ALIAS_LIFE_LEFT_MS

    def _new(self, leads_to: str, *ids: str) -> Alias:
        return Alias(leads_to, ids, self._clock() + ALIAS_LIFE_MS)
