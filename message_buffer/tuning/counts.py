"""Counts how long authors are silent before they go on.

The counts are numbers by tenant, platform and agent. They contain no conversation, and nothing that people wrote. An
instance sums them, and writes them at most once a minute. What it has not written when Lambda ends it is lost.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from threading import Lock
from typing import Any

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import MessageBufferError
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import MINUTE_MS
from message_buffer.messages.conversation_id import is_trial, parse_conversation_id
from message_buffer.telemetry import Telemetry
from message_buffer.tuning.curve import BINS_MS, Counts, field, going_on
from message_buffer.tuning.tuning_table import STAGE, TuningTable, scope_of

# A gap is watched for at most this long.
MAX_GAP_MS = BINS_MS[-1]
# A write updates at most this many scopes, those that have waited longest. The others wait for the next write.
MAX_SCOPES_IN_A_WRITE = 20
# The batches of further scopes are counted only in those of the stage.
MAX_SCOPES_IN_AN_INSTANCE = 1_000


class GapCounts:
    """Sums the counts of an instance. Threads may share it."""

    def __init__(
        self, table: TuningTable, telemetry: Telemetry, *, assumed_reply_ms: int | None, clock: Clock = system_clock
    ) -> None:
        self._table = table
        self._telemetry = telemetry
        self._assumed_reply_ms = assumed_reply_ms
        self._clock = clock
        self._sums: dict[str, Counter[str]] = {}
        self._write_from_ms = 0
        self._lock = Lock()

    def add(self, conversation: str, taken: BatchTaken, messages: Sequence[Json], *, agent: str | None) -> None:
        """Count an emitted batch, unless it is a trial, a repeated attempt, or from several authors."""
        name = parse_conversation_id(conversation)
        if taken.attempt > 1 or is_trial(conversation) or _has_several_authors(name.user, messages):
            return
        arrivals = [message["receivedAt"] for message in messages]
        counts = counts_of(taken, arrivals, assumed_reply_ms=self._assumed_reply_ms)
        with self._lock:
            for scope in (STAGE, scope_of(name.tenant, name.platform, agent)):
                if scope in self._sums or len(self._sums) < MAX_SCOPES_IN_AN_INSTANCE:
                    self._sums.setdefault(scope, Counter()).update(counts)

    def write(self, may_go_on: Callable[[], bool]) -> None:
        """Add the counts to the table, unless this instance has done so within the last minute.

        Counts that cannot be written are kept. If the response to a write is lost, its counts are added twice.
        """
        now_ms = self._clock()
        with self._lock:
            if now_ms < self._write_from_ms or not self._sums:
                return
            self._write_from_ms = now_ms + MINUTE_MS
            scopes = list(islice(self._sums, MAX_SCOPES_IN_A_WRITE))
        for scope in scopes:
            if not may_go_on():
                return
            with self._lock:
                counts = self._sums.pop(scope)
            try:
                sums = self._table.add(scope, counts, now_ms=now_ms)
            except MessageBufferError as error:
                with self._lock:
                    self._sums.setdefault(scope, Counter()).update(counts)
                self._telemetry.warn("counts not written", reason=str(error))
                return
            if scope == STAGE:
                self._telemetry.measure_percent("GoingOnRate", 100 * going_on(sums).share)


def counts_of(taken: BatchTaken, arrivals: Sequence[int], *, assumed_reply_ms: int | None) -> Counts:
    """Return the counts of a batch whose messages arrived at these times: its wait, the gaps between its messages, and
    the gap between the batch before and this one."""
    wait_ms = max(taken.applied_wait_ms, 0)
    counts = Counter({"batches": 1, "waited_ms": wait_ms, field("e", wait_ms): 1})
    for earlier_ms, later_ms in pairwise(arrivals):
        counts[_gap(later_ms - earlier_ms)] += 1
    before_ms = taken.previous_at_ms
    # The later parts of a split batch begin with the first message of the whole batch.
    if before_ms is not None and taken.first_at_ms > before_ms:
        watched_ms = MAX_GAP_MS + 1
        if taken.replied_at_ms is None and assumed_reply_ms is not None:
            # Nobody has noted when the batch before was emitted, so assume that it waited as long as this one.
            watched_ms = wait_ms + assumed_reply_ms
        elif taken.replied_at_ms is not None and taken.replied_at_ms > before_ms:
            watched_ms = taken.replied_at_ms - before_ms
        counts[_gap(taken.first_at_ms - before_ms, watched_ms=watched_ms)] += 1
        counts["resolved"] += 1
    return counts


def _gap(gap_ms: int, *, watched_ms: int = MAX_GAP_MS + 1) -> str:
    """Return the counter of a gap, which is censored if it did not end while it was watched."""
    if gap_ms <= MAX_GAP_MS and gap_ms < watched_ms:
        return field("g", gap_ms)
    return field("c", min(watched_ms, MAX_GAP_MS))


def _has_several_authors(user: str, messages: Sequence[Json]) -> bool:
    """Return whether a group shares the conversation. The user's part of an author in a group contains a slash."""
    chat: Any = messages[0].get("chat")
    return len({message.get("author") for message in messages}) > 1 or (bool(chat) and "/" not in user)
