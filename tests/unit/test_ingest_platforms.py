"""The answers of ingest to each platform, the signatures it checks, and hostile bodies that are signed."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.ingest.platforms import PLATFORMS
from tests.support import platforms
from tests.support.any_json import any_json
from tests.support.ingest_scene import SECRET, VERIFY_TOKEN, Scene, gateway, rest_gateway
from tests.support.platforms import FORM, HOST, body_of, fixtures, name_of, signed

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.amended.json").read_text())


VALIDATOR = jsonschema.Draft4Validator(SCHEMA)


# 10,000 bodies of each platform in the nightly run.
MANY = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 200


ANYTHING = any_json(max_size=3, max_leaves=10)


def mutated(draw: st.DrawFn, value: Any, odds: int = 8) -> Any:
    """Return the value with some of its parts replaced by anything, doubled or left out."""
    if draw(st.integers(0, odds)) == 0:
        return draw(ANYTHING)
    if isinstance(value, dict):
        return {key: mutated(draw, item) for key, item in value.items() if draw(st.integers(0, odds))}
    if isinstance(value, list):
        return [mutated(draw, item) for item in value for _ in range(draw(st.sampled_from([1, 1, 1, 1, 0, 2])))]
    return value


CONTENTS = {
    platform: [json.loads(path.read_text()) for path in fixtures() if path.parent.name == platform]
    for platform in PLATFORMS
}


@pytest.mark.parametrize("fixture", fixtures(), ids=name_of)
def test_every_fixture_is_accepted_and_its_amendments_are_valid(scene: Scene, fixture: Path) -> None:
    platform = fixture.parent.name
    for _ in range(2):
        assert scene.post(platform, json.loads(fixture.read_text()))[0] == 200
    expected = json.loads(fixture.with_suffix(".expected.json").read_text())
    ignored = {name: count for name, count in scene.telemetry.counts.items() if name.startswith("IgnoredKinds")}
    assert ignored == {f"IgnoredKinds {kind}": 2 * count for kind, count in expected["ignored"].items()}
    for event in scene.amended():
        VALIDATOR.validate(event)


def test_twilio_is_answered_in_its_own_words(scene: Scene) -> None:
    fields = {"MessageSid": "SM1", "From": "+1401", "To": "+1555", "Body": "hi"}
    assert scene.post("twilio", fields) == (200, "<Response></Response>")
    assert len(scene.buffered("default/twilio/1555/1401")) == 1


def test_a_rest_apis_twilio_signs_the_path_with_its_stage(scene: Scene) -> None:
    fields = {"MessageSid": "SM1", "From": "+1401", "To": "+1555", "Body": "hi"}
    raw = body_of("twilio", fields)
    # openssl dgst -sha1 -hmac s3cret over the URL and BodyhiFrom+1401MessageSidSM1To+1555
    headers = {"Content-Type": FORM, "X-Twilio-Signature": "72NN4ue872JbGucv3iTw9PbVxUU="}
    assert scene.call(rest_gateway("twilio", raw, headers=headers, query={"shop": "1"}, stage="live"))[0] == 200
    assert scene.call(rest_gateway("twilio", raw, headers=headers, query={"shop": "1"}, stage="test"))[0] == 401
    assert scene.call(rest_gateway("twilio", raw, headers=headers))[0] == 401


@pytest.mark.promise("P9")
def test_what_twilio_signed_for_another_host_is_not_made_ours_by_the_header_host(scene: Scene) -> None:
    fields = {"MessageSid": "SM1", "From": "+1401", "To": "+1555", "Body": "hi"}
    raw = body_of("twilio", fields)
    headers = {"content-type": FORM, **signed("twilio", raw, SECRET, fields=list(fields.items()))}
    event = gateway("twilio", raw, headers=headers | {"Host": HOST})
    event["requestContext"]["domainName"] = "other.example.com"
    assert scene.call(event)[0] == 401
    event["requestContext"]["domainName"] = HOST
    event["headers"]["Host"] = "other.example.com"
    assert scene.call(event)[0] == 200


def test_twilio_signs_the_url_in_the_letters_that_an_operator_typed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"MessageSid": "SM1", "From": "+1401", "To": "+1555", "Body": "hi"}
    raw, typed = body_of("twilio", fields), HOST.title()
    monkeypatch.setattr(platforms, "HOST", typed)
    headers = {"content-type": FORM, **signed("twilio", raw, SECRET, fields=list(fields.items()))}
    event = gateway("twilio", raw, headers=headers | {"Host": typed})
    event["requestContext"]["domainName"] = HOST
    assert scene.call(event)[0] == 200


@pytest.mark.promise("P9")
def test_behind_another_address_twilio_signs_that_address(scene: Scene) -> None:
    scene.address = "https://tunnel.example/some/path"
    raw = b"Body=hi&From=%2B1401&MessageSid=SM1&To=%2B1555"
    # openssl dgst -sha1 -hmac s3cret over https://tunnel.example/some/path/webhook/twilio?shop=1 and the sorted fields
    headers = {"content-type": FORM, "X-Twilio-Signature": "JQPCodH+2d+/dRjNJI22wB6TkZU="}
    for event in (gateway, rest_gateway):
        assert scene.call(event("twilio", raw, headers=headers, query={"shop": "1"}))[0] == 200
    scene.address = "https://other.example"
    assert scene.call(gateway("twilio", raw, headers=headers, query={"shop": "1"}))[0] == 401
    assert scene.telemetry.said("signature refused")[-1]["url"] == "https://other.example/webhook/twilio"
    scene.call(gateway("generic", b"{}"))
    assert "url" not in scene.telemetry.said("signature refused")[-1]


@pytest.mark.parametrize("platform", ["whatsapp", "messenger", "instagram"])
def test_every_platform_of_meta_asks_whether_we_are_we(scene: Scene, platform: str) -> None:
    query = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "42"}
    assert scene.call(gateway(platform, method="GET", query=query)) == (200, "42")
    assert scene.call(gateway(platform, method="GET", query=query | {"hub.verify_token": "x"}))[0] == 403


@pytest.mark.parametrize("platform", PLATFORMS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=MANY)
@given(data=st.data())
def test_whatever_a_platform_signs_the_answer_is_no_5xx(scene: Scene, platform: str, data: st.DataObject) -> None:
    content = data.draw(st.composite(lambda draw: mutated(draw, draw(st.sampled_from(CONTENTS[platform]))))())
    if platform == "twilio":
        fields = content if isinstance(content, dict) else {"Body": content}
        content = {str(name): str(value) for name, value in fields.items()}
    assert scene.post(platform, content)[0] in (200, 400, 413)
    for event in scene.amended():
        VALIDATOR.validate(event)
