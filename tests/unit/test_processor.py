"""The processor's run, on an engine whose clock moves only while the processor sleeps."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from lambdas.processor.service import ConversationProcessors, Exit, Processor, Time, Timings
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes.outcomes import LeaseAcquired
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.messages.conversation_id import TRIAL_TENANT
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import Engine
from tests.support.fakes import CONVERSATION_PROCESSOR, PROCESSOR, FakeFunctions, FakeWake, RecordedTelemetry

NOW = Rules(silence_ms=0, typing_inference_ms=0)
SOON = Rules(silence_ms=700, typing_inference_ms=0)
LIFE_MS = 900_000
TIMINGS = Timings(idle_ms=10_000, handover_ms=30_000)


class AtOnce:
    """A pool that has done everything before `submit` returns."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args))
        except SendFailed as error:
            future.set_exception(error)
        return future

    def shutdown(self, *, wait: bool, cancel_futures: bool) -> None:
        pass


class Scene:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.functions, self.telemetry, self.wake = FakeFunctions(), RecordedTelemetry(), FakeWake(engine.clock)
        self.conversation_processors = ConversationProcessors(
            self.functions, CONVERSATION_PROCESSOR, clock=engine.clock
        )
        self.conversation_processors._pool = AtOnce()  # type: ignore[assignment] # no threads where time stands still
        self.functions.on_start = self.work
        self.started_at_ms: list[int] = []
        self.slept: list[float] = []
        self.processor = self.make()

    def work(self, _function: str, payload: Mapping[str, object]) -> None:
        """Let a conversation processor do its work at once."""
        self.started_at_ms.append(self.engine.clock.now_ms)
        if conversation := payload.get("conversation"):
            self.engine.store.take_batch(str(conversation), "t")
            self.engine.store.complete_batch(str(conversation), "t")

    def make(self) -> Processor:
        return Processor(
            store=self.engine.store,
            wake=self.wake,
            conversation_processors=self.conversation_processors,
            starter=ProcessorStarter(self.functions, PROCESSOR, self.telemetry),
            telemetry=self.telemetry,
            timings=TIMINGS,
            shard=0,
            time=Time(self.engine.clock, self.engine.clock, self._sleep),
        )

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.engine.clock.advance(round(seconds * 1_000))

    def run(self, *, life_ms: int = LIFE_MS) -> Exit:
        began_ms = self.engine.clock.now_ms
        return self.processor.run(lambda: began_ms + life_ms - self.engine.clock.now_ms)

    def once(self, event: Callable[[], object]) -> None:
        """Let this happen while the processor sleeps for the first time, and wake it."""

        def meanwhile() -> bool:
            if len(self.wake.waits) == 1:
                event()
                return True
            return False

        self.wake.meanwhile = meanwhile


@pytest.fixture
def scene(fake: Engine) -> Scene:
    return Scene(fake)


