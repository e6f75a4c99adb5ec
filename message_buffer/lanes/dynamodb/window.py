"""The window of a conversation: one item of the DynamoDB lane's table, with everything that decides when it is due.

Each typed message writes its facts into the item without reading it. A reader of the item computes the due time from
these facts, with the formula that both lanes share (`rules/due_time.py`). There are two exceptions:

- A due time stands if a run has found that it has come, or if the messages must leave at once. Later messages do not
  move it; a hold does.
- A press and a typing event depend on the due time before them. Their requests read the window and write the due time
  that they have computed. It counts until the next message.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from message_buffer.aws.dynamodb import Item, Values, number, text, texts
from message_buffer.lanes.holds import Hold, Holds, end_of
from message_buffer.limits import LARGE_MESSAGE_BYTES, MAX_BYTES_IN_A_BATCH
from message_buffer.rules.due_time import (
    Arrival,
    Due,
    Facts,
    Rhythm,
    arrival_of,
    due_after_hold,
    due_after_message,
    rhythm_after,
)
from message_buffer.rules.timing import RuleName, Timing

# The rhythm is stored in whole tenths of a millisecond.
TENTHS = 10


class Frozen(NamedTuple):
    """A frozen batch: neither its id nor its messages change."""

    batch_id: str
    names: tuple[str, ...]
    generation: int
    first_at_ms: int
    last_at_ms: int
    due_at_ms: int
    reason: str
    rule: RuleName
    wait_ms: int
    has_left: bool = False
    """True if messages were stored that are not in this batch."""


class Window(NamedTuple):
    """A conversation's state in this lane, and the lock that the DynamoDB processor needs to empty the window.

    The facts from `first_at_ms` to `timing` are those of the waiting messages that arrived since the last freeze.
    """

    is_open: bool = False
    """True while messages wait or a batch is being emitted."""
    generation: int = 0
    """Grows each time ingest delivers a message, even a repeated one, and with each cancel."""
    changes: int = 0
    """Grows when a stored message is edited or removed, and when the due time is changed by anything but a message. A
    run that finds this number changed must read the messages again."""
    waiting: int = 0
    """The number of stored messages that are not frozen."""
    large_bytes: int = 0
    """The bytes of those that are larger than 4 KiB."""
    first_at_ms: int = 0
    newest_at_ms: int = 0
    """When the newest message arrived."""
    previous_at_ms: int = 0
    """When the message before that one arrived; 0 if there is none."""
    timing: Timing | None = None
    """The rules of the newest typed message, or of a press if only presses have come."""
    computed: Due | None = None
    """The due time after a press into an open window, a typing event or an order to leave at once. It counts until the
    next message."""
    listed_at_ms: int = 0
    """The time under which the index of open windows lists the window: its due time, or an earlier time. For a frozen
    batch, the time of its next attempt."""
    found: Due | None = None
    """The due time that stands. None while messages move it."""
    successor_at_ms: int = 0
    """When the successor arrives that a trigger has left in the queue; 0 if there is none."""
    holds: Holds = ()
    owner: str = ""
    owner_until_ms: int = 0
    attempt: int = 0
    """How often the window has been locked since its batch was frozen."""
    frozen: Frozen | None = None
    last_at_ms: int = 0
    """When the newest message of all batches of this lane arrived."""
    rhythm: Rhythm | None = None
    """The author's rhythm up to the last batch."""

    @property
    def held_until_ms(self) -> int:
        return end_of(self.holds)

    @property
    def due(self) -> Due:
        """Return when a run may empty the window, and why: the next attempt of a frozen batch comes first."""
        if self.frozen is not None:
            return Due(self.listed_at_ms, self.frozen.reason, self.frozen.rule, self.frozen.wait_ms)
        return self.due_of_waiting

    @property
    def due_of_waiting(self) -> Due:
        """Return when the messages that are not frozen are due."""
        if self.found is None:
            # A hold that was over when the newest message arrived has no effect.
            is_held = self.held_until_ms > self.newest_at_ms
            return due_after_hold(self._due_by_messages(), self.held_until_ms if is_held else 0, self.last_arrival_ms)
        # A run that failed before it froze a batch has listed the window later than it was found due.
        return self.found._replace(due_at_ms=max(self.found.due_at_ms, self.listed_at_ms))

    @property
    def due_of_batch(self) -> Due:
        """Return the due time of the batch that a run freezes: as it was found, even if the run had to be repeated."""
        return self.found or self.due_of_waiting

    @property
    def last_arrival_ms(self) -> int:
        """Return the time that counts as the newest message's arrival, even if its host's clock lags."""
        return self._arrival.at_ms

    @property
    def _arrival(self) -> Arrival:
        return arrival_of(self.newest_at_ms, self.previous_at_ms or None)

    @property
    def has_facts(self) -> bool:
        return self.timing is not None

    def retimed(self, timing: Timing) -> "Window":
        """Return the window under other rules, by which its newest message counts as typed."""
        return self._replace(timing=timing, computed=None, changes=self.changes + 1)

    def due_after_press(self, note: "Note") -> Due:
        """Return when the waiting messages are due after one more, which is pressed."""
        pressed = self._replace(large_bytes=self.large_bytes + note.large_bytes)
        facts = pressed._facts(
            arrival_of(note.at_ms, self.newest_at_ms), message_count=self.waiting + 1, rhythm=self.rhythm
        )
        return due_after_message(facts._replace(due=self.due_of_waiting), note.timing, note.at_ms)

    def is_locked(self, now_ms: int) -> bool:
        return bool(self.owner) and self.owner_until_ms >= now_ms

    def _due_by_messages(self) -> Due:
        if self.computed is not None:
            return self.computed
        if self.timing is None:
            return Due(self.listed_at_ms, "silence", "silenceMs", 0)
        arrival = self._arrival
        # The gap before a window's first message began with the last message of the batch before it, if there was one.
        gap_ms = (
            arrival.gap_ms if self.previous_at_ms else arrival_of(self.newest_at_ms, self.last_at_ms or None).gap_ms
        )
        arrival = arrival._replace(gap_ms=gap_ms)
        count = max(self.waiting, 2 if self.previous_at_ms else 1)
        facts = self._facts(arrival, message_count=count, rhythm=rhythm_after(self.rhythm, gap_ms, self.timing))
        return due_after_message(facts, self.timing, arrival.at_ms)

    def _facts(self, arrival: Arrival, *, message_count: int, rhythm: Rhythm | None) -> Facts:
        return Facts(
            first_at_ms=min(self.first_at_ms or arrival.at_ms, arrival.at_ms),
            last_at_ms=arrival.at_ms,
            message_count=message_count,
            gap_ms=arrival.gap_ms,
            rhythm=rhythm,
            held_until_ms=self.held_until_ms,
            has_max_bytes=self.large_bytes >= MAX_BYTES_IN_A_BATCH,
        )


