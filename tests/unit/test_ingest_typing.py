"""The typing route: which requests are accepted, and how long the buffer then waits."""

import json
from typing import Any

import pytest

from message_buffer.errors import StoreUnavailable
from message_buffer.json_object import Json
from message_buffer.limits import SECRET_LIFE_MS
from tests.support.ingest_scene import Scene, message, waits_ms


def typing(**fields: str) -> Json:
    return {"account": "shop", "conversation": "c1"} | fields


def test_typing_waits_as_the_accounts_rules_say(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    scene.rules.write("tenant:acme", {"typingInferenceMs": 9_000})
    scene.post("generic", message())
    _, answer = scene.post("generic", {"account": "shop", "conversation": "c1"}, route="typing")
    assert waits_ms(scene, answer, "acme/generic/shop/c1") == 9_000


def test_typing_is_signed_like_everything(scene: Scene) -> None:
    assert scene.post("generic", typing(), route="typing", secret="guess")[0] == 401
    scene.secrets.text = json.dumps({"generic": {"accounts": {"shop": "as", "other": "bs"}}})
    scene.secrets_now_ms += SECRET_LIFE_MS + 1
    assert scene.post("generic", [typing(), typing(account="other")], route="typing", secret="as")[0] == 401
    assert scene.post("generic", typing(), route="typing", secret="as")[0] == 200


@pytest.mark.promise("P9")
def test_the_secret_of_an_account_tells_of_typing_in_its_own_tenant_alone(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"generic": {"accounts": {"shop": "as"}}})
    body = typing(tenant="acme")
    assert scene.post("generic", body, route="typing", secret="as") == (
        400,
        {"error": "tenant may not be named here: the rules say which tenant owns the account."},
    )
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    scene.engine.clock.advance(60_000)
    _, answer = scene.post("generic", typing(), route="typing", secret="as")
    assert list(answer["conversations"]) == ["acme/generic/shop/c1"]


@pytest.mark.parametrize(
    "body", [b"{", [], {"account": "shop"}, typing(tenent="acme"), typing(conversation="c" * 2_000)]
)
def test_typing_that_is_wrong_is_refused_in_a_sentence(scene: Scene, body: Any) -> None:
    status, answer = scene.post("generic", body, route="typing")
    assert status == 400
    assert answer["error"]


def test_typing_while_valkey_is_away_is_for_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(scene.engine.store, "extend_wait", fail)
    assert scene.post("generic", typing(), route="typing")[0] == 503
