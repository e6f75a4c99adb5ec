"""Where infrastructure and functions meet: what each stage tells its functions is what they read."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aws_cdk.assertions import Template

from bufferctl import verify
from infra import bus, canary, responder, storage
from lambdas.admin.handler import ACTED
from lambdas.admin.requests import MoveWaits, read_request
from lambdas.canary import service as canary_service
from lambdas.canary.burst import Burst
from lambdas.canary.webhook import GenericWebhook
from lambdas.responder import batch as responder_batch
from lambdas.responder import service as responder_service
from lambdas.responder.channels import MAX_SEND_SECONDS
from lambdas.responder.owned_turn import MIN_TIME_TO_FINISH_MS
from message_buffer.events import batch_ready as batch
from message_buffer.events import event_bus
from message_buffer.events.conversation_events import AMENDED, CANCELLED, FORGOTTEN, REPLY_FAILED
from message_buffer.events.hand_offs import COMPLETED, HANDED_BACK, HANDED_OFF
from message_buffer.events.idle import IDLE
from message_buffer.messages import conversation_id
from message_buffer.rules.layers import resolve_rules
from message_buffer.rules.rules_and_defaults import RuleLayer
from message_buffer.settings import (
    AdminSettings,
    CanarySettings,
    ConversationProcessorSettings,
    DynamoDbProcessorSettings,
    GateSettings,
    IngestSettings,
    ProcessorSettings,
    ResponderSettings,
    WatchdogSettings,
    read_settings,
)
from tests.infra.test_buffer import functions as functions_of
from tests.infra.test_nag_and_lint import VARIANTS

pytestmark = pytest.mark.xdist_group("synth")

KINDS: Mapping[str, Any] = {
    "ingest": IngestSettings,
    "processor": ProcessorSettings,
    "conversation_processor": ConversationProcessorSettings,
    "watchdog": WatchdogSettings,
    "admin": AdminSettings,
    "gate": GateSettings,
    "dynamodb_processor": DynamoDbProcessorSettings,
    "responder": ResponderSettings,
    "canary": CanarySettings,
}
Functions = Callable[[str], dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def functions(synthesize: Callable[..., Mapping[str, Template]]) -> Functions:
    def of(variant: str) -> dict[str, dict[str, Any]]:
        stage, overrides = VARIANTS[variant]
        stacks = synthesize(stage, **overrides)
        found = [
            function
            for stack in ("Buffer", "Responder")
            if stack in stacks
            for function in stacks[stack].find_resources("AWS::Lambda::Function").values()
        ]
        return {each["Properties"]["Handler"].split(".")[-3]: each["Properties"] for each in found}

    return of


def environment(function: dict[str, Any]) -> dict[str, str]:
    """As CloudFormation will fill it in: references become words, joins are joined."""
    return {name: _filled_in(value) for name, value in function["Environment"]["Variables"].items()}


def _filled_in(value: Any) -> str:
    if isinstance(value, str):
        return value
    ((intrinsic, argument),) = value.items()
    if intrinsic == "Fn::Join":
        separator, parts = argument
        return str(separator).join(map(_filled_in, parts))
    name = argument[0] if isinstance(argument, list) else argument
    return "6379" if "Port" in str(argument) else re.sub(r"[^A-Za-z0-9]", "-", str(name))


def settings_of(function: dict[str, Any]) -> Any:
    return read_settings(KINDS[function["Handler"].split(".")[-3]], environment(function))


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_function_of_a_stage_reads_its_settings(variant: str, functions: Functions) -> None:
    found = functions(variant)
    assert found.keys() >= {"ingest", "admin", "gate"}
    for role, function in found.items():
        settings = settings_of(function)
        stage, overrides = VARIANTS[variant]
        assert bool(settings.log.id_key) == (overrides.get("log_ids") == "hashed")
        if "platform_numbers" in settings._fields:
            assert settings.platform_numbers == overrides.get("platform_numbers", True)
        if "valkey" in settings._fields:
            assert (settings.valkey is None) == (overrides.get("lane") == "dynamodb")
            if settings.valkey:
                assert (settings.valkey.iam is None) == (stage == "local")
                assert settings.valkey.connection.url.startswith("valkey://" if stage == "local" else "valkeys://")
        if "dynamodb_lane" in settings._fields:
            assert (settings.dynamodb_lane is None) == (variant == "without a fallback"), role


@pytest.mark.parametrize("is_set", [False, True])
def test_a_stage_reads_replies_only_if_it_is_told_to(
    is_set: bool, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    found = functions_of(synthesize("dev", **({"tune": {"replies": True}} if is_set else {}))["Buffer"])
    assert settings_of(found["ingest"]).notes_replies == is_set


@pytest.mark.parametrize("goal", [None, 0.3])
def test_the_waits_are_moved_every_week_only_if_the_stage_names_a_goal(
    goal: float | None, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    rules = synthesize("prod", tune={"weekly_cut_share": goal})["Buffer"].find_resources("AWS::Events::Rule")
    found = [
        (each["Properties"]["ScheduleExpression"], json.loads(target["Input"]))
        for each in rules.values()
        for target in each["Properties"].get("Targets", ())
        if "tune.weekly" in target.get("Input", "")
    ]
    assert [schedule for schedule, _ in found] == (["cron(0 3 ? * MON *)"] if goal else [])
    for _, event in found:
        assert event.pop("operation") == "tune.weekly"
        assert read_request(MoveWaits, event).cut_share == goal


@pytest.mark.parametrize("variant", ["local", "dev", "prod"])
def test_a_processor_lives_long_enough_to_leave(variant: str, functions: Functions) -> None:
    found = functions(variant)["processor"]
    settings = settings_of(found)
    assert found["Timeout"] * 1_000 > settings.handover_ms + settings.valkey.store.lease_ms // 3


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_stages_rules_are_rules(variant: str, functions: Functions) -> None:
    rules = settings_of(functions(variant)["ingest"]).rules
    layer = RuleLayer.model_validate({**rules, "name": "stage"})
    for platform in ("", "generic", "whatsapp"):
        assert resolve_rules([layer], platform).skipped == ()


def test_what_the_bus_lets_consumers_ask_for_is_what_is_published() -> None:
    assert bus.SOURCE == event_bus.SOURCE
    by_responder = {responder_service.REPLY_SENT, responder_service.REPLY_WITHHELD}
    of_conversations = {AMENDED, CANCELLED, COMPLETED, FORGOTTEN, HANDED_BACK, HANDED_OFF, IDLE, REPLY_FAILED}
    assert set(bus.EVENTS) == {batch.DETAIL_TYPE, ACTED} | of_conversations | by_responder


@pytest.mark.parametrize("variant", ["local", "responder"])
def test_a_responder_has_time_for_an_answer(variant: str, functions: Functions) -> None:
    function, (_, overrides) = functions(variant)["responder"], VARIANTS[variant]
    options = settings_of(function).options
    assert options.assistant == (overrides.get("responder") or {}).get("assistant", "echo")
    longest_seconds = options.assistant_seconds + MAX_SEND_SECONDS + MIN_TIME_TO_FINISH_MS / 1_000
    assert function["Timeout"] > longest_seconds


def test_the_tenant_of_trials_has_one_name() -> None:
    assert bus.TRIAL_TENANT == conversation_id.TRIAL_TENANT
    burst = Burst(GenericWebhook("https://api.example", "secret"), canary_service.ACCOUNT, "7")
    assert burst.conversation.startswith(canary.CONVERSATIONS)
    assert str(conversation_id.TRIAL_OF_FALLBACK) == f"{bus.TRIAL_TENANT}/generic/{verify.FALLBACK}/"


def test_each_function_is_told_of_the_queues_in_the_order_of_the_settings(functions: Functions) -> None:
    found = {role: settings_of(each) for role, each in functions("queues").items()}
    names = list(found["ingest"].queues)
    assert names == list(VARIANTS["queues"].overrides["queues"])
    assert set(found["conversation_processor"].emission.queues) == set(names) == set(found["admin"].queues)
    assert found["dynamodb_processor"].emission.queues == found["conversation_processor"].emission.queues
    assert len(set(found["admin"].queue_dead_letter_urls)) == len(names)
    consumed = found["responder"].queues
    assert set(consumed) == set(names) - {"handoff"}
    urls = {each["url"] for each in consumed.values()}
    assert urls.isdisjoint({each["dead_letter_url"] for each in consumed.values()})


def test_the_responder_listens_for_what_the_buffer_publishes() -> None:
    assert responder.FORGOTTEN == FORGOTTEN == responder_batch.FORGOTTEN
    assert responder.COMPLETED == COMPLETED == responder_batch.COMPLETED
    assert storage.BATCHES.removesuffix("*") == responder_batch.BATCHES
