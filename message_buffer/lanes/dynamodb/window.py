"""The window of a conversation: one item of the DynamoDB lane's table, with everything that decides when it is due.

Each message writes its facts into the item without reading it. A reader of the item computes the due time from these
facts, with the formula that both lanes share (`rules/due_time.py`). There is one exception. A due time stands if a run
has found that it has come, or if the messages must leave at once. Later messages do not move it.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from message_buffer.aws.dynamodb import Item, Values, number, text, texts
from message_buffer.limits import LARGE_MESSAGE_BYTES, MAX_BYTES_IN_A_BATCH
from message_buffer.rules.due_time import (
    Due,
    Facts,
    Rhythm,
    arrival_of,
    due_after_hold,
    due_after_message,
    rhythm_after,
)
from message_buffer.rules.timing import Timing

# The reason of a window that only waits until Valkey has answered whether its messages were emitted.
DISPUTED = "disputed"
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
    has_left: bool | None = None
    """True if messages were stored that are not in this batch. None if an older version has frozen the batch."""


class Window(NamedTuple):
    """A conversation's state in this lane, and the lock that the DynamoDB processor needs to empty the window.

    The facts from `first_at_ms` to `timing` are those of the waiting messages that arrived since the last freeze.
    """

    is_open: bool = False
    """True while messages wait or a batch is being emitted."""
    generation: int = 0
    """Grows each time ingest delivers a message, even a repeated one, and with each cancel."""
    changes: int = 0
    """Grows when a stored message is edited or removed, when the due time is changed by anything but a message, and
    when the Valkey lane takes a batch. A run that finds this number changed must read the messages again."""
    waiting: int = 0
    """The number of stored messages that are not frozen."""
    large_bytes: int = 0
    """The bytes of those that are larger than 4 KiB."""
    first_at_ms: int = 0
    newest_at_ms: int = 0
    """When the newest typed message arrived."""
    previous_at_ms: int = 0
    """When the typed message before that one arrived; 0 if there is none."""
    timing: Timing | None = None
    """The rules of the newest typed message."""
    pressed_at_ms: int = 0
    """When the newest pressed message arrived."""
    pressed: Timing | None = None
    """The rules of the newest pressed message."""
    extended_until_ms: int = 0
    """The due time that typing has asked for since the newest message; 0 if it has not."""
    listed_at_ms: int = 0
    """The time under which the index of open windows lists the window: its due time, or an earlier time. For a frozen
    batch, the time of its next attempt."""
    found_at_ms: int = 0
    """The due time that stands, if there is a `reason`. 0 in an older version's item, whose `listed_at_ms` stands."""
    reason: str = ""
    """Why the due time stands. Empty while messages move it."""
    successor_at_ms: int = 0
    """When the successor arrives that a trigger has left in the queue; 0 if there is none."""
    held_until_ms: int = 0
    owner: str = ""
    owner_until_ms: int = 0
    attempt: int = 0
    """How often the window has been locked since its batch was frozen."""
    frozen: Frozen | None = None
    id_secret: str = ""
    """The key with which names are hashed; empty if the conversation was never forgotten."""
    forget_id: str = ""
    """The id of the last `forget_conversation`, which erased what had arrived until `forgotten_at_ms`."""
    forgotten_at_ms: int = 0
    last_at_ms: int = 0
    """When the newest message of all batches of this lane arrived."""
    rhythm: Rhythm | None = None
    """The author's rhythm up to the last batch."""

    @property
    def due(self) -> Due:
        """Return when a run may empty the window, and why: the next attempt of a frozen batch comes first."""
        if self.frozen is not None:
            return Due(self.listed_at_ms, self.frozen.reason)
        return self.due_of_waiting

    @property
    def due_of_waiting(self) -> Due:
        """Return when the messages that are not frozen are due."""
        return due_after_hold(self._due_without_hold(), self.held_until_ms)

    @property
    def due_of_batch(self) -> Due:
        """Return the due time of the batch that a run freezes: as it was found, even if the run had to be repeated."""
        if self.reason and self.found_at_ms and not (self.reason == DISPUTED and self.has_facts):
            return due_after_hold(Due(self.found_at_ms, self.reason), self.held_until_ms)
        return self.due_of_waiting

    @property
    def is_disputed(self) -> bool:
        """Return whether the window waits for nothing but Valkey's answer."""
        return self.reason == DISPUTED and not self.has_facts

    @property
    def has_facts(self) -> bool:
        return self.timing is not None or self.pressed is not None

    def without_facts(self) -> "Window":
        """Return the window as it was when no message waited."""
        return self._replace(
            large_bytes=0,
            first_at_ms=0,
            newest_at_ms=0,
            previous_at_ms=0,
            timing=None,
            pressed_at_ms=0,
            pressed=None,
            extended_until_ms=0,
            found_at_ms=0,
            reason="",
            successor_at_ms=0,
        )

    def retimed(self, timing: Timing) -> "Window":
        """Return the window under other rules, by which its newest message counts as typed."""
        return self._replace(
            timing=timing,
            newest_at_ms=max(self.newest_at_ms, self.pressed_at_ms),
            previous_at_ms=self._before_newest_ms,
            extended_until_ms=0,
            pressed_at_ms=0,
            pressed=None,
            changes=self.changes + 1,
        )

    def is_locked(self, now_ms: int) -> bool:
        return bool(self.owner) and self.owner_until_ms >= now_ms

    @property
    def _before_newest_ms(self) -> int:
        """Return when the message before the newest arrived; 0 if there is none."""
        if self.pressed_at_ms > self.newest_at_ms:
            return self.newest_at_ms
        return max(self.previous_at_ms, self.pressed_at_ms)

    def _due_without_hold(self) -> Due:
        if self.reason and not (self.reason == DISPUTED and self.has_facts):
            # A run that failed before it froze a batch has listed the window later than it was found due.
            return Due(max(self.found_at_ms, self.listed_at_ms), self.reason)
        due = self._due_by_messages()
        if due is None:
            return Due(self.listed_at_ms, "silence")
        newest = self.timing or self.pressed
        latest_at_ms = self.first_at_ms + (newest.max_wait_ms if newest else 0)
        extended_ms = min(self.extended_until_ms, latest_at_ms)
        if extended_ms <= due.due_at_ms:
            return due
        return Due(extended_ms, "max_wait" if extended_ms == latest_at_ms else "silence")

    def _due_by_messages(self) -> Due | None:
        typed = None
        if self.timing is not None:
            # A press may have come between the last two typed messages.
            pressed_before = self.pressed_at_ms if self.pressed_at_ms <= self.newest_at_ms else 0
            typed = self._due_after(self.newest_at_ms, max(self.previous_at_ms, pressed_before), self.timing, None)
        if self.pressed is None or self.pressed_at_ms < self.newest_at_ms:
            return typed
        return self._due_after(self.pressed_at_ms, self.newest_at_ms, self.pressed, typed)

    def _due_after(self, arrived_ms: int, before_ms: int, timing: Timing, standing: Due | None) -> Due:
        arrival = arrival_of(arrived_ms, before_ms or None)
        # The gap before a window's first message began with the last message of the batch before it, if there was one.
        gap_ms = arrival.gap_ms if before_ms else arrival_of(arrived_ms, self.last_at_ms or None).gap_ms
        facts = Facts(
            first_at_ms=min(self.first_at_ms or arrival.at_ms, arrival.at_ms),
            last_at_ms=arrival.at_ms,
            message_count=max(self.waiting, 2 if before_ms else 1),
            gap_ms=gap_ms,
            rhythm=rhythm_after(self.rhythm, gap_ms, timing),
            held_until_ms=self.held_until_ms,
            has_max_bytes=self.large_bytes >= MAX_BYTES_IN_A_BATCH,
            due=standing,
        )
        return due_after_message(facts, timing, arrival.at_ms)


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
            _, floor_ms, _ = self.timing.adaptive.split()
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
        if self.is_new:
            after = after._replace(extended_until_ms=0)
        if self.is_pressed:
            if self.is_new or before.pressed is None:
                after = after._replace(pressed_at_ms=self.at_ms, pressed=self.timing)
        elif self.is_new:
            after = after._replace(newest_at_ms=self.at_ms, previous_at_ms=before.newest_at_ms, timing=self.timing)
        elif before.timing is None:
            after = after._replace(newest_at_ms=self.at_ms, timing=self.timing)
        return after


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
    "pressed_at_ms": "pressed_at",
    "extended_until_ms": "extended_until",
    "listed_at_ms": "due_at",
    "found_at_ms": "found_at",
    "successor_at_ms": "successor_at",
    "held_until_ms": "held_until",
    "owner_until_ms": "owner_until",
    "attempt": "attempt",
    "forgotten_at_ms": "forgotten_at",
    "last_at_ms": "last_at",
}
_TEXTS: Mapping[str, str] = {
    "reason": "reason",
    "owner": "owner",
    "id_secret": "id_secret",
    "forget_id": "forget_id",
}
WINDOW_ATTRIBUTES = (
    *_NUMBERS.values(), *_TEXTS.values(), "open", "frozen", "timing", "pressed", "gap_mean", "gap_dev",
)  # fmt: skip
# Attributes with the facts of waiting messages.
FACTS = "#first, #last, #prev, #timing, #pressed_at, #pressed, #extended_until, #found_at, #reason, #successor_at"


def window_of(item: Item) -> Window:
    """Return the window that an item contains; an empty item is the window of an unknown conversation."""
    fields: dict[str, Any] = {field: number(item, name) for field, name in _NUMBERS.items()}
    fields |= {field: text(item, name) for field, name in _TEXTS.items()}
    rhythm = Rhythm(number(item, "gap_mean") / TENTHS, number(item, "gap_dev") / TENTHS) if "gap_mean" in item else None
    return Window(
        **fields,
        is_open="open" in item,
        timing=timing_in(text(item, "timing")),
        pressed=timing_in(text(item, "pressed")),
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


def frozen_item(frozen: Frozen) -> Values:
    fields = {name.removesuffix("_ms"): value for name, value in frozen._asdict().items()}
    return {**fields, "has_left": int(bool(frozen.has_left))}


def _frozen(item: Item) -> Frozen:
    return Frozen(
        batch_id=text(item, "batch_id"),
        names=tuple(texts(item, "names")),
        generation=number(item, "generation"),
        first_at_ms=number(item, "first_at"),
        last_at_ms=number(item, "last_at"),
        due_at_ms=number(item, "due_at"),
        reason=text(item, "reason"),
        has_left=bool(number(item, "has_left")) if "has_left" in item else None,
    )
