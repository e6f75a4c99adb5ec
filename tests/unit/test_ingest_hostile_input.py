"""Whatever JSON or bytes arrive signed, ingest answers in a sentence, never with a 5xx."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.engine import Engine
from tests.support.ingest_scene import HEADERS, Json, Scene


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch)


def message(message_id: str = "m1", **fields: Any) -> Json:
    return {"account": "shop", "conversation": "c1", "id": message_id, "text": "Hey"} | fields


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)


def fields_of(names: str) -> st.SearchStrategy[Json]:
    return st.dictionaries(st.sampled_from(names.split()), ANYTHING, max_size=8)


GENERIC = fields_of("account conversation id text author sentAt attachments tenant agent replyTo type")


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANYTHING | GENERIC | st.lists(GENERIC, max_size=3) | GENERIC.map(lambda odd: message() | odd))
def test_whatever_json_comes_signed_the_answer_is_no_5xx(scene: Scene, body: Any) -> None:
    assert scene.post("generic", body)[0] in (200, 400, 413)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100), st.sampled_from(list(HEADERS)))
def test_whatever_bytes_come_signed_the_answer_is_no_5xx(scene: Scene, body: bytes, platform: str) -> None:
    assert scene.post(platform, body)[0] in (200, 400)


def test_nesting_that_no_message_can_hold_is_refused(scene: Scene) -> None:
    status, answer = scene.post("generic", message(attachments=[{"type": "file", "x": nested(300)}]))
    assert status == 400
    assert answer["error"]
    assert scene.is_empty()


def test_a_type_is_not_empty(scene: Scene) -> None:
    assert scene.post("generic", message(type=""))[0] == 400
    assert scene.is_empty()
