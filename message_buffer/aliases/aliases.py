"""Keeps one conversation for an author whom the platform names by a number, by an id, or by both.

The table maps each id to the number in the author's first webhook, or to the id itself if that webhook had no number.
This entry never changes, so a later webhook with only the id reaches the same conversation. A number belongs to the
first id that came with it. If the number later comes with another id, the messages with that id get a conversation of
their own.

If the table cannot be reached, ingest still accepts messages. An instance then uses its copy of the alias, or, without
a copy, the id in the webhook. So an outage may split a conversation, but it never merges two authors.
"""

from typing import NamedTuple

from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.lanes.circuit_breaker import CircuitBreaker
from message_buffer.messages.conversation_id import AuthorIds, ConversationId
from message_buffer.telemetry import Telemetry

# An instance looks an alias up again when its copy is this old, because an operator may have erased the alias.
ALIAS_COPY_LIFE_MS = 60_000
# An instance keeps this many copies. Each takes a few hundred bytes.
MAX_ALIASES_KEPT = 4_096
# All look-ups for one webhook together may take this long. After that, ingest uses the id in the webhook.
MAX_LOOK_UP_MS_IN_A_WEBHOOK = 3_000


class _Copy(NamedTuple):
    user: str
    read_at_ms: int


class Aliases:
    """One instance's copy of the aliases."""

    def __init__(self, table: AliasesTable, telemetry: Telemetry, *, clock: Clock = system_clock) -> None:
        self._table = table
        self._telemetry = telemetry
        self._clock = clock
        self._breaker = CircuitBreaker(clock=clock)
        self._copies: dict[ConversationId, _Copy] = {}
        self._expected: dict[ConversationId, _Copy] = {}
        """The names under which new authors of this webhook will be learned."""
        self._spent_ms = 0

    def begin_webhook(self) -> None:
        """Reset the time that look-ups have taken, for the next webhook."""
        self._expected.clear()
        self._spent_ms = 0

    def is_new(self, conversation: ConversationId, ids: AuthorIds) -> bool:
        """Return whether the look-up found no alias for this webhook's author. An alias must then be written before a
        message is buffered."""
        return conversation._replace(user=ids.user_id or "") in self._expected

    def conversation_of(self, named: ConversationId, ids: AuthorIds, *, learn: bool = True) -> ConversationId:
        """Return the author's conversation. `named` is the conversation that the webhook names.

        If the author has no id, return `named`. If `learn` is false, write no alias for a new author. Until an alias is
        written, another author may take the number.
        """
        if not ids.user_id:
            return named
        by_id = named._replace(user=ids.user_id)
        copy = self._copies.get(by_id) or (None if learn else self._expected.get(by_id))
        if copy is None or not 0 <= self._clock() - copy.read_at_ms < ALIAS_COPY_LIFE_MS:
            copy = self._look_up(by_id, ids.number, learn=learn) or copy
        # If the alias is not known, use the id, because the number may belong to another author by now.
        return by_id._replace(user=copy.user) if copy else by_id

    def _look_up(self, by_id: ConversationId, number: str | None, *, learn: bool) -> _Copy | None:
        """Return a new copy of the author's alias, or None if the table does not answer in time."""
        # Learn however long the look-ups took, because a message under another name than the one that was looked up
        # would split its conversation.
        if self._breaker.should_skip or (not learn and self._spent_ms >= MAX_LOOK_UP_MS_IN_A_WEBHOOK):
            return None
        began_ms = self._clock()
        try:
            found = self._table.get(by_id, now_ms=self._clock())
            user = found or (self._learn if learn else self._expect)(by_id, number)
        except SendFailed as error:
            self._telemetry.count("TablesUnreachable")
            if self._breaker.failed():
                self._telemetry.warn("aliases unreachable", reason=str(error))
            return None
        finally:
            self._spent_ms += max(self._clock() - began_ms, 0)
        self._breaker.succeeded()
        if found or learn:
            return self._keep(by_id, user)
        copy = self._expected[by_id] = _Copy(user, self._clock())
        return copy

    def _expect(self, by_id: ConversationId, number: str | None) -> str:
        """Return the user part that `_learn` would return, but write nothing. Raise SendFailed."""
        if not number:
            return by_id.user
        claimed_by = self._table.get(by_id._replace(user=number), now_ms=self._clock())
        return number if claimed_by in (None, by_id.user) else by_id.user

    def _learn(self, by_id: ConversationId, number: str | None) -> str:
        """Write the aliases of a new author, and return the user part of the conversation. Raise SendFailed."""
        first_name = by_id.user
        # Write the number's item before the id's item. If this run crashes in between, the next message finds that the
        # number belongs to the same id.
        if number and self._put(by_id._replace(user=number), by_id.user) == by_id.user:
            first_name = number
        return self._put(by_id, first_name)

    def _put(self, conversation: ConversationId, leads_to: str) -> str:
        return self._table.put(conversation, leads_to, now_ms=self._clock())

    def _keep(self, by_id: ConversationId, user: str) -> _Copy:
        # Insert the copy at the end, so that the first copy in the dictionary is the oldest and is dropped first.
        self._copies.pop(by_id, None)
        if len(self._copies) >= MAX_ALIASES_KEPT:
            del self._copies[next(iter(self._copies))]
        copy = self._copies[by_id] = _Copy(user, self._clock())
        return copy
