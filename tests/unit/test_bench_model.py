"""The scale model: seeded, and in line with the traffic that it is drawn from."""

import json
from pathlib import Path
from typing import Any

import pytest
from bufferctl.cost.traffic import Traffic

from infra.settings_and_defaults import StageConfig, load_stage
from tools.bench.model import busiest, row, simulate
from tools.bench.pollers import POLLERS, late_ms

ROOT = Path(__file__).parents[2]
CROWD = Traffic(messages_per_day=5_000_000)
SECONDS = 60


@pytest.fixture(scope="module")
def prod() -> StageConfig:
    stages: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]["stages"]
    return load_stage(stages, stage="prod")


def test_the_simulated_stretch_has_the_rates_of_the_busiest_hour() -> None:
    load = simulate(CROWD, shards=1, seconds=SECONDS, seed=1)
    per_second = sum(load.requests[second] for second in range(SECONDS)) / SECONDS
    batches = sum(load.events[second] for second in range(SECONDS)) / SECONDS
    assert per_second == pytest.approx(CROWD.webhooks / CROWD.active_seconds * CROWD.peak, rel=0.05)
    assert batches == pytest.approx(CROWD.batches / CROWD.active_seconds * CROWD.peak, rel=0.1)


def test_shards_share_the_work_of_the_cache_and_leave_that_of_the_account_as_it_is() -> None:
    one = busiest(simulate(CROWD, shards=1, seconds=SECONDS, seed=1), seconds=SECONDS, shards=1)
    four = busiest(simulate(CROWD, shards=4, seconds=SECONDS, seed=1), seconds=SECONDS, shards=4)
    assert four["slot_ecpu"] < 0.4 * one["slot_ecpu"]
    assert four["conversation_processor_starts"] < 0.5 * one["conversation_processor_starts"]
    assert four["put_events"] == pytest.approx(one["put_events"], rel=0.2)


def test_a_stage_gets_the_shards_that_keep_its_busiest_second_below_their_quotas(prod: StageConfig) -> None:
    found = row(prod, 20_000_000, region="us-east-1", seconds=10, seed=1)
    assert found["shards"] > 1
    assert found["one_shard"]["conversation_processor_starts"] > 1
    assert max(found["share_of_quota"][name] for name in found["one_shard"]) < 1


def test_the_pollers_of_a_queue_start_their_runs_by_and_by_and_a_run_takes_some_windows() -> None:
    one = late_ms(POLLERS + 1, at_once=1, run_ms=lambda _: 100, cold_ms=500)
    assert one == [600] * POLLERS + [800], "the sixth poller begins after 200 ms"
    assert late_ms(POLLERS * 10, at_once=10, run_ms=lambda n: 100 + n, cold_ms=0) == [110] * POLLERS * 10
    last = [late_ms(1_000, at_once=n, run_ms=lambda n: 80 + 20 * (n - 1), cold_ms=600)[-1] for n in (1, 10)]
    assert last[1] < 0.7 * last[0]
