"""The responder's stack: its permissions, what it keeps, and that no other stack needs it."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aws_cdk.assertions import Template

from infra.bus import TRIAL_TENANT
from infra.settings_and_defaults import ConfigError, StageConfig

pytestmark = pytest.mark.xdist_group("synth")

PROFILE = "us.amazon.nova-lite-v1:0"
Stacks = Mapping[str, Template]


@pytest.fixture(scope="module")
def template(synthesize: Callable[..., Stacks]) -> Template:
    return synthesize("prod", responder={"assistant": "bedrock", "model": PROFILE}, tracing=True)["Responder"]


def _one(template: Template, kind: str) -> dict[str, Any]:
    (found,) = template.find_resources(kind).values()
    return dict(found)


def _statements(template: Template) -> dict[str, Any]:
    """Return the function's permissions: action -> resource."""
    allowed = {}
    for policy in template.find_resources("AWS::IAM::Policy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            for action in actions if isinstance(actions, list) else [actions]:
                allowed[action] = statement["Resource"]
    return allowed


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_a_stage_has_a_responder_only_if_it_says_so(stage: str, synthesize: Callable[..., Stacks]) -> None:
    without, with_one = synthesize(stage), synthesize(stage, responder={})
    assert len(with_one["Responder"].to_json()["Resources"]) > 1
    (nothing,) = without["Responder"].to_json()["Resources"].values()
    assert nothing["Type"] == "AWS::CloudFormation::WaitConditionHandle", "CloudFormation refuses an empty template"
    imports = str(with_one["Buffer"].to_json())
    assert "MessageBuffer-" + stage + "-Responder" not in imports, "nothing above depends on it"


def test_of_the_bus_it_gets_what_changes_its_conversations_and_nothing_of_trials(template: Template) -> None:
    rule = _one(template, "AWS::Events::Rule")["Properties"]
    assert rule["EventPattern"] == {
        "source": ["message-buffer"],
        "detail-type": ["messages.conversation.forgotten", "messages.conversation.completed"],
        "detail": {"tenant": [{"anything-but": [TRIAL_TENANT]}]},
    }


def test_it_speaks_to_the_internet_and_not_to_the_cache(template: Template) -> None:
    assert "VpcConfig" not in _one(template, "AWS::Lambda::Function")["Properties"]


def test_it_may_invoke_the_gate_and_not_the_function_of_operators(template: Template) -> None:
    """Before, it invoked the admin function, and so might do all that an operator may."""
    named = str(_statements(template)["lambda:InvokeFunction"])
    assert "Gate" in named
    assert "Admin" not in named
    variables = _one(template, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"]
    assert "Admin" not in str(variables)


def test_it_may_read_its_secret_and_those_of_the_prefix_that_it_is_told(template: Template) -> None:
    settings = str(_one(template, "AWS::Lambda::Function")["Properties"]["Environment"]["Variables"])
    named = str(_statements(template)["secretsmanager:GetSecretValue"])
    assert "ResponderSecrets" in named
    assert ":secret:message-buffer-prod/*" in named
    assert named.count("*") == 1
    assert "message-buffer-prod/" in settings


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("amazon.nova-lite-v1:0", ["foundation-model/amazon.nova-lite-v1:0"]),
        (PROFILE, [f"inference-profile/{PROFILE}", "foundation-model/amazon.nova-lite-v1:0"]),
        (
            f"arn:aws:bedrock:us-east-1:111122223333:inference-profile/{PROFILE}",
            [f"inference-profile/{PROFILE}", "foundation-model/amazon.nova-lite-v1:0"],
        ),
        ("arn:aws:bedrock:us-east-1:111122223333:application-inference-profile/x", ["application-inference-profile/x"]),
    ],
)
def test_only_the_model_of_the_stage_may_be_asked(
    model: str, named: list[str], synthesize: Callable[..., Stacks]
) -> None:
    resources = _statements(synthesize("dev", responder={"assistant": "bedrock", "model": model})["Responder"])[
        "bedrock:InvokeModel"
    ]
    found = [str(each) for each in (resources if isinstance(resources, list) else [resources])]
    assert len(found) == len(named)
    assert all(any(name in resource for resource in found) for name in named)


def test_the_function_that_writes_the_replies_may_be_called(synthesize: Callable[..., Stacks]) -> None:
    arn = "arn:aws:lambda:us-east-1:111122223333:function:my-agent:live"
    stack = synthesize("dev", responder={"assistant": {"function": arn}})["Responder"]
    allowed = [str(each) for each in stack.find_resources("AWS::IAM::Policy").values()]
    assert any(arn in policy for policy in allowed)
    (function,) = (each for each in stack.find_resources("AWS::Lambda::Function").values() if arn in str(each))
    assert f'"assistant":"{arn}"' in str(function["Properties"]["Environment"])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"responder": {"assistant": "bedrock"}}, "model is needed"),
        ({"responder": {"assistant": "chat-completions"}}, "model is needed"),
        ({"responder": {"assistant": {"function": "my-agent"}}}, "responder.assistant"),
        ({"responder": {"gate": "perhaps"}}, "discard_and_merge"),
        ({"responder": {"tools": ["refund"]}}, "finish_task"),
        ({"responder": {"asistant": "echo"}}, "responder.asistant is unknown; valid there: allowed_channels"),
        ({"responder": {"assistant_url": "http://ai.example.org"}}, "assistant_url must begin with https"),
        (
            {"responder": {"gate_wait_seconds": 45}, "rules": {"preset": "customers"}},
            "responder.gate_wait_seconds must be above 45, the rules' longest maxWaitMs in seconds",
        ),
        ({"responder": {"gate": "interrupt"}, "rules": {"maxWaitMs": 60_000}}, "must be above 60"),
        ({"responder": {}, "rules": {"platformOverrides": {"twilio": {"maxWaitMs": 60_500}}}}, "must be above 60.5"),
    ],
)
def test_a_responder_that_cannot_be_is_refused_in_a_sentence(
    overrides: dict[str, Any], sentence: str, stage_config: Callable[..., StageConfig]
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        stage_config("dev", **overrides)
