"""The cost model against bills worked out by hand: the numbers here are not taken from it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bufferctl.__main__ import main
from bufferctl.cost import page
from bufferctl.cost.model import HERE, Line, Traffic, bill, prices, processors, stored_gb, total, usage, used
from infra.settings_and_defaults import StageConfig, TimingsConfig, load_stage

ROOT = Path(__file__).parents[2]
DAYS = 365 / 12
NOBODY = Traffic(messages_per_day=0)
PLAIN = StageConfig(name="plain")


def lines(config: StageConfig, traffic: Traffic) -> Mapping[str, Line]:
    return {line.component: line for line in bill(config, traffic)}


def changed(**settings: Any) -> StageConfig:
    return StageConfig.model_validate({"name": "changed", **settings})


@pytest.fixture(scope="module")
def stages() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]["stages"]
    return found


def test_a_month_of_nat_gateways_is_as_the_price_list_says() -> None:
    found = lines(changed(network={"nat_gateways": 2}), NOBODY)
    assert found["NAT gateways"].monthly == pytest.approx(65.70)
    assert found["NAT gateways: addresses"].monthly == pytest.approx(7.30)


def test_requests_are_messages_and_statuses() -> None:
    # 12,000 messages and 3,000 batches with 2 statuses each: 18,000 a day.
    traffic = Traffic(messages_per_day=12_000, fragments_per_batch=4, statuses_per_batch=2)
    found = lines(PLAIN, traffic)
    assert found["API Gateway (HTTP)"].monthly == pytest.approx(18_000 * DAYS / 1e6 * 1.00)
    assert found["Lambda: ingest, requests"].monthly == pytest.approx(18_000 * DAYS / 1e6 * 0.20)
    assert found["EventBridge: events"].monthly == pytest.approx(3_000 * DAYS / 1e6 * 1.00)


def test_a_rest_api_costs_more_and_brings_waf() -> None:
    traffic = Traffic(messages_per_day=10_000, fragments_per_batch=1, statuses_per_batch=0)
    found = lines(changed(api={"kind": "rest"}), traffic)
    assert found["API Gateway (REST)"].monthly == pytest.approx(0.01 * DAYS * 3.50)
    assert found["WAF: web ACL"].monthly + found["WAF: rules"].monthly == pytest.approx(5 + used("waf_rules"))
    assert found["WAF: requests"].monthly == pytest.approx(0.01 * DAYS * 0.60)


def test_a_large_event_is_billed_for_each_64_kb_begun() -> None:
    traffic = Traffic(messages_per_day=1_000, fragments_per_batch=10, text_bytes=5_000)
    # Ten texts of 5 KB, each there twice: a bit over 100 KB, so two units.
    assert lines(PLAIN, traffic)["EventBridge: events"].quantity == pytest.approx(2 * 100 * DAYS / 1e6)


def test_a_processor_that_never_sleeps_is_handed_over_each_870_seconds() -> None:
    crowd = Traffic(messages_per_day=1e6, fragments_per_batch=1, active_hours=24)
    seconds, starts = processors(crowd, shards=1, timings=TimingsConfig())
    assert seconds == pytest.approx(730 * 3_600)
    assert starts == pytest.approx(730 * 3_600 / 870)


def test_rare_conversations_each_keep_a_processor_for_their_wait_and_the_idle_time() -> None:
    # Ten a day, 14 s + 10 s each: so far apart that they hardly ever share one.
    seconds, starts = processors(Traffic(messages_per_day=40), shards=1, timings=TimingsConfig())
    assert seconds == pytest.approx(10 * DAYS * 24, rel=0.01)
    assert starts == pytest.approx(10 * DAYS, rel=0.01)


def test_the_cache_holds_the_ids_of_a_day_and_what_waits() -> None:
    traffic = Traffic(messages_per_day=1e6, active_hours=24)
    # 250,000 batches a day that wait 14 s: 40.5 at a time, of 778 bytes and 800 more for four messages.
    assert stored_gb(traffic) * 1e9 == pytest.approx(90e6 + 40.5 * (778 + 4 * 250 - 200), rel=0.001)
    assert lines(PLAIN, Traffic(messages_per_day=2e6))["Valkey: storage"].monthly == pytest.approx(11.04, abs=0.01)


def test_the_dynamodb_lane_pays_four_writes_a_message_and_nothing_for_a_network() -> None:
    traffic, early = Traffic(messages_per_day=1_000, fragments_per_batch=4), used("early_triggers")
    lane = lines(changed(lane="dynamodb"), traffic)
    # Counted in its quota, put, noted and marked as emitted; a batch: locked, frozen, closed, into the index and out.
    writes = 4 * 1_000 + 5 * 250
    assert lane["DynamoDB: writes of the lane"].monthly == pytest.approx(writes * DAYS / 1e6 * 0.625)
    # Two sweeps a minute read eight slices, half a read each.
    reads = (2 + early) * 250 * DAYS + 2 * 43_800 * 4
    assert lane["DynamoDB: reads of the lane"].monthly == pytest.approx(reads / 1e6 * 0.125)
    assert not {"network", "cache", "processor", "watchdog"} & {line.part for line in lane.values()}


def test_a_fallback_costs_its_sweeps_and_nothing_a_batch() -> None:
    busy, idle = (
        total(bill(PLAIN, traffic)) - total(bill(changed(fallback=False), traffic))
        for traffic in (Traffic(messages_per_day=1_000), NOBODY)
    )
    assert busy == pytest.approx(idle)
    assert idle > 0


def test_a_responder_pays_for_its_tokens_and_waits_for_the_ai() -> None:
    traffic = Traffic(messages_per_day=4_000, fragments_per_batch=4)
    found = lines(changed(responder={}), traffic)
    replies = 1_000 * DAYS
    tokens = found["AI: tokens of prompts"].monthly + found["AI: tokens of replies"].monthly
    assert tokens == pytest.approx(replies * (1_500 * 0.15 + 100 * 0.60) / 1e6)
    assert found["Lambda: responder, duration"].quantity == pytest.approx(replies * 5 / 4, rel=0.05)


def test_a_queue_costs_its_polls_and_four_requests_a_batch() -> None:
    traffic = Traffic(messages_per_day=4_000, fragments_per_batch=4)
    one, two = ({"queues": {name: {"tenant": "t"} for name in names}} for names in ("a", "ab"))
    polls = 5 * 3 * 60 * 730  # five pollers, which wait 20 s each
    found = [lines(changed(**queues), traffic)["SQS FIFO: queues"].monthly for queues in (one, two)]
    assert found[0] == pytest.approx((polls + 4 * 1_000 * DAYS) / 1e6 * 0.50)
    assert found[1] - found[0] == pytest.approx(polls / 1e6 * 0.50)
    assert lines(changed(responder={}), traffic)["SQS FIFO: queues"].monthly == pytest.approx(found[0])
    # A large event is sent and received in two parts of 64 KB each.
    large = Traffic(messages_per_day=1_000, fragments_per_batch=10, text_bytes=5_000)
    quantity = lines(changed(**one), large)["SQS FIFO: queues"].quantity
    assert quantity == pytest.approx((polls + 6 * 100 * DAYS) / 1e6)


STAGE = st.builds(
    changed,
    lane=st.sampled_from(["valkey", "dynamodb"]),
    fallback=st.booleans(),
    shards=st.integers(1, 256),
    tracing=st.booleans(),
    api=st.fixed_dictionaries({"kind": st.sampled_from(["http", "rest", "url"])}),
    concurrency=st.just({"ingest": 100}),
    warmth=st.sampled_from([{}, {"ingest": 2}, {"processor": 2, "conversation_processor": 5}]),
    bus=st.fixed_dictionaries({"archive_days": st.integers(0, 90)}),
    network=st.fixed_dictionaries({"egress": st.sampled_from(["nat", "endpoints", "none"])}),
    responder=st.sampled_from([None, {}]),
)
TRAFFIC = st.builds(
    Traffic,
    messages_per_day=st.floats(0, 1e8),
    fragments_per_batch=st.floats(1, 1_000),
    wait_seconds=st.floats(0.1, 86_400),
    statuses_per_batch=st.floats(0, 100),
    text_bytes=st.floats(0, 65_536),
    active_hours=st.floats(0.1, 24),
    peak=st.floats(1, 1_000),
)


@given(STAGE, TRAFFIC, st.floats(0, 1e8))
def test_more_messages_never_cost_less(config: StageConfig, traffic: Traffic, more: float) -> None:
    later = traffic.model_copy(update={"messages_per_day": traffic.messages_per_day + more})
    assert total(bill(config, traffic)) <= total(bill(config, later)) * (1 + 1e-12)
    assert all(line.quantity > 0 for line in bill(config, traffic))


def test_every_price_and_every_amount_is_used() -> None:
    source = "".join(path.read_text() for path in HERE.glob("*.py"))
    crowd, parts = Traffic(messages_per_day=1e6), {"canary": True, "responder": {}, "tracing": True}
    stage = {"bus": {"archive_days": 30}, **parts}
    configs = [
        changed(api={"kind": kind}, warmth=warmth, network={"egress": egress}, **stage)
        for kind, warmth, egress in [("http", {}, "nat"), ("rest", {"ingest": 2}, "endpoints"), ("http", {}, "none")]
    ]
    assert {line.price for config in configs for line in bill(config, crowd)} == set(prices())
    assert [name for name in usage()["amounts"] if f'"{name}"' not in source] == []


def test_the_page_is_up_to_date(stages: dict[str, Any], tmp_path: Path) -> None:
    page.write(tmp_path, stages)
    out_of_date = "docs/cost.md is out of date: run `.venv/bin/python -m bufferctl.cost --document docs`"
    assert (tmp_path / "cost.md").read_text() == (ROOT / "docs" / "cost.md").read_text(), out_of_date


def test_the_page_about_deploying_says_what_an_hour_without_messages_costs(stages: dict[str, Any]) -> None:
    (table,) = re.findall(
        r"<!-- cost: an hour -->\n(.*?)<!-- end -->", (ROOT / "docs/deploy.md").read_text("utf-8"), re.DOTALL
    )
    rows = re.findall(r"^\| (\w+)(?:, with .*`(.+)`.*)? \| ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines()) - 2
    for stage, setting, an_hour, a_month in rows:
        dollars = total(bill(load_stage(stages, stage=stage, overrides=f"{{{setting}}}"), NOBODY))
        assert (an_hour, a_month) == (f"{dollars / DAYS / 24:.2f}", f"{dollars:.2f}"), f"{stage} {setting}"


def test_the_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--stage", "prod", "--messages-per-day", "250000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["traffic"]["messages_per_day"] == 250_000
    assert found["total"] == pytest.approx(sum(line["quantity"] * line["unit_price"] for line in found["lines"]))
    assert found["without_messages"] < found["total"]


def test_the_local_stage_costs_nothing_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--stage", "staging"], "Unknown stage 'staging'. Valid stages: dev, local, prod."),
        (["--stage", "prod", "--overrides", "{"], "`--overrides` takes a JSON object"),
        (["--stage", "prod", "--active-hours", "25"], "--active-hours: Input should be less than or equal to 24"),
        (["--stage", "prod", "--messages-per-day", "-1"], "--messages-per-day: Input should be greater than"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", *arguments]) == 2
    assert sentence in capsys.readouterr().err
