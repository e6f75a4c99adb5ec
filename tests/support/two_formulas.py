"""Random histories of one conversation, played on the scripts in Valkey and on the formula in Python."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType

from message_buffer.lanes.holds import Holder
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import MINUTE_MS
from message_buffer.rules import due_time
from message_buffer.rules.due_time import Due, Facts
from message_buffer.rules.learned import GAP_EDGES_MS, MAX_GAP_MS, PLACES
from message_buffer.rules.timing import Timing
from tests.support import script_model
from tests.support.engine import SETTINGS as STAGE_SETTINGS
from tests.support.engine import Engine, payload

LARGE_BYTES = 5_000
# Two large messages fill a batch exactly.
SETTINGS = STAGE_SETTINGS._replace(max_batch_bytes=2 * LARGE_BYTES)
STEPS = 40
SKEWS_MS = (*[0] * 14, 3, -3, MINUTE_MS, -MINUTE_MS, -MINUTE_MS - 1, -MINUTE_MS + 1)
NAME = "c"
HOLDERS: tuple[Holder, ...] = ("people", "consumers")


class TwoFormulas:
    """One conversation, in Valkey and by the formula. `check` fails if they differ."""

    def __init__(self, engine: Engine, rng: Random, *, formula: ModuleType = due_time) -> None:
        self.engine, self.store = engine, engine.another_store(SETTINGS)
        self.rng, self.formula = rng, formula
        self.log: list[str] = []
        self.first_at_ms = 0
        self.last_at_ms: int | None = None
        self.due: Due | None = None  # None if nothing waits
        self.waiting: list[str] = []
        self.large_bytes = 0
        self.holds: dict[Holder, int] = {}
        self.held_until_ms = 0
        self.sent = 0
        self.is_frozen = False
        self.timing = draw_timing(rng, None)

    def play(self) -> None:
        steps = (
            [self.message] * 6 + [self.new_rules] * 4 + [self.retime] * 3 + [self.typing, self.hold, self.resume] * 2
            + [self.flush, self.delete, self.take, self.complete]
        )  # fmt: skip
        for _ in range(STEPS):
            self._let_time_pass()
            with self._host():
                self._chosen(steps)()
            self.check()

    def _chosen(self, steps: list[Callable[[], None]]) -> Callable[[], None]:
        """Return the next step. What is due is often taken, because otherwise most buffers would be due."""
        if self.rng.random() < 0.5:
            if self.now_ms == self.held_until_ms:
                return self.resume
            if self.is_frozen:
                return self.complete
            if self.due is not None and self.due.due_at_ms <= self.now_ms:
                return self.take
        return self.rng.choice(steps)

    def check(self) -> None:
        line = self.engine.admin.hget("{b0}:open", NAME)
        found = None if line is None else (int(line[26:39]), *line[50:].decode().split())
        expected = (
            None if self.due is None else (self.due.due_at_ms, self.due.reason, self.due.rule, str(self.due.wait_ms))
        )
        assert found == expected, "\n".join([f"the script says {found}; the formula says {self.due}", *self.log])

    # -- time --------------------------------------------------------------------------------------------------

    def _let_time_pass(self) -> None:
        """Move the clock by a random amount, or to just before, at or just after a time at which something changes."""
        now_ms, edges = self.engine.clock.now_ms, [self.held_until_ms]
        if self.due is not None:
            edges.append(self.due.due_at_ms)
        if self.last_at_ms is not None and self.timing.learned:
            edges += [self.last_at_ms + each for each in (*GAP_EDGES_MS, MAX_GAP_MS)]
        later = [edge + off for edge in edges for off in (-1, 0, 1) if 0 <= edge + off - now_ms <= 5_000]
        if later and self.rng.random() < 0.3:
            self.engine.clock.now_ms = self.rng.choice(later)
        else:
            self.engine.clock.advance(self.rng.choice((0, 1, 30, 120, 300, 700, self.rng.randint(0, 3_000))))

    @contextmanager
    def _host(self) -> Iterator[None]:
        """Make a step on a host whose clock may be off."""
        true_now_ms = self.engine.clock.now_ms
        self.engine.clock.advance(self.rng.choice(SKEWS_MS))
        yield
        self.engine.clock.now_ms = true_now_ms

    @property
    def now_ms(self) -> int:
        return self.engine.clock.now_ms

    @property
    def _known_last_at_ms(self) -> int:
        assert self.last_at_ms is not None
        return self.last_at_ms

    def _note(self, text: str) -> None:
        self.log.append(f"at {self.now_ms}: {text}")

    # -- steps -------------------------------------------------------------------------------------------------

    def new_rules(self) -> None:
        self.timing = draw_timing(self.rng, self.now_ms - (self.last_at_ms or 0))
        self.message()

    def message(self) -> None:
        if not self.waiting:
            self.large_bytes = 0
        self.sent += 1
        message_id, timing = f"m{self.sent}", self.timing
        if self.rng.random() < 0.25:
            timing = timing._replace(pressed_ms=self.rng.choice((0, 150, 900, 4_000)))
        body = payload(message_id)
        if self.rng.random() < 0.15:
            body += b" " * (LARGE_BYTES - len(body))
        self._note(f"{timing}, {len(body)} bytes")
        self.store.buffer_message(NAME, message_id, payload=body, timing=timing)
        self._learn_of(message_id, len(body), timing)

    def _learn_of(self, message_id: str, size: int, timing: Timing) -> None:
        self.last_at_ms, gap_ms = self.formula.arrival_of(self.now_ms, self.last_at_ms)
        if not self.waiting:
            self.first_at_ms = self.last_at_ms
        self.waiting.append(message_id)
        is_large = size > 4_096
        self.large_bytes += size * is_large
        has_max_bytes = is_large and self.large_bytes >= SETTINGS.max_batch_bytes
        facts = self._facts()._replace(gap_ms=gap_ms, has_max_bytes=has_max_bytes)
        self.due = self.formula.due_after_message(facts, timing, self.now_ms)

    def _facts(self) -> Facts:
        return Facts(
            self.first_at_ms, self._known_last_at_ms, len(self.waiting),
            held_until_ms=self.held_until_ms, due=self.due,
        )  # fmt: skip

    def retime(self) -> None:
        mean_gap_ms = None if self.due is None else script_model.mean_gap_of(self._facts())
        self.timing = draw_timing(self.rng, None if mean_gap_ms is None else int(mean_gap_ms))
        self._note(f"retime by {self.timing}")
        self.store.retime_buffer(NAME, timing=self.timing)
        if self.due is not None:
            facts = self._facts()
            facts = facts._replace(gap_ms=script_model.mean_gap_of(facts))
            self.due = script_model.due_after_retime(facts, self.timing, self.now_ms)

    def typing(self) -> None:
        extend_ms, max_wait_ms = self.rng.choice((1, 500, 3_000)), self.timing.max_wait_ms
        self._note(f"typing, {extend_ms} ms, at most {max_wait_ms}")
        self.store.extend_wait(NAME, extend_ms=extend_ms, max_wait_ms=max_wait_ms)
        if self.due is not None:
            self.due = self.formula.due_after_typing(
                self.due, first_at_ms=self.first_at_ms, last_at_ms=self._known_last_at_ms, extend_ms=extend_ms,
                max_wait_ms=max_wait_ms, now_ms=self.now_ms,
            )  # fmt: skip

    def hold(self) -> None:
        hold_ms = self.rng.choice((200, 1_500, 6_000))
        self._note(f"hold for {hold_ms} ms")
        holder = self.rng.choice((*HOLDERS, "handoff"))
        held = self.store.hold_buffer(NAME, holder=holder, cause="test", hold_ms=hold_ms)
        if holder == "handoff":
            return  # a mark keeps nothing back
        self.holds[holder] = max(self.holds.get(holder, 0), self.now_ms + hold_ms)
        self.held_until_ms = held.held_until_ms
        if self.due is not None:
            self.due = self.formula.due_after_hold(self.due, self.held_until_ms, self._known_last_at_ms)

    def resume(self) -> None:
        holder = self.rng.choice((*HOLDERS, "handoff", None))
        self._note(f"resume {holder or 'both'}")
        self.store.resume_buffer(NAME, holder=holder)
        self.holds = {each: until for each, until in self.holds.items() if holder not in (None, each)}
        stays_until_ms = max(self.holds.values(), default=0)
        if self.due is not None:
            self.due = script_model.due_after_resume(
                self.due, held_until_ms=self.held_until_ms, stays_until_ms=stays_until_ms,
                last_at_ms=self._known_last_at_ms, now_ms=self.now_ms,
            )  # fmt: skip
        self.held_until_ms = stays_until_ms

    def flush(self) -> None:
        self._note("flush")
        self.store.flush_buffer(NAME)
        if self.due is not None:
            self.due = script_model.due_after_flush(self.due, last_at_ms=self._known_last_at_ms, now_ms=self.now_ms)

    def delete(self) -> None:
        if not self.waiting:
            return
        message_id = self.waiting.pop(self.rng.randrange(len(self.waiting)))
        self._note(f"delete {message_id}")
        self.store.delete_message(NAME, message_id)
        if not self.waiting:
            self.due = None

    def take(self) -> None:
        if self.is_frozen or self.due is None or self.due.due_at_ms > self.now_ms:
            return
        self._note("take")
        if not self.engine.claim():
            return
        taken = self.engine.store.take_batch(NAME, "token")  # this store's bounds leave the batch undivided
        assert isinstance(taken, BatchTaken)
        assert (taken.due_at_ms, taken.flush_reason, taken.rule, taken.applied_wait_ms) == tuple(self.due)
        self.waiting, self.due, self.is_frozen = [], None, True

    def complete(self) -> None:
        if self.is_frozen:
            self._note("complete")
            self.store.complete_batch(NAME, "token")
            self.is_frozen = False


def draw_timing(rng: Random, gap_ms: int | None) -> Timing:
    """Return random rules, which often infer typing from gaps of about this length."""
    silence_ms = rng.choice((0, 1, 400, 1_000, 2_500))
    inferences = [silence_ms + 700] if gap_ms is None else [silence_ms + 700, gap_ms, gap_ms + 1, gap_ms - gap_ms // 4]
    return Timing(
        silence_ms=silence_ms,
        typing_ms=rng.choice([0, silence_ms + 1, *(each for each in inferences if silence_ms < each < 10_000)]),
        max_wait_ms=rng.choice((1, 900, 3_500, 20_000, 20_000, 20_000, 20_000)),
        max_messages=rng.choice((1, 3, 6, 100, 100, 100, 100)),
        min_messages=rng.choice((1, 1, 1, 2, 4)),
        flush_reason=rng.choice([""] * 5 + ["priority"]),
        silence_rule=rng.choice(("silenceMs", "mediaSilenceMs", "windowMs")),
        learned=rng.choice(("", "", "".join(f"{rng.choice((100, 700, 1_500, 4_000)):05}" for _ in range(PLACES)))),
    )
