"""docs/sending.md shows a body that ingest accepts, and names every field and platform."""

import json
import re
from pathlib import Path

import jsonschema

from lambdas.ingest.platforms import PLATFORMS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/sending.md").read_text("utf-8")
SCHEMA = json.loads((ROOT / "docs/schema/generic.webhook.json").read_text("utf-8"))
BODY, _RESPONSE = re.findall(r"```json\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_body_is_one_of_the_schema() -> None:
    jsonschema.Draft4Validator(SCHEMA).validate(json.loads(BODY))


def test_every_field_is_named_and_those_that_are_required_are_called_so() -> None:
    named = dict(re.findall(r"^\| `(\w+)` \| (required|optional) \|", DOCUMENT, re.MULTILINE))
    message, reaction = SCHEMA["definitions"]["message"], SCHEMA["definitions"]["reaction"]
    assert named.keys() == message["properties"].keys() | reaction["properties"].keys()
    assert {field for field, need in named.items() if need == "required"} == set(message["required"])


def test_every_platform_says_where_its_secret_comes_from() -> None:
    table = DOCUMENT.split("## The secret of a stage")[1]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == PLATFORMS.keys()
