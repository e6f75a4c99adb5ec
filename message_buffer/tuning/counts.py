"""Counts how long authors are silent before they go on, for the stage and by tenant, platform and agent.

The counts are numbers. They contain no conversation, and nothing that people wrote. An instance sums them, and writes
them at most once a minute, with a sample of the turns. What it has not written is lost when Lambda ends it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from threading import Lock
from typing import Any
from zlib import crc32

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import MessageBufferError
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import HOUR_MS, MINUTE_MS
from message_buffer.messages.conversation_id import escape_part, is_trial, parse_conversation_id
from message_buffer.telemetry import Telemetry
from message_buffer.tuning.curve import ASSUMED_REPLY_MS, BINS_MS, Counts, field, going_on
from message_buffer.tuning.tuning_table import STAGE, TuningTable
from message_buffer.tuning.turns import UNKNOWN, Gap, ended_turns

# A gap is watched for at most this long.
MAX_WATCHED_MS = BINS_MS[-1]
# An instance counts by at most this many scopes between two writes. The scope of the stage always has all batches.
MAX_SCOPES = 20
# An instance keeps at most this many turns of an hour. A write stores all of them, so it waits for a quarter more.
MAX_TURNS, MORE_TURNS = 1_000, 1.25
# The number of folds that conversations are divided into. A model is judged on other folds than those that trained it.
FOLDS = 50


class GapCounts:
    """Sums the counts of an instance. Threads may share it."""

    def __init__(self, table: TuningTable, telemetry: Telemetry, *, clock: Clock = system_clock) -> None:
        self._table = table
        self._telemetry = telemetry
        self._clock = clock
        self._sums: dict[str, Counter[str]] = {}
        self._turns: list[str] = []
        self._turns_written = self._hour = 0
        self._write_from_ms = 0
        self._lock = Lock()

    def add(self, conversation: str, taken: BatchTaken, messages: Sequence[Json], *, agent: str | None) -> str:
        """Count an emitted batch, unless it is a trial, a repeated attempt, or from several authors. Return the
        conversation's unfinished turn."""
        name = parse_conversation_id(conversation)
        if taken.attempt > 1 or is_trial(conversation) or _has_several_authors(name.user, messages):
            return ""
        gaps = gaps_of(taken, messages)
        counts, before = counts_of(taken, gaps), taken.tail or ("" if taken.previous_at_ms is None else UNKNOWN)
        if _wait_of(taken) is None:  # people may have answered these messages one by one
            gaps[1:] = [None] * len(gaps[1:])
        ended, turn = ended_turns(messages, gaps, before)
        fold, hour = crc32(conversation.encode()) % FOLDS, self._clock() // HOUR_MS
        with self._lock:
            if hour != self._hour:
                self._turns, self._turns_written, self._hour = [], 0, hour
            self._turns += [f"{fold} {each}" for each in ended[: MAX_TURNS - len(self._turns)]]
            scope = "/".join(map(escape_part, (name.tenant, name.platform, agent or "")))
            for each in (STAGE, scope):
                if each in self._sums or each == STAGE or len(self._sums) < MAX_SCOPES:
                    self._sums.setdefault(each, Counter()).update(counts)
        return turn

    def write(self, may_go_on: Callable[[], bool]) -> None:
        """Add the counts to the table, unless this instance has done so within the last minute.

        Counts that cannot be written are kept, turns are not. If the response to a write is lost, its counts are added
        twice.
        """
        now_ms = self._clock()
        with self._lock:
            if now_ms < self._write_from_ms or not self._sums:
                return
            self._write_from_ms = now_ms + MINUTE_MS
            sums, self._sums = self._sums, {}
            turns, hour = self._turns[:], self._hour
            if is_sample := len(turns) > self._turns_written * MORE_TURNS:
                self._turns_written = len(turns)
        while sums and may_go_on():
            scope = next(iter(sums))
            counts = sums.pop(scope)
            try:
                stored = self._table.add(scope, counts, now_ms=now_ms)
            except MessageBufferError as error:
                sums[scope] = counts  # as the last one, so that it does not keep the others from being written
                self._telemetry.warn("counts not written", reason=str(error))
                break
            if scope == STAGE:
                self._telemetry.count("GoingOnRate", round(100 * going_on(stored).share))
        with self._lock:
            for scope, counts in sums.items():
                self._sums.setdefault(scope, Counter()).update(counts)
        if is_sample and may_go_on():
            try:
                self._table.keep_turns(turns, hour=hour)
            except MessageBufferError as error:
                self._telemetry.warn("counts not written", reason=str(error))


def counts_of(taken: BatchTaken, gaps: Sequence[Gap | None]) -> Counts:
    """Return the counts of a batch: its wait, and the gaps before its messages."""
    counts = Counter({"batches": 1, "resolved": int(gaps[0] is not None)})
    if (wait_ms := _wait_of(taken)) is not None:
        counts.update({"waited_ms": wait_ms, field("e", wait_ms): 1})
    for gap in gaps:
        if gap and gap.goes_on(MAX_WATCHED_MS):
            counts[field("g", gap.ms)] += 1
        elif gap:
            counts[field("c", min(gap.watched_ms, MAX_WATCHED_MS))] += 1
    return counts


def gaps_of(taken: BatchTaken, messages: Sequence[Json]) -> list[Gap | None]:
    """Return the gap before each message, or None if it is not known."""
    # An edited message has the time of its edit, such as that of a voice note's transcript.
    arrivals = [inf if "editedAt" in message else message["receivedAt"] for message in messages]
    before_ms, replied_at_ms = taken.previous_at_ms, taken.replied_at_ms or 0
    if before_ms is not None and taken.replied_at_ms is None:
        # The emission of the batch before is not stored, so assume that it waited as long as this one.
        replied_at_ms = before_ms + (_wait_of(taken) or 0) + ASSUMED_REPLY_MS

    def gap(a: float, b: float) -> Gap:
        # The reply to the batch before may also come between two messages of this one.
        return Gap(b - a, replied_at_ms - a if replied_at_ms > a else inf)

    inside = [gap(a, b) if a <= b <= taken.last_at_ms else None for a, b in pairwise(arrivals)]
    # The later parts of a split batch begin with the first message of the whole batch.
    if before_ms is None or taken.first_at_ms <= before_ms:
        return [None, *inside]
    return [gap(before_ms, taken.first_at_ms), *inside]


def _wait_of(taken: BatchTaken) -> int | None:
    """Return how long the rules let the batch wait after its last message, or None if it was on hold."""
    return None if taken.rule in ("hold", "resume") else max(taken.applied_wait_ms, 0)


def _has_several_authors(user: str, messages: Sequence[Json]) -> bool:
    """Return whether a group shares the conversation. The user's part of an author in a group contains a slash."""
    chat: Any = messages[0].get("chat")
    return len({message.get("author") for message in messages}) > 1 or (bool(chat) and "/" not in user)
