"""The counted and measured amounts of the cost model are found again here, on the code and the templates."""

from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import boto3
import pytest
from aws_cdk.assertions import Template

from bufferctl.cost.model import usage, used
from message_buffer.lanes.dynamodb.items import MESSAGE, WINDOW
from tests.support.table_service import weather
from tests.support.window import TABLE, WINDOW_MS, WindowScene
from tests.unit.test_references import told

ROOT = Path(__file__).parents[2]
CONVERSATION = "default/whatsapp/106540352242922/16505551234"
MESSAGE_ID = "wamid.HBgLMTY1MDM4Nzk0MzkVAgASGBQzQTRBNjU5OUFFRTAzODEwMTQ0Rg{:02}"


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the table refuse nothing, because the model counts no repeats."""
    monkeypatch.setattr(weather, "share", 0.0)


def test_a_message_and_a_batch_of_the_dynamodb_lane_ask_for_what_the_model_says(window: WindowScene) -> None:
    for n in range(4):
        window.send(MESSAGE_ID.format(n), conversation=CONVERSATION)
    put, noted = "put_item", "update_item"
    assert window.wire.made == [put, noted, "send_message", *[put, noted] * 3]
    window.wire.made.clear()
    window.clock.advance(WINDOW_MS)
    window.run()
    look, lock, freeze, close = "get_item", "update_item", "update_item", "update_item"
    assert window.wire.made == [look, lock, "query", freeze, "put_events", "batch_write_item", close]


def test_what_the_dynamodb_lane_keeps_is_as_large_as_the_model_says(window: WindowScene) -> None:
    rows = {}
    for messages in (1, 5):
        conversation = f"{CONVERSATION}{messages}"
        for n in range(messages):
            window.send(MESSAGE_ID.format(n), conversation=conversation)
        held = _item(conversation, MESSAGE + MESSAGE_ID.format(0))
        assert _bytes(held) - len(held["body"]["B"]) == pytest.approx(used("stored_message_bytes"), rel=0.1)
        window.clock.advance(WINDOW_MS)
        with window.wire.at(
            "put_events",
            lambda: rows.update({messages: _bytes(_item(conversation, WINDOW))}),  # noqa: B023 - used at once
        ):
            window.run()
    a_name = (rows[5] - rows[1]) / 4
    assert a_name == pytest.approx(used("message_name_bytes"), rel=0.1)
    assert rows[1] - a_name == pytest.approx(used("window_row_bytes"), rel=0.1)


def _item(conversation: str, item: str) -> dict[str, Any]:
    key = {"conversation": {"S": conversation}, "item": {"S": item}}
    found: dict[str, Any] = boto3.client("dynamodb").get_item(TableName=TABLE, Key=key)["Item"]
    return found


def _bytes(item: Mapping[str, Any]) -> int:
    """Count bytes as DynamoDB does: names and values; for a number half its digits and one, for lists and maps three
    more.
    """
    return sum(len(name) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "N":
            return len(content) // 2 + 1
        case "L":
            return 3 + sum(1 + _value_bytes(each) for each in content)
        case "M":
            return 3 + len(content) + _bytes(content)
        case _:
            return len(content)


def test_the_metrics_of_the_model_are_published_by_their_functions() -> None:
    groups = usage()["metrics"].values()
    assert set(chain.from_iterable(names for services in groups for names in services.values())) <= told()[0].keys()


@pytest.mark.xdist_group("synth")
def test_what_the_model_counts_is_in_the_templates(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    """Compare. If this fails, write what is found into bufferctl/cost/usage.toml, and docs/cost.md again."""

    def count(kind: str, **overrides: Any) -> int:
        templates = synthesize("prod", **overrides).values()
        found = [each.get("Properties", {}) for every in templates for each in every.find_resources(kind).values()]
        # An alarm on an expression is billed for each metric in it.
        return sum(sum("MetricStat" in metric for metric in each.get("Metrics", [])) or 1 for each in found)

    alarms, key = "AWS::CloudWatch::Alarm", "AWS::KMS::Key"
    assert count(alarms) == used("alarm_metrics_with_fallback")
    assert count(alarms, lane="dynamodb") == used("alarm_metrics_of_dynamodb_lane")
    more = count(alarms, queues={"sms": {"platform": "twilio"}, "default": {}}) - count(alarms)
    assert more == 2 * used("alarm_metrics_of_queue")
    assert count(key) == used("keys")
    assert count(key, lane="dynamodb") == used("keys_of_dynamodb_lane")
