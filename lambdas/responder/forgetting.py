"""Erases a conversation: its record, turns and outboxes, and its dead letters.

Batches of the conversation that still wait in the queue are dropped when they are delivered, because the tombstone is
newer.
"""

import json
from collections.abc import Callable
from typing import NamedTuple, Protocol
from uuid import uuid4

from lambdas.responder.conversations_table import ConversationsTable, Erased
from lambdas.responder.deliveries import Letters
from message_buffer.clock import Clock, system_clock

# A run that erases a conversation stops when it has only this much time left. The next run erases the rest.
MIN_TIME_TO_ERASE_MS = 10_000
TimeLeft = Callable[[], int]


class ErasesDeadLetters(Protocol):
    def erase_dead_letters(
        self, is_wanted: Callable[[str], bool], *, has_time: Callable[[], bool], keep: bool
    ) -> Letters: ...


class ForgetResult(NamedTuple):
    turns: int
    outboxes: int
    dead_letters: int
    finished: bool


class ResponderForgetting:
    def __init__(
        self,
        *,
        table: ConversationsTable,
        dead_letters: ErasesDeadLetters,
        lock_ms: int,
        clock: Clock = system_clock,
        new_owner: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._table = table
        self._dead_letters = dead_letters
        self._lock_ms = lock_ms
        self._clock = clock
        self._new_owner = new_owner

    def count(self, conversation: str, *, at_ms: int, time_left: TimeLeft) -> ForgetResult:
        """Count what `forget` would erase."""
        return self._result(conversation, self._table.count(conversation), at_ms=at_ms, time_left=time_left, keep=True)

    def forget(self, conversation: str, *, at_ms: int, time_left: TimeLeft) -> ForgetResult:
        """Erase what arrived at or before `at_ms`. If the result is not `finished`, the caller must call again."""
        owner, now_ms = self._new_owner(), self._clock()
        counted = self._table.count(conversation)
        until_ms = now_ms + self._lock_ms
        if not self._table.begin_to_forget(conversation, owner, at_ms=at_ms, now_ms=now_ms, until_ms=until_ms):
            counted = Erased(0, 0)
        elif self._table.erase(conversation, has_time=lambda: _has_time(time_left)):
            self._table.end_forget(conversation, owner)
        else:
            counted = counted._replace(finished=False)
        return self._result(conversation, counted, at_ms=at_ms, time_left=time_left, keep=False)

    def _result(
        self, conversation: str, erased: Erased, *, at_ms: int, time_left: TimeLeft, keep: bool
    ) -> ForgetResult:
        letters = self._dead_letters.erase_dead_letters(
            lambda body: _is_of(conversation, body, at_ms), has_time=lambda: _has_time(time_left), keep=keep
        )
        return ForgetResult(erased.turns, erased.outboxes, letters.found, erased.finished and letters.finished)


def _has_time(time_left: TimeLeft) -> bool:
    return time_left() > MIN_TIME_TO_ERASE_MS


def _is_of(conversation: str, body: str, at_ms: int) -> bool:
    """Return whether the body is a batch of the conversation whose last message arrived at or before `at_ms`."""
    try:
        detail = json.loads(body)["detail"]
        return bool(detail["conversationId"] == conversation and detail["metadata"]["lastMessageAt"] <= at_ms)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
