"""The cost model against bills worked out by hand: the numbers here are not taken from it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bufferctl.cost import document
from bufferctl.cost.__main__ import main
from bufferctl.cost.alternatives import kinds_of_stage, polling
from bufferctl.cost.facts import HERE, prices, usages, used
from bufferctl.cost.lines import Line, total
from bufferctl.cost.model import bill, floors, stored_gb
from bufferctl.cost.traffic import Traffic, processors
from infra.settings_and_defaults import StageConfig, TimingsConfig, load_stage

ROOT = Path(__file__).parents[2]
DAYS = 365 / 12
NOBODY = Traffic(messages_per_day=0)
PLAIN = StageConfig(name="plain")
EARLY_TRIGGERS = used("early_triggers")


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


def test_a_processor_that_never_sleeps_is_a_quarter_gb_day_and_night() -> None:
    crowd = Traffic(messages_per_day=1e6, fragments_per_batch=1, active_hours=24)
    run = processors(crowd, shards=1, timings=TimingsConfig())
    assert run.seconds == pytest.approx(730 * 3_600)
    # 870 s from the start to the hand-over.
    assert run.starts == pytest.approx(730 * 3_600 / 870)
    (lambda_line, _) = polling(PLAIN)
    assert lambda_line.monthly == pytest.approx(8.76, abs=0.005)


def test_rare_conversations_each_keep_a_processor_for_their_wait_and_the_idle_time() -> None:
    # Ten a day, 14 s + 10 s each: so far apart that they hardly ever share one.
    run = processors(Traffic(messages_per_day=40), shards=1, timings=TimingsConfig())
    assert run.seconds == pytest.approx(10 * DAYS * 24, rel=0.01)
    assert run.starts == pytest.approx(10 * DAYS, rel=0.01)


def test_the_cache_holds_the_ids_of_a_day_and_what_waits() -> None:
    traffic = Traffic(messages_per_day=1e6, active_hours=24)
    # 250,000 batches a day that wait 9 s: 26 at a time, of 775 bytes and 800 more for four messages.
    assert stored_gb(traffic) * 1e9 == pytest.approx(90e6 + 26.04 * (775 + 4 * 250 - 200), rel=0.001)
    assert lines(PLAIN, Traffic(messages_per_day=2e6))["Valkey: storage"].monthly == pytest.approx(11.04, abs=0.01)


@pytest.mark.parametrize(
    ("more", "component"),
    [
        ({"network": {"flow_logs": True}}, "Flow logs"),
        ({"bus": {"archive_days": 30}}, "EventBridge: archive, kept"),
        ({"cache": {"snapshot_days": 7}}, "Valkey: snapshots"),
        ({"warmth": {"ingest": 2}}, "Lambda: ingest, kept warm"),
        ({"warmth": {"processor": 1}}, "Lambda: processor, kept warm"),
        ({"canary": True}, "Lambda: canary, duration"),
    ],
)
def test_what_is_switched_off_is_not_in_the_bill(more: dict[str, Any], component: str) -> None:
    assert component not in lines(PLAIN, Traffic())
    assert lines(changed(**more), Traffic())[component].monthly > 0


def test_logs_are_written_once_and_kept_for_the_stages_retention() -> None:
    found = lines(changed(log_retention_days=7), Traffic())
    a_day = found["Logs: ingest"].quantity / DAYS
    assert found["Logs: ingest, kept"].quantity == pytest.approx(a_day * used("logs_compressed") * 7)


def test_the_dynamodb_lane_pays_four_writes_a_message_and_nothing_for_a_network() -> None:
    traffic = Traffic(messages_per_day=1_000, fragments_per_batch=4)
    lane = lines(changed(lane="dynamodb"), traffic)
    # Put, noted and marked as emitted; a batch: locked, frozen, closed, into the index and out of it.
    assert lane["DynamoDB: messages, written"].monthly == pytest.approx(3_000 * DAYS / 1e6 * 0.625)
    assert lane["DynamoDB: quotas, written"].monthly == pytest.approx(1_000 * DAYS / 1e6 * 0.625)
    assert lane["DynamoDB: windows, written"].monthly == pytest.approx(5 * 250 * DAYS / 1e6 * 0.625)
    assert lane["DynamoDB: windows, read"].monthly == pytest.approx((2 + EARLY_TRIGGERS) * 250 * DAYS / 1e6 * 0.125)
    assert lane["SQS: triggers"].monthly == pytest.approx((3 + 2 * EARLY_TRIGGERS) * 250 * DAYS / 1e6 * 0.40)
    assert not {"network", "cache", "processor", "conversation_processor", "watchdog"} & {
        line.part for line in lane.values()
    }
    assert floors(changed(lane="dynamodb")) == {}


def test_a_large_message_is_written_by_the_kilobyte() -> None:
    # The body's item has 6 KB, put and deleted: 12 writes. Four more put, note and mark the message, and delete the
    # body again.
    traffic = Traffic(messages_per_day=1_000, text_bytes=5_000)
    lane = lines(changed(lane="dynamodb"), traffic)
    assert lane["DynamoDB: messages, written"].quantity == pytest.approx(16_000 * DAYS / 1e6)
    # Each message: one read when it is stored, and two of its body. Each of 250 batches: one for the query, and looks.
    reads = 3 * 1_000 + (2 + EARLY_TRIGGERS) * 250
    assert lane["DynamoDB: windows, read"].quantity == pytest.approx(reads * DAYS / 1e6)


def test_a_fallback_costs_two_sweeps_a_minute_and_nothing_a_batch() -> None:
    traffic = Traffic(messages_per_day=1_000, fragments_per_batch=4)
    beside, without = lines(PLAIN, traffic), lines(changed(fallback=False), traffic)
    added, idle = beside.keys() - without.keys(), lines(PLAIN, NOBODY)
    assert {name: beside[name] for name in added} == {name: idle[name] for name in added}
    # Eight slices, half a read each.
    assert beside["DynamoDB: sweep, reads"].quantity == pytest.approx(2 * 43_800 * 4 / 1e6)
    assert beside["Lambda: sweep, requests"].quantity == pytest.approx(0.0876)
    assert not [name for name in without if "sweep" in name]
    assert without["Alarms"].quantity < beside["Alarms"].quantity


TRAFFIC = st.builds(
    Traffic,
    messages_per_day=st.floats(0, 1e8),
    fragments_per_batch=st.floats(1, 100),
    wait_seconds=st.floats(0.1, 3_600),
    statuses_per_batch=st.floats(0, 5),
    text_bytes=st.floats(0, 5_000),
    active_hours=st.floats(0.5, 24),
    peak=st.floats(1, 50),
    oversize_share=st.floats(0, 1),
)
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
    network=st.fixed_dictionaries(
        {"egress": st.sampled_from(["nat", "endpoints", "none"]), "flow_logs": st.booleans()}
    ),
    cache=st.fixed_dictionaries({"snapshot_days": st.integers(0, 35)}),
)


@given(STAGE, TRAFFIC, st.floats(0, 1e8))
def test_more_messages_never_cost_less(config: StageConfig, traffic: Traffic, more: float) -> None:
    later = traffic.model_copy(update={"messages_per_day": traffic.messages_per_day + more})
    assert total(bill(config, traffic)) <= total(bill(config, later)) * (1 + 1e-12)


@given(STAGE, TRAFFIC)
def test_nobody_pays_less_than_the_floor_and_no_line_is_negative(config: StageConfig, traffic: Traffic) -> None:
    found = bill(config, traffic)
    assert total(bill(config, NOBODY)) <= total(found) * (1 + 1e-12)
    assert all(line.quantity > 0 for line in found)


def test_every_price_is_used_in_some_bill() -> None:
    crowd = Traffic(messages_per_day=1e6)
    configs = [
        changed(
            api={"kind": kind}, warmth=warmth, network={"egress": egress, "flow_logs": True},
            tracing=True, bus={"archive_days": 30}, cache={"snapshot_days": 7},
        )
        for kind, warmth, egress in [
            ("http", {}, "nat"), ("rest", {"ingest": 2}, "endpoints"), ("http", {}, "none"),
        ]
    ]  # fmt: skip
    paid = {line.price for config in configs for line in bill(config, crowd)}
    # Not ours: the document compares with it.
    assert paid | {"redis_storage"} == set(prices())


def test_no_usage_is_listed_that_nothing_reckons_with() -> None:
    source = "".join(path.read_text() for path in HERE.glob("*.py"))
    assert [name for name in usages() if f'"{name}"' not in source] == []


def test_what_was_measured_is_what_the_benchmark_recorded() -> None:
    """As near as another run, or another machine, comes to it."""

    def results(name: str) -> Any:
        return json.loads((ROOT / "tools" / "bench" / "results" / f"{name}.json").read_text())

    def middle(of: dict[str, float]) -> float:
        return of.get("median", (of["q1"] + of["q3"]) / 2)

    mix = {
        found["contestant"]: middle(found["script_us"])
        for found in results("engine")["hot_path"]
        if found["kind"] == "mix"
    }
    assert used("buffer_us") == pytest.approx(mix["ours"], rel=0.3)
    assert used("simple_command_us") == pytest.approx(mix["bare"] / 2, rel=0.3)
    assert used("claim_us") == pytest.approx(middle(results("growth")["script_us"]["claim 300"][-1]), rel=0.5)
    assert used("waiting_bytes") == pytest.approx(max(results("growth")["bytes_each"]["ours"]), rel=0.05)


def test_the_document_and_its_picture_are_up_to_date(stages: dict[str, Any], tmp_path: Path) -> None:
    document.write(tmp_path, stages)
    for name in ["cost.md", "cost.svg"]:
        out_of_date = f"docs/{name} is out of date: run `.venv/bin/python -m bufferctl.cost --document docs`"
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text(), out_of_date


def test_the_readme_says_what_the_model_says(stages: dict[str, Any]) -> None:
    told, prod = (ROOT / "README.md").read_text(), load_stage(stages, stage="prod")
    kinds = kinds_of_stage(prod)
    for messages in (0, 100_000):
        for config in (kinds["DynamoDB"], kinds["Valkey, no network"], prod):
            amount = f"${total(bill(config, Traffic(messages_per_day=messages))):.0f}"
            assert amount in told, f"{amount} at {messages} messages a day"


def test_a_stage_without_network_and_gateway_costs_what_was_aimed_at(stages: dict[str, Any]) -> None:
    """Bound the cheapest kind of stage with Valkey. Each new alarm costs ten cents."""
    cheapest = kinds_of_stage(load_stage(stages, stage="prod"))["Valkey, no network, own address"]
    for messages, dollars in ((0, 19), (1_000_000, 100), (10_000_000, 800)):
        assert total(bill(cheapest, Traffic(messages_per_day=messages))) <= dollars


def test_the_page_about_deploying_says_what_an_hour_without_messages_costs(stages: dict[str, Any]) -> None:
    page = (ROOT / "docs/deploy.md").read_text("utf-8")
    (table,) = re.findall(r"<!-- cost: an hour -->\n(.*?)<!-- end -->", page, re.DOTALL)
    rows = re.findall(r"^\| (\w+)(?:, with .*`(.+)`.*)? \| ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    assert len(rows) == len(table.splitlines()) - 2
    for stage, setting, an_hour, a_month in rows:
        config = load_stage(stages, stage=stage, overrides=f"{{{setting}}}")
        dollars = total(bill(config, NOBODY))
        assert (an_hour, a_month) == (f"{dollars / DAYS / 24:.2f}", f"{dollars:.2f}"), f"{stage} {setting}"


def test_the_json_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stage", "prod", "--messages-per-day", "250000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"stage", "region", "pricesOf", "traffic", "lines", "total", "floor", "floors", "kinds"}
    assert set(found["lines"][0]) == {
        "component", "part", "quantity", "price", "unit", "unitPrice", "monthly", "formula",
    }  # fmt: skip
    assert found["traffic"]["messages_per_day"] == 250_000
    assert found["total"] == pytest.approx(sum(line["quantity"] * line["unitPrice"] for line in found["lines"]))
    assert found["floor"] < found["total"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--stage", "staging"], "Unknown stage 'staging'. Valid stages: dev, local, prod."),
        ([], "No stage given. Use `--stage <name>`"),
        (["--stage", "prod", "--overrides", "{"], "`--overrides ` takes a JSON object"),
        (["--stage", "prod", "--active-hours", "25"], "--active-hours: Input should be less than or equal to 24"),
        (["--stage", "prod", "--messages-per-day", "-1"], "--messages-per-day: Input should be greater than"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_queue_of_webhooks_is_polled_all_month_and_each_webhook_is_three_requests() -> None:
    topic = "arn:aws:sns:us-east-1:111122223333:whatsapp"
    config, traffic = changed(end_user_messaging_topic=topic), Traffic(messages_per_day=10_000)
    found = lines(config, traffic)
    assert found["SQS: webhooks"].monthly == pytest.approx(3 * traffic.webhooks / 1e6 * 0.40)
    assert found["SQS: webhook queue, polls"].monthly == lines(config, NOBODY)["SQS: webhook queue, polls"].monthly > 0
    assert total(bill(config, traffic)) > total(bill(PLAIN, traffic))
