"""Forgets a conversation, and runs operators' commands, for which `bufferctl` invokes the function."""

import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from lambdas.operations import Operation, Operations
from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.history import Turn
from lambdas.responder.tenant_settings import TenantSettingsTable, operations_of
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput
from message_buffer.events.dead_letters import DeadLetterQueue, Letter
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.telemetry import Telemetry

# A run that erases a conversation stops when it has only this much time left. The next run erases the rest.
MIN_TIME_TO_ERASE_MS = 10_000
# This is longer than the function may run, so that a run does not receive the same dead letter twice.
DEAD_LETTER_HIDDEN_SECONDS = 720
# A host of the buffer whose clock is ahead may send a time that is this far in the future.
MAX_CLOCK_AHEAD_MS = 60_000
MAX_OLDER_TURNS_IN_AN_ANSWER = 200
TimeLeft = Callable[[], int]


class ForgetResult(NamedTuple):
    turns: int
    outboxes: int
    dead_letters: int
    finished: bool
    """False if the caller must call again."""


class ResponderForgetting:
    def __init__(
        self,
        *,
        table: ConversationsTable,
        dead_letters: DeadLetterQueue,
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
        letters, finished = self._find_dead_letters(conversation, at_ms, time_left, erase=False)
        return ForgetResult(*self._table.count(conversation), letters, finished)

    def forget(self, conversation: str, *, at_ms: int, time_left: TimeLeft) -> ForgetResult:
        """Erase what arrived at or before `at_ms`: the record, turns, outboxes and dead letters."""
        owner, now_ms, is_erased = self._new_owner(), self._clock(), True
        turns, outboxes = self._table.count(conversation)
        until_ms = now_ms + self._lock_ms
        if not self._table.begin_to_forget(conversation, owner, at_ms=at_ms, now_ms=now_ms, until_ms=until_ms):
            turns = outboxes = 0
        elif self._table.erase(conversation, has_time=lambda: time_left() > MIN_TIME_TO_ERASE_MS):
            self._table.end_forget(conversation, owner)
        else:
            is_erased = False
        letters, finished = self._find_dead_letters(conversation, at_ms, time_left, erase=True)
        return ForgetResult(turns, outboxes, letters, is_erased and finished)

    def _find_dead_letters(
        self, conversation: str, at_ms: int, time_left: TimeLeft, *, erase: bool
    ) -> tuple[int, bool]:
        """Return (number of dead letters found, False if time ran out before the whole queue was read)."""
        found, others, finished = 0, list[Letter](), False
        while not finished and time_left() > MIN_TIME_TO_ERASE_MS:
            letters = self._dead_letters.receive(hidden_seconds=DEAD_LETTER_HIDDEN_SECONDS)
            finished = not letters
            for letter in letters:
                is_wanted = _is_of(conversation, letter.body, at_ms)
                found += is_wanted
                if is_wanted and erase:
                    self._dead_letters.delete(letter)
                else:
                    others.append(letter)
        self._dead_letters.give_back(others)
        return found, finished


def _is_of(conversation: str, body: str, at_ms: int) -> bool:
    """Return whether the body is a batch of the conversation whose last message arrived at or before `at_ms`."""
    try:
        detail = json.loads(body)["detail"]
        return bool(detail["conversationId"] == conversation and detail["metadata"]["lastMessageAt"] <= at_ms)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


class OperatorCommands:
    def __init__(
        self,
        *,
        table: ConversationsTable,
        forgetting: ResponderForgetting,
        telemetry: Telemetry,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._forgetting = forgetting
        self._telemetry = telemetry
        self._clock = clock

    def run(self, event: Json, *, request_id: str, time_left_ms: TimeLeft) -> Json:
        operations: dict[str, Operation] = {"history": self._history, "forget": partial(self._forget, time_left_ms)}
        operations |= operations_of(TenantSettingsTable(self._table.name))
        return Operations(operations, self._telemetry).answer(event, request_id=request_id)

    def _history(self, event: Json) -> Json:
        """Return the record's turns, preceded by up to `limit` older ones, with texts only if `texts` is true."""
        conversation = _conversation(event)
        record = self._table.read(conversation)
        if record is None:
            return {"status": None, "turns": [], "older": 0}
        limit = event.get("limit", 0)
        if type(limit) is not int or not 0 <= limit <= MAX_OLDER_TURNS_IN_AN_ANSWER:
            raise InvalidInput(f"limit must be a whole number from 0 to {MAX_OLDER_TURNS_IN_AN_ANSWER}.")
        older = self._table.older_turns(conversation, limit=limit, now_ms=self._clock()) if limit else []
        return {
            "status": record.status,
            "turns": [_shown(turn, texts=event.get("texts") is True) for turn in [*older, *record.turns]],
            "older": record.older_turn_count,
        }

    def _forget(self, time_left_ms: TimeLeft, event: Json) -> Json:
        """Erase what arrived at or before `at`, or only count it if `dryRun` is true."""
        dry_run, at_ms = event.get("dryRun") is True, event.get("at", self._clock())
        # With a time in the future, batches that arrive before it would be dropped unanswered.
        if type(at_ms) is not int or not 0 <= at_ms <= self._clock() + MAX_CLOCK_AHEAD_MS:
            raise InvalidInput("at must be a time in milliseconds that has passed.")
        act = self._forgetting.count if dry_run else self._forgetting.forget
        done = act(_conversation(event), at_ms=at_ms, time_left=time_left_ms)
        counts = {"turns": done.turns, "outboxes": done.outboxes, "replyDeadLetters": done.dead_letters}
        return {"counts": counts, "finished": done.finished}


def _conversation(event: Json) -> str:
    return str(parse_conversation_id(str(event.get("conversation"))))


def _shown(turn: Turn, *, texts: bool) -> Json:
    shown = {"at": turn.at_ms, "role": turn.role, "batchId": turn.batch_id}
    return shown | {"text": turn.text} if texts else shown
