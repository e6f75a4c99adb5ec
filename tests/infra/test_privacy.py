"""docs/privacy.md has a row for each store of the templates, and says of each what the templates say."""

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from aws_cdk.assertions import Template

from infra.settings_and_defaults import StageConfig

pytestmark = pytest.mark.xdist_group("synth")

PAGE = Path(__file__).parents[2] / "docs/privacy.md"
# Every kind of store that a stage has, so that a new stage setting cannot hide one.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    (
        "prod",
        {
            "responder": {}, "bus": {"archive_days": 3}, "log_ids": "hashed", "network": {"flow_logs": True},
            "api": {"kind": "rest"},
            "end_user_messaging_topic": "arn:aws:sns:us-east-1:111122223333:whatsapp",
        },
    ),
    ("prod", {"lane": "dynamodb"}),
    ("dev", {}),
]  # fmt: skip
# These keep nothing of what people write: code, permissions, networks, and what watches them. A type that is not here
# is a store, until somebody has looked at it.
KEEP_NOTHING = re.compile(
    r"AWS::(IAM|EC2|Lambda|ApiGateway|ApiGatewayV2|WAFv2|CloudWatch)::.+"
    r"|AWS::Events::(Rule|EventBus|EventBusPolicy)|AWS::ElastiCache::User(Group)?|AWS::KMS::Key"
    r"|AWS::CloudFormation::WaitConditionHandle|AWS::S3::BucketPolicy|AWS::SQS::QueuePolicy|AWS::SNS::(TopicPolicy|Subscription)"
)
# Alarms name a stage and a metric; these secrets are those of the stage and its platforms.
OF_NO_PERSON = {"AlarmTopic", "WebhookSecrets", "ResponderSecrets", "LogIdKey"}

Resource = dict[str, Any]
Synthesize = Callable[..., Mapping[str, Template]]


def rows() -> dict[str, list[str]]:
    """Return the table: a store, or a pattern of stores -> the other cells."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", cells[0]), cells[1:])
    return found


@pytest.fixture(scope="module")
def stores(synthesize: Synthesize) -> dict[str, Resource]:
    """Return the stores of all variants by their construct's name."""
    return {
        re.sub(r"[0-9A-F]{8}$", "", name): resource
        for stage, overrides in VARIANTS
        for template in synthesize(stage, **overrides).values()
        for name, resource in template.to_json()["Resources"].items()
        if not KEEP_NOTHING.fullmatch(resource["Type"])
    }


def names_for(store: str) -> list[str]:
    """Return the row of the store's own name, or the rows whose patterns match it."""
    return [store] if store in rows() else [name for name in rows() if fnmatch(store, name)]


def test_each_store_has_one_row_and_each_row_a_store(stores: dict[str, Resource]) -> None:
    assert stores.keys() >= OF_NO_PERSON
    found = {store: names_for(store) for store in stores.keys() - OF_NO_PERSON}
    assert {store: names for store, names in found.items() if len(names) != 1} == {}, "give it a row in docs/privacy.md"
    assert {name for (name,) in found.values()} == rows().keys()


@pytest.mark.parametrize("name", sorted(rows()))
def test_every_setting_that_a_row_names_exists(name: str) -> None:
    for setting in re.findall(r"`([a-z_.]+)`", " ".join(rows()[name])):
        group, _, field = setting.rpartition(".")
        annotation: Any = StageConfig.model_fields[group].annotation if group else StageConfig
        alternatives = (annotation, *getattr(annotation, "__args__", ()))
        model = next(each for each in alternatives if hasattr(each, "model_fields"))
        assert field in model.model_fields, setting
