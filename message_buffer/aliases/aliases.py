"""Keeps one conversation for an author whom the platform names by a number, by an id, or by both.

The conversation keeps the first name under which its author wrote. When a webhook contains both the number and the id,
ingest learns that they belong to one author. From then on the id leads to the conversation, even if it comes alone.
Only the id is looked up. If a phone company gives the number to another person, that person has another id, and so gets
a conversation of their own.

If the table cannot be reached, ingest still accepts messages. An instance then uses the aliases that it knows, and
otherwise the id in the webhook. So an outage may split a conversation, but it never puts two persons into one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from message_buffer.aliases.aliases_table import Alias, AliasesTable
from message_buffer.aliases.learning import AliasLearner
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidId, SendFailed
from message_buffer.lanes.circuit_breaker import CircuitBreaker
from message_buffer.limits import (
    ALIAS_COPY_LIFE_MS,
    MAX_ALIASES_KEPT,
    MAX_AUTHORS_LEARNED_AT_ONCE,
    MAX_LOOK_UP_MS_IN_A_WEBHOOK,
    MAX_MOVE_MS_IN_A_WEBHOOK,
)
from message_buffer.messages.author_ids import AuthorIds, IdentityChange
from message_buffer.messages.conversation_id import ConversationId, encode_conversation
from message_buffer.telemetry import Telemetry

_A = TypeVar("_A")
_R = TypeVar("_R")


class _Copy(NamedTuple):
    user: str
    read_at_ms: int


class _Author(NamedTuple):
    """The arguments of `AliasLearner.learn`."""

    by_id: ConversationId
    number: str | None
    known: Alias | None


class Aliases:
    """The aliases as one instance of a function knows them."""

    def __init__(self, table: AliasesTable, telemetry: Telemetry, *, clock: Clock = system_clock) -> None:
        self._learner = AliasLearner(table, telemetry, clock=clock)
        self._telemetry = telemetry
        self._clock = clock
        self._breaker = CircuitBreaker(clock=clock)
        self._copies: dict[ConversationId, _Copy] = {}
        self._spent_ms = 0
        self._moving_ms = 0

    def begin_webhook(self) -> None:
        """Allow the look-ups and the reported changes of the next webhook their full time."""
        self._spent_ms = self._moving_ms = 0

    def conversation_of(self, named: ConversationId, ids: AuthorIds) -> ConversationId:
        """Return the author's conversation. `named` is the conversation under the name in the webhook.

        An author without an id is not looked up.
        """
        if not ids.user_id:
            return named
        by_id = named._replace(user=ids.user_id)
        fresh = self._fresh_copy(by_id)
        if fresh is not None:
            return by_id._replace(user=fresh.user)
        found = self._look_up(by_id, ids.number)
        if found is not None:
            self._keep(by_id, found)
            return by_id._replace(user=found)
        # Do not use the number. It may be another person's by now.
        copy = self._copies.get(by_id)
        return by_id._replace(user=copy.user) if copy else by_id

    def look_up_all(self, authors: Iterable[tuple[ConversationId, AuthorIds]]) -> None:
        """Look up the authors of a webhook together, so that `conversation_of` need not ask the table for each.

        The authors are given like the arguments of `conversation_of`.
        """
        missing: dict[ConversationId, str | None] = {}
        for named, ids in authors:
            by_id = named._replace(user=ids.user_id or "")
            if ids.user_id and _is_valid(by_id) and self._fresh_copy(by_id) is None:
                missing.setdefault(by_id, ids.number)
        # A single author is looked up when the message is prepared.
        if len(missing) > 1 and self._may_ask:
            began_ms = self._clock()
            self._learn_all(missing, until_ms=began_ms + MAX_LOOK_UP_MS_IN_A_WEBHOOK - self._spent_ms)
            self._spent_ms += max(self._clock() - began_ms, 0)

    def _learn_all(self, missing: Mapping[ConversationId, str | None], *, until_ms: int) -> None:
        try:
            known = self._learner.find_all(missing, has_time=lambda: self._clock() < until_ms)
        except SendFailed as error:
            self._note_failure(error)
            return
        # The authors of one number depend on each other, so one thread learns them in their order.
        to_learn: dict[tuple[str, ...], list[_Author]] = {}
        for by_id, alias in known.items():
            number = missing[by_id]
            if alias is not None and self._learner.is_settled(alias, number):
                self._keep(by_id, alias.leads_to)
            else:
                same_number = (*by_id[:-1], number or by_id.user)
                to_learn.setdefault(same_number, []).append(_Author(by_id, number, alias))
        errors: list[SendFailed] = []
        learn = partial(self._learn_some, until_ms=until_ms, errors=errors)
        for found in _in_threads(learn, list(to_learn.values())):
            for by_id, user in found:
                self._keep(by_id, user)
        if errors:
            self._note_failure(errors[0])
        else:
            self._breaker.succeeded()

    def _learn_some(
        self, authors: Sequence[_Author], *, until_ms: int, errors: list[SendFailed]
    ) -> list[tuple[ConversationId, str]]:
        """Learn authors until time runs out, or any thread has failed. Return the ids and users of those learned."""
        found = []
        for author in authors:
            if errors or self._clock() >= until_ms:
                break
            try:
                found.append((author.by_id, self._learner.learn(*author)))
            except SendFailed as error:
                errors.append(error)
        return found

    def move(self, account: ConversationId, change: IdentityChange) -> ConversationId | None:
        """Let the author's new id lead to the old conversation, and return that conversation.

        Return None if it is not known which conversation is the author's. Raise SendFailed if the table does not
        answer, or if the changes of this webhook have taken too long. `account` is any conversation of the account.
        """
        if self._moving_ms >= MAX_MOVE_MS_IN_A_WEBHOOK:
            raise SendFailed("move alias: the table is too slow for the changes of one webhook")
        began_ms = self._clock()
        try:
            root = self._learner.move(account, change)
        finally:
            self._moving_ms += max(self._clock() - began_ms, 0)
        if root is not None and change.current.user_id:
            self._keep(account._replace(user=change.current.user_id), root)
        return None if root is None else account._replace(user=root)

    def _look_up(self, by_id: ConversationId, number: str | None) -> str | None:
        """Return the user part of the conversation, or None if the table does not answer in time."""
        if not self._may_ask:
            return None
        began_ms = self._clock()
        try:
            found = self._learner.find_or_learn(by_id, number)
        except SendFailed as error:
            self._note_failure(error)
            return None
        finally:
            self._spent_ms += max(self._clock() - began_ms, 0)
        self._breaker.succeeded()
        return found

    @property
    def _may_ask(self) -> bool:
        return not self._breaker.should_skip and self._spent_ms < MAX_LOOK_UP_MS_IN_A_WEBHOOK

    def _note_failure(self, error: SendFailed) -> None:
        self._telemetry.count("AliasesUnreachable")
        if self._breaker.failed():
            self._telemetry.warn("aliases unreachable", reason=str(error))

    def _fresh_copy(self, by_id: ConversationId) -> _Copy | None:
        copy = self._copies.get(by_id)
        return copy if copy is not None and 0 <= self._clock() - copy.read_at_ms < ALIAS_COPY_LIFE_MS else None

    def _keep(self, by_id: ConversationId, user: str) -> None:
        # Drop the oldest copy. A dictionary keeps the order of insertion.
        self._copies.pop(by_id, None)
        if len(self._copies) >= MAX_ALIASES_KEPT:
            del self._copies[next(iter(self._copies))]
        self._copies[by_id] = _Copy(user, self._clock())


def _is_valid(conversation: ConversationId) -> bool:
    try:
        encode_conversation(str(conversation))
    except InvalidId:
        return False
    return True


def _in_threads(call: Callable[[_A], _R], arguments: Sequence[_A]) -> Iterator[_R]:
    """Call the function once for each argument, a few at a time, and return the results in the arguments' order."""
    if len(arguments) < 2:  # noqa: PLR2004 - one call needs no thread
        return map(call, arguments)
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few webhooks have so many new authors

    with ThreadPoolExecutor(min(len(arguments), MAX_AUTHORS_LEARNED_AT_ONCE)) as pool:
        return iter(list(pool.map(call, arguments)))
