"""Keeps one conversation for an author whom the platform names by a number, by an id, or by both.

The conversation keeps the first name under which its author wrote. When a webhook contains both the number and the id,
ingest learns that they belong to one author. From then on the id leads to the conversation, even if it comes alone.
Only the id is looked up. If a phone company gives the number to another person, that person has another id, and so gets
a conversation of their own.

If the table cannot be reached, ingest still accepts messages. An instance then uses the aliases that it knows, and
otherwise the id in the webhook. So an outage may split a conversation, but it never puts two persons into one.
"""

from typing import NamedTuple

from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.aliases.learning import AliasLearner
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.lanes.circuit_breaker import CircuitBreaker
from message_buffer.limits import (
    ALIAS_COPY_LIFE_MS,
    MAX_ALIASES_KEPT,
    MAX_LOOK_UP_MS_IN_A_WEBHOOK,
)
from message_buffer.messages.author_ids import AuthorIds, IdentityChange
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.telemetry import Telemetry


class _Copy(NamedTuple):
    user: str
    read_at_ms: int


class Aliases:
    """The aliases as one instance of a function knows them."""

    def __init__(self, table: AliasesTable, telemetry: Telemetry, *, clock: Clock = system_clock) -> None:
        self._learner = AliasLearner(table, telemetry, clock=clock)
        self._telemetry = telemetry
        self._clock = clock
        self._breaker = CircuitBreaker(clock=clock)
        self._copies: dict[ConversationId, _Copy] = {}
        self._spent_ms = 0

    def begin_webhook(self) -> None:
        """Allow the look-ups of the next webhook their full time."""
        self._spent_ms = 0

    def conversation_of(self, named: ConversationId, ids: AuthorIds) -> ConversationId:
        """Return the author's conversation. `named` is the conversation under the name in the webhook.

        An author without an id is not looked up.
        """
        if not ids.user_id:
            return named
        by_id = named._replace(user=ids.user_id)
        copy = self._copies.get(by_id)
        if copy is not None and 0 <= self._clock() - copy.read_at_ms < ALIAS_COPY_LIFE_MS:
            return by_id._replace(user=copy.user)
        found = self._look_up(by_id, ids.number)
        if found is not None:
            self._keep(by_id, found)
            return by_id._replace(user=found)
        # Do not use the number. It may be another person's by now.
        return by_id._replace(user=copy.user) if copy else by_id

    def move(self, account: ConversationId, change: IdentityChange) -> ConversationId | None:
        """Let the author's new id lead to the old conversation, and return that conversation.

        Return None if it is not known which conversation is the author's. Raise SendFailed if the table does not
        answer. `account` is any conversation of the account.
        """
        root = self._learner.move(account, change)
        if root is not None and change.current.user_id:
            self._keep(account._replace(user=change.current.user_id), root)
        return None if root is None else account._replace(user=root)

    def _look_up(self, by_id: ConversationId, number: str | None) -> str | None:
        """Return the user part of the conversation, or None if the table does not answer in time."""
        if self._breaker.should_skip or self._spent_ms >= MAX_LOOK_UP_MS_IN_A_WEBHOOK:
            return None
        began_ms = self._clock()
        try:
            found = self._learner.find_or_learn(by_id, number)
        except SendFailed as error:
            self._telemetry.count("AliasesUnreachable")
            if self._breaker.failed():
                self._telemetry.warn("aliases unreachable", reason=str(error))
            return None
        finally:
            self._spent_ms += max(self._clock() - began_ms, 0)
        self._breaker.succeeded()
        return found

    def _keep(self, by_id: ConversationId, user: str) -> None:
        # Drop the oldest copy. A dictionary keeps the order of insertion.
        self._copies.pop(by_id, None)
        if len(self._copies) >= MAX_ALIASES_KEPT:
            del self._copies[next(iter(self._copies))]
        self._copies[by_id] = _Copy(user, self._clock())
