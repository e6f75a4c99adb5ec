"""The watchdog's pass: what it recovers, starts, counts and leaves for the next pass."""

import pytest

from lambdas.watchdog.service import Watchdog
from message_buffer.errors import StoreUnavailable
from message_buffer.lanes.outcomes import ShardRecovered
from message_buffer.limits import WATCHDOG_PASS_MS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine
from tests.support.fakes import FakeFunctions, RecordedTelemetry, valkey_lane

MAX_STEP_MS = 14_000
NOW = Rules(silence_ms=0, typing_inference_ms=0)


class Scene:
    def __init__(self, engine: Engine, *, shards: int = 1) -> None:
        self.engine = engine
        self.functions, self.telemetry = FakeFunctions(), RecordedTelemetry()
        self.store = engine.another_store(SETTINGS._replace(shards=shards))
        lane = valkey_lane(self.store, self.functions, self.telemetry)
        self.watchdog = Watchdog(lane, self.telemetry, max_step_ms=MAX_STEP_MS, clock=engine.clock)

    def run_pass(self) -> None:
        self.watchdog.run_pass(lambda: 25_000)


@pytest.fixture
def scene(fake: Engine) -> Scene:
    return Scene(fake)


def test_where_nothing_is_it_does_nothing(scene: Scene) -> None:
    scene.run_pass()
    assert scene.functions.started == []
    assert scene.telemetry.counts["OldestOverdueMs"] == 0, "the alarm's end needs a value"
    assert not {"Pending", "InFlight"} & scene.telemetry.counts.keys(), "an idle stage pays for no other metric"


def test_a_missing_processor_is_started_once(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=NOW)  # ingest buffered it and died before it could start one
    scene.engine.clock.advance(scene.store.settings.start_ms)
    scene.run_pass()
    scene.run_pass()
    assert scene.functions.processors() == [0]
    assert scene.telemetry.counts["OldestOverdueMs"] == scene.store.settings.start_ms


def test_a_start_that_fails_is_made_by_a_later_pass(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=NOW)
    scene.functions.refusals = 1
    for _ in range(2):
        scene.engine.clock.advance(30_000)
        scene.run_pass()
    assert scene.functions.processors() == [0]


def test_what_a_dead_conversation_processor_left_comes_back(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=NOW)
    assert scene.engine.claim() == ["c"]
    scene.engine.clock.advance(scene.store.settings.claim_ms)
    scene.run_pass()
    assert scene.telemetry.counts["Recovered"] == 1
    assert scene.engine.claim() == ["c"]


@pytest.fixture
def three(fake: Engine) -> Scene:
    """Return three shards, and a pass that begins with the first."""
    scene = Scene(fake, shards=3)
    fake.clock.advance(-fake.clock.now_ms % (3 * WATCHDOG_PASS_MS))
    return scene


def checks_of(scene: Scene, monkeypatch: pytest.MonkeyPatch, *, failing: int | None = None) -> list[int]:
    recover = scene.store.recover_expired
    checked: list[int] = []

    def recorded(shard: int, *, limit: int) -> ShardRecovered:
        checked.append(shard)
        if shard == failing:
            raise StoreUnavailable("gone")
        return recover(shard, limit=limit)

    monkeypatch.setattr(scene.store, "recover_expired", recorded)
    return checked


def test_a_shard_that_fails_does_not_keep_the_others_from_their_turn_but_is_told(
    three: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = checks_of(three, monkeypatch, failing=0)
    with pytest.raises(StoreUnavailable):
        three.run_pass()
    assert checked == [0, 1, 2]
    assert three.telemetry.counts["StoreFailures"] == 1
    assert "Sweeps" not in three.telemetry.counts


def test_each_pass_begins_at_the_next_shard(three: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = checks_of(three, monkeypatch)
    for _ in range(4):
        three.run_pass()
        three.engine.clock.advance(WATCHDOG_PASS_MS)
    assert checked == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    assert three.telemetry.counts["Sweeps"] == 4


def test_a_pass_that_runs_out_of_time_ends_and_the_next_ones_reach_the_shards_it_left(
    three: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = checks_of(three, monkeypatch)
    for _ in range(3):
        left = iter([25_000, 25_000, MAX_STEP_MS - 1])
        three.watchdog.run_pass(lambda left=left: next(left, 0))  # type: ignore[misc]
        three.engine.clock.advance(WATCHDOG_PASS_MS)
    assert checked == [0, 1, 1, 2, 2, 0]
    assert three.telemetry.said("pass cut") == 3 * [{"shards_left": 1}]
    assert "Sweeps" not in three.telemetry.counts


def test_a_pass_tells_one_value_of_all_shards(three: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = three.engine.clock.now_ms
    told = [ShardRecovered(5, 1, now_ms - 70, None, None, []), ShardRecovered(2, 0, now_ms - 900, None, None, []),
            ShardRecovered(0, 3, now_ms + 50, None, None, [])]  # fmt: skip
    monkeypatch.setattr(three.store, "recover_expired", lambda shard, *, limit: told[shard])
    three.run_pass()
    counts = three.telemetry.counts
    assert (counts["Pending"], counts["InFlight"], counts["OldestOverdueMs"]) == (7, 4, 900)