def fail(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    return raise_it


def test_without_work_it_leaves_after_its_idle_time(scene: Scene) -> None:
    began_ms = scene.engine.clock.now_ms
    assert scene.run() is Exit.IDLE
    assert TIMINGS.idle_ms <= scene.engine.clock.now_ms - began_ms <= TIMINGS.idle_ms + 500
    assert scene.functions.started == []
    assert scene.wake.closed
    assert scene.functions.prepared, "while nothing was due"


def test_it_leaves_at_once_if_another_one_is_there(scene: Scene) -> None:
    scene.engine.store.acquire_lease(0, "another")
    assert scene.run() is Exit.HELD
    assert scene.wake.waits == []


def test_a_conversation_processor_is_sent_for_each_conversation_that_is_due(scene: Scene) -> None:
    for n in range(3):
        scene.engine.send(f"c{n}", "m1", rules=NOW)
    scene.engine.send("later", "m1")
    scene.run()
    claim = {"claimedAt": scene.started_at_ms[0], "waitedForSlot": False}
    assert scene.functions.started[:3] == [
        (CONVERSATION_PROCESSOR, {"conversation": f"c{n}", **claim}) for n in range(3)
    ]
    assert scene.functions.conversations() == ["c0", "c1", "c2", "later"]


def test_how_late_a_trial_is_claimed_is_not_counted(scene: Scene) -> None:
    scene.engine.send(f"{TRIAL_TENANT}/generic/verify/a-trial", "m1", rules=NOW)
    scene.run()
    assert scene.functions.started
    assert "LatenessMs" not in scene.telemetry.counts


def test_it_sleeps_exactly_until_the_next_one_is_due(scene: Scene) -> None:
    began_ms = scene.engine.clock.now_ms
    scene.engine.send("c", "m1", rules=SOON)
    scene.run()
    assert scene.started_at_ms == [began_ms + 700]
    assert scene.telemetry.counts["LatenessMs"] == 0
    assert scene.wake.waits[:2] == [0.5, 0.2], "it looks every half second anyway"


def test_a_wake_ends_its_sleep(scene: Scene) -> None:
    scene.once(lambda: scene.engine.send("c", "m1", rules=NOW))
    began_ms = scene.engine.clock.now_ms
    scene.run()
    assert scene.started_at_ms == [began_ms]


def test_more_than_one_claim_may_take_is_taken_without_a_sleep_between(scene: Scene) -> None:
    for n in range(250):
        scene.engine.send(f"c{n}", "m1", rules=NOW)
    scene.run()
    assert len(set(scene.functions.conversations())) == 250
    assert sum(scene.wake.waits[:2]) == 0


def test_it_does_not_claim_what_it_cannot_send(scene: Scene) -> None:
    stuck = [Future[None]() for _ in range(200)]
    scene.conversation_processors._under_way = dict.fromkeys(stuck, "c")
    waits: list[float] = []

    def wait(seconds: float, *, for_all: bool = False) -> None:
        waits.append(seconds)
        stuck.pop().set_result(None)

    scene.conversation_processors.wait = wait  # type: ignore[method-assign] # the wait of a test is to let one end
    for n in range(3):
        scene.engine.send(f"c{n}", "m1", rules=NOW)
    scene.run(life_ms=31_000)
    assert waits[0] == 0.5, "with no room left it waits for somebody to end"
    assert scene.functions.conversations() == ["c0", "c1", "c2"]


def test_while_all_slots_are_taken_it_sleeps_until_one_is_freed(scene: Scene) -> None:
    store = scene.engine.store
    store.settings = store.settings._replace(slots=2)
    for n in range(4):
        scene.engine.send(f"c{n}", "m1", rules=NOW)
    claimed_at: list[int] = []
    scene.functions.on_start = lambda *_: claimed_at.append(scene.engine.clock.now_ms)

    def complete() -> None:
        scene.engine.clock.advance(200)
        store.take_batch("c0", "t")
        store.complete_batch("c0", "t")

    scene.once(complete)
    began_ms = scene.engine.clock.now_ms
    scene.run(life_ms=32_000)
    assert scene.wake.waits[0] == 0.5, "it sleeps between two claims"
    assert scene.functions.conversations() == ["c0", "c1", "c2"]
    assert claimed_at[:3] == [began_ms, began_ms, began_ms + 200]
    assert [event["waitedForSlot"] for _, event in scene.functions.started[:3]] == [False, False, True]


# -- hand-over -------------------------------------------------------------------------------------


def steady_traffic(scene: Scene) -> None:
    """Send messages without end."""

    def meanwhile() -> bool:
        scene.engine.send("busy", f"m{scene.engine.clock.now_ms}", rules=SOON)
        return False

    scene.wake.meanwhile = meanwhile


def test_it_hands_over_before_lambda_stops_it_and_starts_its_successor(scene: Scene) -> None:
    steady_traffic(scene)
    assert scene.run(life_ms=60_000) is Exit.HANDED_OVER
    assert scene.functions.processors() == [0]
    assert isinstance(scene.engine.store.acquire_lease(0, "successor"), LeaseAcquired), "the lease is free"


def test_a_successor_that_cannot_be_started_is_left_to_the_watchdog(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=Rules(silence_ms=20_000, typing_inference_ms=0))
    scene.functions.refusals = 1
    assert scene.run(life_ms=35_000) is Exit.HANDED_OVER
    assert scene.telemetry.counts["StartFailures"] == 1
    scene.engine.clock.advance(scene.engine.store.settings.start_ms)
    assert scene.engine.store.recover_expired(0).start_id


# -- the lease -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["acquire_lease", "renew_lease"])
def test_a_slow_call_for_the_lease_does_not_cost_it(scene: Scene, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    # The lease counts from the beginning of the call, and a call that must connect first takes seconds.
    at_once = getattr(scene.engine.store, call)

    def slowly(shard: int, lease_id: str) -> object:
        reply = at_once(shard, lease_id)
        scene.engine.clock.advance(3_500)
        return reply

    monkeypatch.setattr(scene.engine.store, call, slowly)
    scene.run(life_ms=60_000)
    assert not scene.telemetry.said("lease lost")


def test_it_leaves_if_its_lease_was_lost_to_another(scene: Scene) -> None:
    def is_paused_for_too_long() -> None:
        scene.engine.clock.advance(scene.engine.store.settings.lease_ms + 1)
        scene.engine.store.acquire_lease(0, "another")
        scene.engine.send("c", "m1", rules=NOW)

    scene.once(is_paused_for_too_long)
    assert scene.run() is Exit.LOST
    assert len(scene.telemetry.said("lease lost")) == 1
    assert scene.functions.conversations() == []


def test_it_goes_on_if_its_lease_ran_out_and_nobody_came(scene: Scene) -> None:
    def is_paused_for_too_long() -> None:
        scene.engine.clock.advance(scene.engine.store.settings.lease_ms + 1)
        scene.engine.send("c", "m1", rules=NOW)

    scene.once(is_paused_for_too_long)
    assert scene.run() is Exit.IDLE
    assert scene.functions.conversations() == ["c"]


def test_it_looks_after_claims_and_tokens_at_their_end(scene: Scene) -> None:
    began_ms, settings = scene.engine.clock.now_ms, scene.engine.store.settings

    def dies(_function: str, payload: Mapping[str, object]) -> None:
        scene.started_at_ms.append(scene.engine.clock.now_ms)
        if len(scene.started_at_ms) == 2:
            scene.engine.store.take_batch(str(payload["conversation"]), "t1")
        elif len(scene.started_at_ms) == 3:
            scene.work(_function, payload)

    scene.functions.on_start = dies
    scene.engine.send("c", "m1", rules=NOW)
    assert scene.run() is Exit.IDLE
    claimed_again_ms = began_ms + settings.claim_ms
    assert scene.started_at_ms[:3] == [began_ms, claimed_again_ms, claimed_again_ms + settings.token_ms]
    assert scene.telemetry.counts["Recovered"] == 2


def test_a_start_for_which_no_thread_was_free_in_time_is_not_made(scene: Scene) -> None:
    started_ms = scene.engine.clock.now_ms

    class Late(AtOnce):
        def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
            if args and scene.engine.clock.now_ms == started_ms:
                scene.engine.clock.advance(scene.engine.store.settings.claim_ms // 2 + 1)
            return super().submit(work, *args)

    scene.engine.store.settings = scene.engine.store.settings._replace(lease_ms=60_000)
    scene.conversation_processors._pool = Late()  # type: ignore[assignment]
    scene.engine.send("c", "m1", rules=NOW)
    scene.run()
    (told,) = scene.telemetry.said("conversation processor could not be started")
    assert told["reason"] == "no thread was free in time"
    assert scene.functions.conversations() == ["c"]


# -- failures --------------------------------------------------------------------------------------


def test_a_conversation_whose_conversation_processor_cannot_be_started_comes_back_soon(scene: Scene) -> None:
    began_ms = scene.engine.clock.now_ms
    scene.functions.refusals = 2
    scene.engine.send("c", "m1", rules=NOW)
    scene.run()
    assert scene.functions.conversations() == ["c"]
    assert scene.telemetry.counts["StartFailures"] == 2
    assert scene.started_at_ms[0] - began_ms < 2_500
    waits = [line["retry_in_ms"] for line in scene.telemetry.said("conversation processor could not be started")]
    assert waits == [250, 500], "later each time"


@pytest.mark.parametrize("is_done", [True, False])
def test_a_start_whose_answer_was_lost_is_no_failed_start(scene: Scene, is_done: bool) -> None:
    def start_and_time_out(_function: str, payload: Mapping[str, object]) -> None:
        if conversation := payload.get("conversation"):
            scene.engine.store.take_batch(str(conversation), "t")
            if is_done:
                scene.engine.store.complete_batch(str(conversation), "t")
        raise SendFailed("invoke: TimeoutError")

    scene.functions.on_start = start_and_time_out
    scene.engine.send("c", "m1", rules=NOW)
    scene.run(life_ms=TIMINGS.handover_ms + 1_000)
    assert scene.functions.conversations() == ["c"]
    assert not scene.telemetry.said("conversation processor could not be started")


def test_while_valkey_is_away_it_tries_again_and_then_goes_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    claim, failures = scene.engine.store.claim_due, iter(range(12))

    def claim_due(*args: Any, **options: Any) -> Any:
        if next(failures, None) is None:
            return claim(*args, **options)
        raise StoreUnavailable("gone")

    monkeypatch.setattr(scene.engine.store, "claim_due", claim_due)
    scene.engine.send("c", "m1", rules=NOW)
    assert scene.run() is Exit.IDLE
    assert scene.functions.conversations() == ["c"]
    assert scene.slept[:5] == [0.05, 0.1, 0.2, 0.4, 0.8]
    assert max(scene.slept) == 1
    (again,) = scene.telemetry.said("store answers again")
    assert again["away_ms"] == round(sum(scene.slept) * 1_000)


@pytest.mark.parametrize("script", ["acquire_lease", "claim_due"])
def test_if_valkey_stays_away_it_leaves_to_the_watchdog(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(scene.engine.store, script, fail(StoreUnavailable("gone")))
    began_ms = scene.engine.clock.now_ms
    assert scene.run() is Exit.STORE_UNAVAILABLE
    assert scene.engine.clock.now_ms - began_ms > scene.engine.store.settings.lease_ms
    assert scene.telemetry.counts["StoreFailures"] == len(scene.slept) + 1
    assert scene.wake.closed


def test_it_does_not_outlive_its_time_out_in_an_outage(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for script in ("claim_due", "release_lease"):
        monkeypatch.setattr(scene.engine.store, script, fail(StoreUnavailable("gone")))
    began_ms = scene.engine.clock.now_ms
    assert scene.run(life_ms=40_000) is Exit.STORE_UNAVAILABLE
    assert scene.engine.clock.now_ms - began_ms < 40_000


def test_a_long_run_reports_meanwhile(scene: Scene) -> None:
    steady_traffic(scene)
    scene.run(life_ms=120_000)
    assert scene.telemetry.flushes >= 2


class Never(AtOnce):
    """A pool whose work does not end."""

    def submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        return Future()


def test_it_stays_while_a_conversation_processor_is_still_being_started(scene: Scene) -> None:
    scene.conversation_processors._pool = Never()  # type: ignore[assignment]
    scene.engine.send("c", "m1", rules=NOW)
    assert scene.run() is Exit.HANDED_OVER, "not idle: a start that fails must still be put back"


def test_a_start_that_failed_is_not_forgotten_when_valkey_is_away_just_then(scene: Scene) -> None:
    started: Future[None] = Future()
    started.set_exception(SendFailed("Throttled"))
    scene.conversation_processors._under_way[started] = "c"
    for found, error in scene.conversation_processors.ended():
        assert (found, str(error)) == ("c", "Throttled")
        break  # as an exception of the store would
    assert [found for found, _ in scene.conversation_processors.ended()] == ["c"]
    assert not scene.conversation_processors.any_under_way
