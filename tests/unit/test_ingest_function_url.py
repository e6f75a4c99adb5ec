"""Webhooks at ingest's own address, where no gateway has checked the path, the method or the size."""

import hashlib
import hmac
import json
from base64 import b64encode
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.ingest.platforms import PLATFORMS
from message_buffer.json_object import Json
from tests.support.ingest_scene import SECRET, URL_HOST, Scene, function_url, message, signature
from tests.support.platforms import FORM, body_of, fixtures, name_of, signed


def generic(path: str = "/webhook/generic", **fields: str) -> Json:
    raw = json.dumps(message(**fields)).encode()
    return function_url(path, raw, headers={"Content-Type": "application/json", "X-Signature-256": signature(raw)})


def changed_nothing(scene: Scene) -> bool:
    return not scene.engine.admin.keys("*") and not scene.bus.published


ONE_OF_EACH = {fixture.parent.name: fixture for fixture in fixtures() if fixture.parent.name in PLATFORMS}


@pytest.mark.parametrize("fixture", ONE_OF_EACH.values(), ids=name_of)
def test_each_platform_is_served_and_a_forgery_is_refused(fixture: Path, scene: Scene) -> None:
    platform, content = fixture.parent.name, json.loads(fixture.read_text())
    raw = body_of(platform, content)
    kind = FORM if platform == "twilio" else "application/json"
    headers = {"content-type": kind, **signed(platform, raw, SECRET, fields=_fields(platform, content))}
    if platform == "twilio":
        headers["x-twilio-signature"] = _twilio_signature(f"https://{URL_HOST}/webhook/twilio", content)
    assert scene.call(function_url(f"/webhook/{platform}", raw, headers=headers))[0] == 200
    forged = {name: value[::-1] for name, value in headers.items() if name != "content-type"}
    event = function_url(f"/webhook/{platform}", raw, headers={"content-type": kind, **forged})
    assert scene.call(event)[0] == 401


def _fields(platform: str, content: Json) -> list[tuple[str, str]] | None:
    return list(content.items()) if platform == "twilio" else None


def _twilio_signature(url: str, fields: Json) -> str:
    signed_text = url + "".join(name + value for name, value in sorted(fields.items()))
    return b64encode(hmac.new(SECRET.encode(), signed_text.encode(), hashlib.sha1).digest()).decode()


def test_twilio_signs_the_functions_own_address_and_its_query(scene: Scene) -> None:
    fields = {"MessageSid": "SM1", "From": "+1401", "To": "+1555", "Body": "hi"}
    raw = body_of("twilio", fields)
    proof = _twilio_signature(f"https://{URL_HOST}/webhook/twilio?shop=1", fields)
    headers = {"content-type": FORM, "x-twilio-signature": proof}
    assert scene.call(function_url("/webhook/twilio", raw, headers=headers, query={"shop": "1"}))[0] == 200
    assert scene.call(function_url("/webhook/twilio", raw, headers=headers))[0] == 401
    headers["x-twilio-signature"] = _twilio_signature("https://another.example/webhook/twilio", fields)
    assert scene.call(function_url("/webhook/twilio", raw, headers={**headers, "host": "another.example"}))[0] == 401


def test_typing_has_its_own_route_for_platforms_that_report_it(scene: Scene) -> None:
    raw = json.dumps({"account": "shop", "conversation": "c1"}).encode()
    headers = {"Content-Type": "application/json", "X-Signature-256": signature(raw)}
    assert scene.call(function_url("/typing/generic", raw, headers=headers))[0] == 200
    assert scene.call(function_url("/typing/whatsapp", raw, headers=headers))[0] == 404
    assert scene.call(function_url("/typing/generic", method="GET"))[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "", "/webhook/", "/webhook/generic/", "/webhook/generic/more", "//webhook/generic",
        "/webhook/../webhook/generic", "/live/webhook/generic", "/webhook/Generic", "/webhook/%67eneric",
        "/webhook/generic\n", "/typing",
        "/webhook/" + "a" * 5_000_000, "/webhook/généric",
    ],
    ids=lambda path: quote(path[:40]),
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_any_other_path_is_not_found_and_changes_nothing(path: str, method: str, scene: Scene) -> None:
    assert scene.call({**generic(path), "requestContext": function_url(path, method=method)["requestContext"]}) == (
        404, {"error": "There is no such platform."},
    )  # fmt: skip
    assert changed_nothing(scene)
    assert scene.telemetry.lines == [], "the path of an unauthenticated request is not logged"


@given(
    path=st.one_of(st.text(max_size=60), st.builds("/{}/{}".format, st.sampled_from(["webhook", "typing"]), st.text())),
    method=st.one_of(st.sampled_from(["GET", "POST", "PUT"]), st.text(max_size=8)),
    query=st.one_of(st.none(), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)),
    body=st.binary(max_size=200),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_an_unauthenticated_client_calls_the_answer_is_a_4xx_and_nothing_changes(
    path: str, method: str, query: dict[str, str] | None, body: bytes, scene: Scene
) -> None:
    status, _ = scene.call(function_url(path, body, method=method, query=query))
    assert 400 <= status < 500
    assert changed_nothing(scene)
    assert not scene.telemetry.counts.get("Crashes")
