"""Where infrastructure and functions meet: what each stage tells its functions is what they read."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from infra.composition import compose
from infra.config import StageConfig
from lambdas.shared import config
from lambdas.shared.message import MAX_MESSAGE_BYTES
from lambdas.shared.rules import RuleLayer, resolve_rules
from lambdas.shared.store.connection import connect

pytestmark = pytest.mark.xdist_group("synth")

STAGES = ["local", "dev", "prod"]
READERS: Mapping[str, Callable[[Mapping[str, str]], Any]] = {
    "ingest": config.read_ingest,
    "processor": config.read_processor,
    "conversation_processor": config.read_conversation_processor,
    "watchdog": config.read_watchdog,
}
# What Lambda itself adds.
RESERVED = {"AWS_LAMBDA_FUNCTION_NAME": "the-function", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def functions(
    stage_config: Callable[..., StageConfig], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, dict[str, Any]]]:
    empty = tmp_path_factory.mktemp("source")
    (empty / "thing.py").touch()
    made: dict[str, dict[str, dict[str, Any]]] = {}

    def synthesized(stage: str) -> dict[str, dict[str, Any]]:
        if stage not in made:
            app = cdk.App(outdir=str(tmp_path_factory.mktemp("out")))
            stack = compose(app, stage_config(stage), source=empty, layer=empty)
            found = Template.from_stack(stack).find_resources("AWS::Lambda::Function").values()
            made[stage] = {each["Properties"]["Handler"].split(".")[1]: each["Properties"] for each in found}
        return made[stage]

    return synthesized


def environment(function: dict[str, Any]) -> dict[str, str]:
    """As CloudFormation will fill it in: references become words, joins are joined."""
    return RESERVED | {name: _filled_in(value) for name, value in function["Environment"]["Variables"].items()}


def _filled_in(value: Any) -> str:
    if isinstance(value, str):
        return value
    ((intrinsic, argument),) = value.items()
    if intrinsic == "Fn::Join":
        separator, parts = argument
        return str(separator).join(map(_filled_in, parts))
    name = argument[0] if isinstance(argument, list) else argument
    return "6379" if "Port" in str(argument) else re.sub(r"[^A-Za-z0-9]", "-", str(name))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("role", READERS)
def test_what_a_function_is_told_is_what_it_reads(
    stage: str, role: str, functions: Callable[..., dict[str, dict[str, Any]]]
) -> None:
    settings = READERS[role](environment(functions(stage)[role]))
    assert (settings.valkey.iam is None) == (stage == "local")
    assert settings.valkey.connection.url.startswith("valkey://" if stage == "local" else "valkeys://")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("role", READERS)
def test_a_function_reads_all_that_it_is_told(
    stage: str, role: str, functions: Callable[..., dict[str, dict[str, Any]]]
) -> None:
    read: set[str] = set()

    class Watched(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

    told = environment(functions(stage)[role])
    READERS[role](Watched(told))
    unread = told.keys() - read - RESERVED.keys()
    assert {name for name in unread if not name.startswith("POWERTOOLS_")} == {"STAGE"}


@pytest.mark.parametrize("stage", STAGES)
def test_an_executors_token_outlasts_its_lambda_and_not_its_claim(
    stage: str, functions: Callable[..., dict[str, dict[str, Any]]]
) -> None:
    found = functions(stage)
    executor = config.read_conversation_processor(environment(found["conversation_processor"]))
    processor = config.read_processor(environment(found["processor"]))
    lambda_ms = found["conversation_processor"]["Timeout"] * 1_000
    assert lambda_ms < executor.valkey.store.executor_ms <= processor.valkey.store.claim_ms


@pytest.mark.parametrize("stage", STAGES)
def test_a_processor_lives_long_enough_to_leave(
    stage: str, functions: Callable[..., dict[str, dict[str, Any]]]
) -> None:
    found = functions(stage)["processor"]
    settings = config.read_processor(environment(found))
    assert found["Timeout"] * 1_000 > settings.handover_ms + settings.valkey.store.lease_ms // 3


@pytest.mark.parametrize("stage", STAGES)
def test_every_stages_rules_are_rules(stage: str, functions: Callable[..., dict[str, dict[str, Any]]]) -> None:
    rules = config.read_ingest(environment(functions(stage)["ingest"])).rules
    layer = RuleLayer.model_validate({**rules, "name": "stage"})
    for platform in ("", "generic", "whatsapp"):
        assert resolve_rules([layer], platform).skipped == ()


@pytest.mark.parametrize("stage", STAGES)
def test_one_message_fits_an_event(stage: str, functions: Callable[..., dict[str, dict[str, Any]]]) -> None:
    settings = config.read_conversation_processor(environment(functions(stage)["conversation_processor"]))
    assert settings.max_event_bytes > MAX_MESSAGE_BYTES


def test_a_stages_url_is_one_that_the_store_can_open(functions: Callable[..., dict[str, dict[str, Any]]]) -> None:
    settings = config.read_watchdog(environment(functions("local")["watchdog"]))
    # Standalone clients do not connect until they are used.
    connect(settings.valkey.connection._replace(url=settings.valkey.connection.url.partition("?")[0])).close()