class Note(NamedTuple):
    """The facts of one delivery, which ingest writes into the window."""

    at_ms: int
    timing: Timing
    is_new: bool
    """False if the message was stored before. Then the delivery opens a closed window, but moves no due time."""
    size: int = 0
    """The message's bytes."""

    @property
    def large_bytes(self) -> int:
        return self.size if self.is_new and self.size > LARGE_MESSAGE_BYTES else 0

    @property
    def is_pressed(self) -> bool:
        return self.timing.pressed_ms is not None

    @property
    def listed_at_ms(self) -> int:
        """Return the earliest due time of a window that this message opens, whatever the window's item contains."""
        facts = Facts(self.at_ms, self.at_ms, 1)
        due_at_ms = due_after_message(facts, self.timing, self.at_ms).due_at_ms
        if self.timing.adaptive and not self.is_pressed:
            # The author's rhythm is in the item, which ingest has not read.
            _, floor_ms, _, _ = self.timing.adaptive.split()
            due_at_ms = min(due_at_ms, self.at_ms + int(floor_ms))
        return due_at_ms

    def in_window(self, before: Window) -> Window:
        """Return the window with this delivery, as `MessageTable.note` writes it, from the window before."""
        after = before._replace(
            is_open=True,
            generation=before.generation + 1,
            waiting=before.waiting + self.is_new,
            large_bytes=before.large_bytes + self.large_bytes,
            first_at_ms=before.first_at_ms or self.at_ms,
            listed_at_ms=before.listed_at_ms if before.is_open else self.listed_at_ms,
        )
        if not self.is_new:
            return after if before.has_facts else after._replace(newest_at_ms=self.at_ms, timing=self.timing)
        after = after._replace(newest_at_ms=self.at_ms, previous_at_ms=before.newest_at_ms)
        if self.is_pressed and before.is_open and before.has_facts:
            return after._replace(computed=before.due_after_press(self))
        return after._replace(timing=self.timing, computed=None)


