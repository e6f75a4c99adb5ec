"""The window of a conversation: one item of the DynamoDB lane's table, with everything that decides when the window is
due.

Ingest writes the facts of each typed message into the item without reading the item. A reader of the item computes the
due time from these facts, with the formula that both lanes share (`rules/due_time.py`). There are two exceptions:

- A due time is fixed once a run has found the window due, or if the batch must be emitted at once. Later messages do
  not move a fixed due time, but a hold does.
- After a press or a typing event, the new due time depends on the due time before it. Ingest reads the window, computes
  the new due time and writes it. This due time is valid until the next message.
"""

import json
from typing import Any, NamedTuple, TypeVar

from message_buffer.aws.dynamodb import Item, Values, number, text, texts
from message_buffer.lanes.holds import Hold, Holds, end_of
from message_buffer.limits import LARGE_MESSAGE_BYTES, MAX_BYTES_IN_A_BATCH
from message_buffer.rules.due_time import Due, Facts, arrival_of, due_after_hold, due_after_message
from message_buffer.rules.timing import Timing

T = TypeVar("T", Due, Timing)


class FrozenBatch(NamedTuple):
    """A batch whose id and messages no longer change."""

    batch_id: str
    names: tuple[str, ...]
    generation: int
    first_at_ms: int
    last_at_ms: int
    due: Due
    has_more: bool = False
    """True if some of the messages that were stored at the freeze did not fit into this batch."""
    previous_at_ms: int = 0
    """When the newest message of the batch before this one arrived; 0 if that is not known."""
    replied_at_ms: int = 0
    """When the first reply since then was sent, or an earlier time if none was; 0 if no reply was ever noted."""


class Lock(NamedTuple):
    owner: str = ""
    until_ms: int = 0


class Window(NamedTuple):
    """A conversation's state in this lane. To empty the window, the DynamoDB processor must first acquire its lock.

    The fields from `first_at_ms` to `timing` describe the waiting messages that arrived since the last freeze.
    """

    generation: int = 0
    """Grows with each message that ingest receives, even a repeated one, and with each cancel."""
    changes: int = 0
    """Grows when a stored message is edited or removed, and when anything but a message changes the due time. A run
    that has read the messages before must then read them again."""
    waiting: int = 0
    """The number of stored messages that are in no frozen batch."""
    large_bytes: int = 0
    """The total size of those waiting messages that are larger than 4 KiB."""
    first_at_ms: int = 0
    newest_at_ms: int = 0
    """When the newest message arrived."""
    previous_at_ms: int = 0
    """When the second newest message arrived; 0 if there is none."""
    timing: Timing | None = None
    """The rules of the newest typed message, or of a press if only presses have arrived."""
    computed: Due | None = None
    """The due time after a press, a typing event, or a command to emit at once. The next message replaces it."""
    listed_at_ms: int = 0
    """The time under which the index lists the open window: the due time or an earlier time, or, if a batch is frozen,
    the time of its next attempt. 0 if the window is closed."""
    found: Due | None = None
    """The due time, if it is fixed. None if messages can still move it."""
    successor_at_ms: int = 0
    """When the new trigger arrives with which a run has replaced the window's trigger; 0 if it has replaced none."""
    holds: Holds = ()
    lock: Lock = Lock()
    attempt: int = 0
    """How many runs have locked the window since its batch was frozen."""
    frozen: FrozenBatch | None = None
    last_at_ms: int = 0
    """When the newest message of the conversation's frozen and emitted batches arrived in this lane."""
    replied_at_ms: int = 0
    """When a reply was sent: the first one since `last_at_ms`, or an earlier one."""
    noted: str = ""
    """The id of the newest message's note."""
    tail: str = ""
    """The turn that the next batch may go on with (`tuning/turns.py`)."""

    @property
    def is_open(self) -> bool:
        """Return whether messages wait or a batch is being emitted."""
        return self.listed_at_ms > 0

    @property
    def held_until_ms(self) -> int:
        return end_of(self.holds)

    @property
    def due(self) -> Due:
        """Return when a run may empty the window, and why. For a frozen batch, that is the time of its next attempt."""
        if self.frozen is not None:
            return self.frozen.due._replace(due_at_ms=self.listed_at_ms)
        return self.due_of_waiting

    @property
    def due_of_waiting(self) -> Due:
        """Return the due time of the messages that are not frozen, with its reason."""
        if self.found is None:
            # A hold that ended before the newest message arrived has no effect.
            is_held = self.held_until_ms > self.newest_at_ms
            due = self.computed or self.due_by(self.timing)
            return due_after_hold(due, self.held_until_ms if is_held else 0, self.last_arrival_ms)
        # A run that fails before it has frozen a batch lists the window under a later time. The window is not due again
        # before that time.
        return self.found._replace(due_at_ms=max(self.found.due_at_ms, self.listed_at_ms))

    @property
    def due_of_batch(self) -> Due:
        """Return the due time for a batch that is frozen now, which may be fixed since an earlier run."""
        return self.found or self.due_of_waiting

    @property
    def last_arrival_ms(self) -> int:
        """Return the time that counts as the newest message's arrival, also if its host's clock lagged."""
        return arrival_of(self.newest_at_ms, self.previous_at_ms or None).at_ms

    def is_locked(self, now_ms: int) -> bool:
        return self.lock.until_ms >= now_ms

    def due_by(self, timing: Timing | None, *, before: Due | None = None) -> Due:
        """Return when the waiting messages are due by these rules. `before` is the due time before a press."""
        if timing is None:
            return Due(self.listed_at_ms, "silence", "silenceMs", 0)
        at_ms = self.last_arrival_ms
        # Measure the gap before a window's first message from the last message of the previous batch, if there was one.
        gap_ms = arrival_of(self.newest_at_ms, self.previous_at_ms or self.last_at_ms or None).gap_ms
        facts = Facts(
            first_at_ms=min(self.first_at_ms or at_ms, at_ms),
            last_at_ms=at_ms,
            message_count=max(self.waiting, 2 if self.previous_at_ms else 1),
            gap_ms=gap_ms,
            held_until_ms=self.held_until_ms,
            has_max_bytes=self.large_bytes >= MAX_BYTES_IN_A_BATCH,
            due=before,
        )
        return due_after_message(facts, timing, self.newest_at_ms)


