import pytest

from lambdas.shared.errors import StoreUnavailable
from lambdas.shared.rules import Rules
from lambdas.shared.senders.starter import ProcessorStarter
from lambdas.shared.store.outcomes import Recovered
from lambdas.shared.store.store import StoreSettings
from lambdas.watchdog.service import PAGE, Watchdog
from tests.support.engine import Engine
from tests.support.fakes import PROCESSOR, FakeFunctions, RecordedTelemetry

NOW = Rules(silence_ms=0, typing_inference_ms=0)


class Scene:
    def __init__(self, engine: Engine, *, shards: int = 1) -> None:
        self.engine = engine
        self.functions, self.telemetry = FakeFunctions(), RecordedTelemetry()
        self.store = engine.another_store(StoreSettings(shards=shards))
        starter = ProcessorStarter(self.functions, PROCESSOR, self.telemetry)
        self.watchdog = Watchdog(self.store, starter, self.telemetry, clock=engine.clock)


@pytest.fixture
def scene(fake: Engine) -> Scene:
    return Scene(fake)


def test_where_nothing_is_it_does_nothing(scene: Scene) -> None:
    scene.watchdog.sweep()
    assert scene.functions.started == []
    assert (scene.telemetry.counts["Pending"], scene.telemetry.counts["OldestOverdueMs"]) == (0, 0)


def test_a_missing_processor_is_started_once(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=NOW)  # whoever buffered it died before it could start one
    scene.engine.clock.advance(scene.store.settings.start_ms)
    scene.watchdog.sweep()
    scene.watchdog.sweep()
    assert scene.functions.processors() == [0]
    assert scene.telemetry.counts["OldestOverdueMs"] == scene.store.settings.start_ms


def test_a_start_that_fails_is_made_by_a_later_pass(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=NOW)
    scene.functions.refusals = 1
    for _ in range(2):
        scene.engine.clock.advance(30_000)
        scene.watchdog.sweep()
    assert scene.functions.processors() == [0]


def test_what_a_dead_executor_left_comes_back(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=NOW)
    assert scene.engine.claim() == ["c"]
    scene.engine.clock.advance(scene.store.settings.claim_ms)
    scene.watchdog.sweep()
    assert scene.telemetry.counts["Recovered"] == 1
    assert scene.engine.claim() == ["c"]


def test_full_pages_are_followed_by_another(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [Recovered(0, 0, None, None, True, [f"c{n}" for n in range(size)]) for size in (PAGE, PAGE, 1)]
    monkeypatch.setattr(scene.store, "recover_expired", lambda _shard, *, limit: pages.pop(0))
    scene.watchdog.sweep()
    assert pages == []
    assert scene.telemetry.counts["Recovered"] == 2 * PAGE + 1


def test_every_shard_is_swept(fake: Engine) -> None:
    scene = Scene(fake, shards=3)
    for n in range(30):
        scene.store.buffer_message(f"c{n}", "m1", payload=b"", timing=NOW.timing)
    fake.clock.advance(scene.store.settings.start_ms)
    scene.watchdog.sweep()
    assert sorted(scene.functions.processors()) == [0, 1, 2]


def test_a_shard_that_fails_does_not_keep_the_others_from_their_sweep_but_is_told(
    fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(fake, shards=3)
    recover = scene.store.recover_expired
    swept: list[int] = []

    def fail_on_the_first(shard: int, *, limit: int) -> Recovered:
        swept.append(shard)
        if shard == 0:
            raise StoreUnavailable("gone")
        return recover(shard, limit=limit)

    monkeypatch.setattr(scene.store, "recover_expired", fail_on_the_first)
    with pytest.raises(StoreUnavailable):
        scene.watchdog.sweep()
    assert swept == [0, 1, 2]
    assert scene.telemetry.counts["SweepFailures"] == 1