def rhythm_of_batch(window: Window, arrivals: list[int]) -> Rhythm | None:
    """Return the author's rhythm after a batch whose messages arrived at these times, in this order."""
    rhythm, before_ms = window.rhythm, window.last_at_ms or None
    for at_ms in arrivals:
        if window.timing is not None:
            gap_ms = arrival_of(at_ms, before_ms).gap_ms
            rhythm = rhythm_after(rhythm, gap_ms, window.timing)
        before_ms = at_ms
    return rhythm


# Field -> attribute of the item.
_NUMBERS: Mapping[str, str] = {
    "generation": "generation",
    "changes": "changes",
    "waiting": "waiting",
    "large_bytes": "large",
    "first_at_ms": "first",
    "newest_at_ms": "last",
    "previous_at_ms": "prev",
    "listed_at_ms": "due_at",
    "successor_at_ms": "successor_at",
    "owner_until_ms": "owner_until",
    "attempt": "attempt",
    "last_at_ms": "last_at",
}
_TEXTS: Mapping[str, str] = {
    "owner": "owner",
}
WINDOW_ATTRIBUTES = (
    *_NUMBERS.values(), *_TEXTS.values(), "open", "frozen", "timing", "computed", "found", "gap_mean", "gap_dev",
    "holds",
)  # fmt: skip
# Attributes with the facts of waiting messages.
FACTS = "#first, #last, #prev, #timing, #computed, #successor_at"


def window_of(item: Item) -> Window:
    """Return the window that an item contains; an empty item is the window of an unknown conversation."""
    fields: dict[str, Any] = {field: number(item, name) for field, name in _NUMBERS.items()}
    fields |= {field: text(item, name) for field, name in _TEXTS.items()}
    rhythm = Rhythm(number(item, "gap_mean") / TENTHS, number(item, "gap_dev") / TENTHS) if "gap_mean" in item else None
    return Window(
        **fields,
        is_open="open" in item,
        timing=timing_in(text(item, "timing")),
        holds=tuple(Hold(*each) for each in json.loads(text(item, "holds") or "[]")),
        computed=_due(item["computed"]["M"]) if "computed" in item else None,
        found=_due(item["found"]["M"]) if "found" in item else None,
        frozen=_frozen(item["frozen"]["M"]) if "frozen" in item else None,
        rhythm=rhythm,
    )


def timing_text(timing: Timing) -> str:
    return json.dumps(timing, separators=(",", ":"))


def timing_in(stored: str) -> Timing | None:
    """Return the rules that an item contains, or None if there are none. Fields of a later version are left out."""
    try:
        return Timing(*json.loads(stored)[: len(Timing._fields)]) if stored else None
    except (ValueError, TypeError):
        return None  # after a person's edit


def holds_text(holds: Holds) -> str:
    return json.dumps(holds, separators=(",", ":"))


def due_item(due: Due) -> Values:
    return {"due_at": due.due_at_ms, "reason": due.reason, "rule": due.rule, "wait": due.wait_ms}


def _due(item: Item) -> Due:
    return Due(number(item, "due_at"), text(item, "reason"), cast(RuleName, text(item, "rule")), number(item, "wait"))


def frozen_item(frozen: Frozen) -> Values:
    fields = {name.removesuffix("_ms"): value for name, value in frozen._asdict().items()}
    return {**fields, "has_left": int(frozen.has_left)}


def _frozen(item: Item) -> Frozen:
    return Frozen(
        batch_id=text(item, "batch_id"),
        names=tuple(texts(item, "names")),
        generation=number(item, "generation"),
        first_at_ms=number(item, "first_at"),
        last_at_ms=number(item, "last_at"),
        due_at_ms=number(item, "due_at"),
        reason=text(item, "reason"),
        rule=cast(RuleName, text(item, "rule")),
        wait_ms=number(item, "wait"),
        has_left=bool(number(item, "has_left")),
    )