class Note(NamedTuple):
    """The facts of one delivery, which ingest writes into the window."""

    at_ms: int
    timing: Timing
    is_new: bool
    """False if the message was stored before. Such a note opens a closed window, but moves no due time."""
    id: str
    size: int = 0
    """The message's size in bytes."""

    @property
    def large_bytes(self) -> int:
        return self.size if self.is_new and self.size > LARGE_MESSAGE_BYTES else 0

    @property
    def is_pressed(self) -> bool:
        return self.timing.pressed_ms is not None

    @property
    def listed_at_ms(self) -> int:
        """Return the earliest time at which a window that this message opens can be due, whatever its item contains."""
        # The learned wait depends on the gap, which is not known here.
        ways = (Facts(self.at_ms, self.at_ms, 1, gap_ms) for gap_ms in (None, 0))
        return min(due_after_message(facts, self.timing, self.at_ms).due_at_ms for facts in ways)

    def in_window(self, before: Window) -> Window:
        """Return the window that results when `Windows.note` writes this note into the window `before`."""
        after = before._replace(
            generation=before.generation + 1,
            waiting=before.waiting + self.is_new,
            large_bytes=before.large_bytes + self.large_bytes,
            first_at_ms=before.first_at_ms or self.at_ms,
            listed_at_ms=before.listed_at_ms if before.is_open else self.listed_at_ms,
        )
        if not self.is_new:
            return after if before.timing else after._replace(newest_at_ms=self.at_ms, timing=self.timing)
        after = after._replace(newest_at_ms=self.at_ms, previous_at_ms=before.newest_at_ms, noted=self.id)
        if self.is_pressed and before.is_open and before.timing:
            return after._replace(computed=after.due_by(self.timing, before=before.due_of_waiting))
        return after._replace(timing=self.timing, computed=None)


# Field -> attribute of the item.
_NUMBERS = {
    "generation": "generation", "changes": "changes", "waiting": "waiting", "large_bytes": "large",
    "first_at_ms": "first", "newest_at_ms": "last", "previous_at_ms": "prev", "listed_at_ms": "due_at",
    "successor_at_ms": "successor_at", "attempt": "attempt", "last_at_ms": "last_at",
    "replied_at_ms": "replied_at",
}  # fmt: skip
WINDOW_ATTRIBUTES = (
    *_NUMBERS.values(), "open", "owner", "owner_until", "frozen", "timing", "computed", "found", "holds", "tail",
)  # fmt: skip
# The attributes that contain the facts of waiting messages.
FACTS = "#first, #last, #prev, #timing, #computed, #successor_at"
# The update expression that closes a window. The item expires later, but not while it has a hand-off mark, which may
# last for years: `longer` is the time that was left of the holds and the mark when they were set.
CLOSE = (
    "SET #tail = :tail, #waiting = :none, #large = :none, #expires_at = :expires + if_not_exists(#longer, :none)"
    f" REMOVE #open, #due_at, #frozen, #owner, #owner_until, #attempt, #found, {FACTS}"
)


def window_of(item: Item) -> Window:
    """Return the window that an item contains; an empty item is the window of an unknown conversation."""
    numbers: dict[str, Any] = {field: number(item, name) for field, name in _NUMBERS.items()}
    return Window(
        **numbers,
        timing=_unpacked(Timing, text(item, "timing")),
        computed=_unpacked(Due, text(item, "computed")),
        found=_unpacked(Due, text(item, "found")),
        holds=tuple(Hold(*each) for each in json.loads(text(item, "holds") or "[]")),
        lock=Lock(text(item, "owner"), number(item, "owner_until")),
        frozen=_frozen(item["frozen"]["M"]) if "frozen" in item else None,
        noted=text(item, "noted"),
        tail=text(item, "tail"),
    )


def packed(fields: tuple[object, ...]) -> str:
    """Return the text that stores these fields in an item."""
    return json.dumps(fields, separators=(",", ":"))


def _unpacked(kind: type[T], stored: str) -> T | None:
    """Return the fields in a text of `packed`, without those of a later version, or None if the text is empty."""
    try:
        return kind(*json.loads(stored)[: len(kind._fields)]) if stored else None
    except (ValueError, TypeError):
        return None  # after an edit by hand


def frozen_item(frozen: FrozenBatch) -> Values:
    """Return the attribute that stores a frozen batch. A condition can search its list of names."""
    return {"names": frozen.names, "batch": packed(frozen._replace(names=()))}


def _frozen(item: Item) -> FrozenBatch:
    frozen = FrozenBatch(*json.loads(text(item, "batch"))[: len(FrozenBatch._fields)])
    return frozen._replace(names=tuple(texts(item, "names")), due=Due(*frozen.due))
