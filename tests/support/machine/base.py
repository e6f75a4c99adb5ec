"""The base of all actors: the engine, the model, the clock, and how a call is made."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from message_buffer.lanes.outcomes import ConversationsClaimed, MessageAbsent, MessageRefused
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS as STAGE_SETTINGS
from tests.support.engine import Engine
from tests.support.model import ConversationModel, QuotaModel

SETTINGS = STAGE_SETTINGS._replace(
    horizon_ms=90_000,
    slots=2,
    max_batch=4,
    max_emitted=2,
    max_waiting=24,
)
CONVERSATIONS = ("ann", "bob {b0} }{", "çé\n\x00")
PROCESSORS = ("p1", "p2")
RULES = (
    Rules(),
    Rules(silence_ms=200, typing_inference_ms=400, max_wait_ms=1500, max_messages=3),
    Rules(silence_ms=2000, min_messages=2, max_wait_ms=60_000),
    Rules(max_wait_ms=20_000, max_messages=6, pressed_silence_ms=300),
    Rules(priority="vip"),
    Rules(priority="vip", vip_silence_ms=300),
)

# A repeat of these calls at any later time changes nothing.
LATE_REPEATS = {"buffer_message", "cancel_buffer", "complete_batch", "delete_message"}

conversations = st.sampled_from(CONVERSATIONS)
processors = st.sampled_from(PROCESSORS)
skews = st.sampled_from((0, 0, 0, 0, 0, 0, 0, 3, -3, 60_000, -60_000))
seldom = st.sampled_from((False, False, False, True))
pick = st.integers(0, 1_000_000)


Life = tuple[str, int]
"""A conversation, and how often it was forgotten. After a forget, every message is a new one."""


@dataclass
class Run:
    """One run of a conversation processor, with the batch that it took."""

    conversation: str
    life: Life
    token: str
    batch_id: str
    messages: list[bytes]
    done: bool = False  # emitted or dead-lettered: may complete


class Base(RuleBasedStateMachine):
    def open_engine(self) -> Engine:
        """Return an empty engine; the subclass that is run says on which server."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.engine = self.open_engine()
        self.store = self.engine.store
        self.model = {name: ConversationModel() for name in CONVERSATIONS}
        self.quota = QuotaModel()
        self.lease: tuple[str, int] | None = None
        self.invocations: list[str] = []
        self.runs: list[Run] = []
        self.forgets = dict.fromkeys(CONVERSATIONS, 0)
        self.emitted: list[tuple[Life, str, list[bytes]]] = []  # with batch id and payloads
        self.accepted: dict[Life, list[str]] = defaultdict(list)
        self.withdrawn: set[tuple[Life, str]] = set()  # cancelled or deleted while waiting: must never come out
        self.cancelled_batches: set[tuple[Life, str]] = set()  # frozen at the cancel: may come out, at any time, or not
        self.cancelled_ids: dict[Life, set[str]] = defaultdict(set)
        self.sent = 0
        self.tokens = 0
        self.calls: list[tuple[int, str, str, tuple[Any, ...], dict[str, Any]]] = []

    def life(self, name: str) -> Life:
        return name, self.forgets[name]

    def now(self, skew: int) -> int:
        return self.engine.clock.now_ms + skew

    def call(self, skew: int, twice: bool, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make one call of the store by a clock that is `skew` off, and again if its answer was lost (`twice`)."""
        clock, true_now = self.engine.clock, self.engine.clock.now_ms
        clock.now_ms += skew
        self.tokens += 1
        call_id = f"call-{self.tokens}"
        self.store._new_call_id = lambda: call_id
        try:
            answer = getattr(self.store, method)(*args, **kwargs)
            # Do not repeat these calls later, because an absent message may exist then, and a refused one may fit.
            if not isinstance(answer, MessageRefused) and not (isinstance(answer, MessageAbsent) and not answer.known):
                self.calls.append((clock.now_ms, call_id, method, args, kwargs))
            if twice:
                self._repeat(answer, method, args, kwargs)
            return answer
        finally:
            clock.now_ms = true_now

    def _repeat(self, answer: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before = self.engine.settle()
        again = getattr(self.store, method)(*args, **kwargs)
        after = self.engine.settle()
        assert before == after, f"repeating {method} changed something"
        if method == "claim_due" and isinstance(answer, ConversationsClaimed):
            assert again == replace(answer, expired=0), "the repeated claim forgot what it had claimed"
        if getattr(answer, "start_id", None):
            assert again.start_id == answer.start_id, f"the repeated {method} forgot the start it had reserved"

    @precondition(lambda self: any(method in LATE_REPEATS for _, _, method, _, _ in self.calls))
    @rule(which=pick)
    def repeated_late(self, which: int) -> None:
        """Repeat a call whose answer was lost, after much has happened: it must not undo any of that."""
        calls = [call for call in self.calls if call[2] in LATE_REPEATS]
        at, call_id, method, args, kwargs = calls[-1 - which % min(len(calls), 20)]
        clock, true_now, before = self.engine.clock, self.engine.clock.now_ms, self.contents()
        clock.now_ms = at
        self.store._new_call_id = lambda: call_id
        getattr(self.store, method)(*args, **kwargs)
        clock.now_ms = true_now
        assert self.contents() == before, f"a late {method} undid something"

    def contents(self) -> dict[str, Any]:
        """Return all contents but the processor's own: a late call may start or wake a processor."""
        kept = {name: key for name, key in self.engine.keys().items() if name not in {"{b0}:processor", "{b0}:wake"}}
        buffers = kept.pop("{b0}:open", None)
        contents: dict[str, Any] = {name: sorted(key.value) for name, key in kept.items()}
        contents["buffers"] = {name: line for name, line in buffers.pairs.items() if name} if buffers else {}
        return contents

    def must_not_wait_for_a_slot(self, now: int) -> None:
        """Fail if a living processor waits for a slot, although a slot was freed."""
        key = self.engine.keys().get("{b0}:open")
        alive = key.pairs.get(b"", b"0") if key else b"0"
        assert int(alive[:13]) < now or int(alive[13:]) != 1, "a slot was freed and the processor was not woken"

    def must_be_picked_up(self, at: int, now: int) -> None:
        """Fail unless a living processor will look at `at` or before, or a start is reserved."""
        hashes = {name: key.pairs for name, key in self.engine.keys().items() if key.kind == "hash"}
        processor, alive = hashes.get("{b0}:processor", {}), hashes.get("{b0}:open", {}).get(b"", b"0")
        if int(alive[:13]) >= now:
            wake_at = int(alive[13:])
            assert wake_at == 0 or wake_at <= at, "the processor sleeps past the due time"
        elif at <= now + SETTINGS.horizon_ms:
            assert int(processor.get(b"starting_until", 0)) > now, "work is scheduled, nobody comes for it"

    @rule(ms=st.sampled_from((1, 50, 199, 200, 500, 999, 1000, 3000, 5_000, 10_000, 31_000)))
    def time_passes(self, ms: int) -> None:
        self.engine.clock.advance(ms)

    @rule(ms=st.sampled_from((60_000, -60_000)), sure=seldom)
    def clock_jumps(self, ms: int, sure: bool) -> None:
        if sure:
            self.engine.clock.advance(ms)
