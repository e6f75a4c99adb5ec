"""The measured and counted numbers that weigh most in a bill are found again here, on the code and the templates."""

import hmac
import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import boto3
import pytest
from aws_cdk.assertions import Template

from bufferctl.cost.facts import used
from bufferctl.cost.traffic import Traffic
from infra.composition import compose
from infra.settings_and_defaults import StageConfig
from lambdas.conversation_processor.service import ConversationProcessor
from lambdas.ingest import handler as ingest_handler
from lambdas.ingest.service import Ingest
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.events.batch_ready import DETAIL_TYPE
from message_buffer.events.emission import Emission, TimeLeft
from message_buffer.events.event_bus import entry_bytes
from message_buffer.lanes.dynamodb.items import MESSAGE, WINDOW
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.rules.rule_book import RuleBook
from message_buffer.telemetry import Telemetry
from tests.support.engine import Engine
from tests.support.fakes import PROCESSOR, FakeBus, FakeFunctions, FakeObjects, FakeQueue, FakeSecrets, valkey_lane
from tests.support.ingest_scene import FakeProgress
from tests.support.table_service import weather
from tests.support.takeovers import FakeTakeovers
from tests.support.window import TABLE, WINDOW_MS, WindowScene
from tests.unit.test_references import told

pytestmark = pytest.mark.xdist_group("synth")

_services = count()
ROOT = Path(__file__).parents[2]
SECRET = "s3cret"
TEXT = "I have a question about order #12345, it has not come by now"
CONVERSATION = "default/whatsapp/106540352242922/16505551234"
MESSAGE_ID = "wamid.HBgLMTY1MDM4Nzk0MzkVAgASGBQzQTRBNjU5OUFFRTAzODEwMTQ0Rg{:02}"

# service -> metric -> how many values of its dimension are usual
ALWAYS = {"watchdog": {"OldestOverdueMs": 1, "Sweeps": 1}}
SWEEP = {"dynamodb_processor": {"Sweeps": 1, "OldestOverdueMs": 1}}
WITH_TRAFFIC = {
    # WhatsApp's statuses are the one kind that always arrives.
    "ingest": {"Messages": 1, "Duplicates": 1, "IgnoredKinds": 1, "ProcessorStarts": 1},
    "processor": {"LatenessMs": 1, "ProcessorExits": 2},
    "conversation_processor": {
        "Batches": 1, "BatchSize": 1, "WaitMs": 1, "EmitLatenessMs": 1, "FlushReasons": 4, "ProcessorStarts": 1,
    },
    "watchdog": {"ProcessorStarts": 1, "Pending": 1, "InFlight": 1},
}  # fmt: skip
DYNAMODB_LANE = {
    "ingest": {"Messages": 1, "Duplicates": 1, "IgnoredKinds": 1},
    "dynamodb_processor": {
        "Batches": 1,
        "BatchSize": 1,
        "WaitMs": 1,
        "EmitLatenessMs": 1,
        "FlushReasons": 2,
        "Pending": 1,
    },
}
CANARY = {
    "canary": {"CanaryLatenessMs": 1},
    "ingest": {"ProcessorStarts": 1},
    "processor": {"ProcessorExits": 2},
}
# Metrics of the optional responder, whose AI costs more than all of this.
OF_THE_RESPONDER = {"Replies", "RepliesWithheld", "InputTokens", "OutputTokens"}
WHEN_SOMETHING_IS_WRONG = {
    "OverQuota", "Dropped", "IdsForgotten", "BodiesRefused", "Unauthentic", "RulesSkipped", "TablesUnreachable",
    "Crashes", "StartFailures", "Retries", "StoreFailures", "StoreRetries", "SignInsUnavailable", "Recovered",
    "FallbackMessages", "ProcessingErrors", "UnconfirmedSends", "CanaryFailures",
}  # fmt: skip


class Scene:
    """Functions on one engine, whose telemetry is written for real."""

    def __init__(self, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
        self.engine, self.telemetry, self._capsys = engine, Telemetry(), capsys
        self.starter = ProcessorStarter(FakeFunctions(), PROCESSOR, self.telemetry)
        self.lane = valkey_lane(engine.store, FakeFunctions(), self.telemetry)
        self.bus = FakeBus()
        self.ingest = Ingest(
            lane=self.lane,
            secrets=WebhookSecrets(FakeSecrets(json.dumps({"whatsapp": SECRET})), "id", self.telemetry),
            bus=self.bus,
            telemetry=self.telemetry,
            book=RuleBook(None, {}, self.telemetry),
            takeovers=FakeTakeovers(),
            progress=FakeProgress(),
            dead_letters=FakeQueue(),
            clock=engine.clock,
        )

    def written(self) -> int:
        """Return the bytes written since the last look."""
        self.telemetry.flush()
        return len(self._capsys.readouterr().out.encode())

    def receive(self, message_id: str) -> None:
        message = {
            "from": "16505551234", "id": message_id, "timestamp": "1749416383", "type": "text", "text": {"body": TEXT},
        }  # fmt: skip
        value = {"metadata": {"phone_number_id": "106540352242922"}, "messages": [message]}
        entry = {"changes": [{"value": value, "field": "messages"}]}
        body = json.dumps({"object": "whatsapp_business_account", "entry": [entry]})
        signature = "sha256=" + hmac.new(SECRET.encode(), body.encode(), sha256).hexdigest()
        answer = ingest_handler.handler(
            {
                "pathParameters": {"platform": "whatsapp"},
                "requestContext": {"http": {"method": "POST"}},
                "headers": {"X-Hub-Signature-256": signature},
                "body": body,
            },
            None,
        )
        assert answer["statusCode"] == 200

    def emit(self, *, messages: int, first: int = 0) -> int:
        """Emit this many messages as one event; return its bytes."""
        for n in range(first, first + messages):
            self.receive(MESSAGE_ID.format(n))
            self.engine.clock.advance(2_000)
        self.engine.clock.advance(5_000)
        assert self.engine.claim() == [CONVERSATION]
        self.written()
        conversation_processor = ConversationProcessor(
            lane=self.lane,
            emission=Emission(
                self.bus,
                FakeObjects(),
                FakeQueue(),
                self.telemetry,
                max_event_bytes=256_000,
                max_attempts=20,
                clock=self.engine.clock,
            ),
            telemetry=self.telemetry,
            clock=self.engine.clock,
        )
        conversation_processor.process(CONVERSATION, TimeLeft(lambda: 20_000))
        return entry_bytes(DETAIL_TYPE, self.bus.published[-1][1].encode())


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Scene:
    # Powertools keeps a logger for each service, and with it the standard output that a test captured.
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", f"cost-usage-{next(_services)}")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "MessageBuffer/prod")
    # As Lambda sets it for each invocation; the logger writes it into every line.
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1")
    made = Scene(fake, capsys)
    monkeypatch.setattr(ingest_handler, "_ingest", lambda: made.ingest)
    monkeypatch.setattr(ingest_handler, "_telemetry", lambda: made.telemetry)
    return made


def test_a_webhook_writes_as_much_as_the_model_says(scene: Scene) -> None:
    scene.receive("wamid.first-starts-a-processor")
    scene.written()
    scene.receive("wamid.second")
    assert scene.written() == pytest.approx(used("ingest_log_bytes"), rel=0.1)


def test_a_batch_writes_as_much_as_the_model_says(scene: Scene) -> None:
    scene.emit(messages=4)
    assert scene.written() == pytest.approx(used("conversation_processor_log_bytes"), rel=0.1)


@pytest.mark.parametrize("messages", [1, 4, 10])
def test_an_event_is_as_large_as_the_model_says(scene: Scene, messages: int) -> None:
    modelled = Traffic(fragments_per_batch=messages, text_bytes=len(TEXT)).event_bytes
    assert scene.emit(messages=messages) == pytest.approx(modelled, rel=0.02)


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


def test_a_large_message_of_the_dynamodb_lane_asks_for_what_the_model_says(window: WindowScene) -> None:
    window.send(MESSAGE_ID.format(0), conversation=CONVERSATION, text="x" * 5_000)
    put, noted = "put_item", "update_item"
    assert window.wire.made == [put, put, "get_item", noted, "send_message"]
    window.wire.made.clear()
    window.clock.advance(WINDOW_MS)
    window.run()
    look, lock, freeze, close = "get_item", "update_item", "update_item", "update_item"
    delete, mark, delete_again = ["batch_write_item"] * 3
    assert window.wire.made == [
        look, lock, "query", "batch_get_item", freeze, "put_events", delete, mark, delete_again, close,
    ]  # fmt: skip


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


def test_every_metric_of_the_functions_is_priced_or_known_to_be_rare() -> None:
    priced = (ALWAYS, SWEEP, WITH_TRAFFIC, DYNAMODB_LANE, CANARY)
    known = {name for services in priced for metrics in services.values() for name in metrics}
    unpriced = OF_THE_RESPONDER | WHEN_SOMETHING_IS_WRONG
    assert told()[0].keys() == known | unpriced, "put the metric where it belongs in this file"


def test_the_model_has_the_number_of_metrics() -> None:
    assert used("metrics_always") == _count(ALWAYS)
    assert used("metrics_with_traffic") == _count(WITH_TRAFFIC)
    assert used("metrics_of_sweep") == _count(SWEEP)
    assert used("metrics_of_dynamodb_lane") == _count(DYNAMODB_LANE)
    assert used("metrics_of_canary") == _count(CANARY)


def test_what_the_model_counts_is_in_the_templates(stage_config: Callable[..., StageConfig], tmp_path: Path) -> None:
    """Compare. If this fails, write what is found into bufferctl/cost/usage.toml.

    Then run `.venv/bin/python -m bufferctl.cost --document docs`.
    """

    def resources(**overrides: Any) -> Mapping[str, list[dict[str, Any]]]:
        return _resources(stage_config("prod", **overrides), tmp_path / str(len(list(tmp_path.iterdir()))))

    prod, without, alone = resources(), resources(fallback=False), resources(lane="dynamodb")
    by_endpoints = resources(network={"egress": "endpoints"})
    found = {
        "alarm_metrics": _alarm_metrics(without),
        "alarm_metrics_with_fallback": _alarm_metrics(prod),
        "alarm_metrics_of_dynamodb_lane": _alarm_metrics(alone),
        "alarm_metrics_of_public_cache": _alarm_metrics(resources(network={"egress": "none"})) - _alarm_metrics(prod),
        "alarm_metrics_of_canary": _alarm_metrics(resources(canary=True)) - _alarm_metrics(prod),
        "dashboards": len(prod.get("AWS::CloudWatch::Dashboard", [])),
        "keys": len(prod.get("AWS::KMS::Key", [])),
        "keys_of_dynamodb_lane": len(alone.get("AWS::KMS::Key", [])),
        "secrets": len(prod.get("AWS::SecretsManager::Secret", [])),
        "endpoint_services": sum(
            endpoint.get("VpcEndpointType") == "Interface" for endpoint in by_endpoints["AWS::EC2::VPCEndpoint"]
        ),
    }
    assert found == {name: used(name) for name in found}


def _resources(config: StageConfig, folder: Path) -> Mapping[str, list[dict[str, Any]]]:
    layer = folder / "layer"
    (layer / "python").mkdir(parents=True)
    (layer / "python" / "thing.py").touch()
    app = cdk.App(outdir=str(folder / "out"))
    compose(app, config, source=ROOT, layer=layer)
    found: dict[str, list[dict[str, Any]]] = {}
    for stack in app.node.children:
        if isinstance(stack, cdk.Stack):
            for resource in Template.from_stack(stack).to_json().get("Resources", {}).values():
                found.setdefault(resource["Type"], []).append(resource.get("Properties", {}))
    return found


def _alarm_metrics(resources: Mapping[str, list[dict[str, Any]]]) -> int:
    return sum(_metrics_of(alarm) for alarm in resources.get("AWS::CloudWatch::Alarm", []))


def _metrics_of(alarm: Mapping[str, Any]) -> int:
    """Return the alarm's metrics: an alarm on an expression is billed for each metric in it."""
    return sum("MetricStat" in metric for metric in alarm.get("Metrics", [])) or 1


def _count(metrics: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(each.values()) for each in metrics.values())
