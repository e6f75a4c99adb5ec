"""Which secrets open which accounts, and when ingest reads them again."""

import json

import pytest

from lambdas.ingest.webhook_secrets import MIN_MS_BETWEEN_SECRET_READS
from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.limits import SECRET_LIFE_MS
from tests.support.ingest_scene import HEADERS, SECRET, Scene, gateway, message, signature, telegram
from tests.support.ingest_scene import whatsapp as of_whatsapp
from tests.support.platforms import one_message

TWO_ACCOUNTS = {"whatsapp": {"secret": "everybodys", "accounts": {"111": {"secret": ["as", "as old"]}, "222": "bs"}}}


def whatsapp(*accounts: str, statuses: bool = False) -> Json:
    bodies = [
        of_whatsapp(statuses=[{}], account=each) if statuses else one_message("whatsapp", each) for each in accounts
    ]
    return bodies[0] | {"entry": [entry for body in bodies for entry in body["entry"]]}


@pytest.mark.promise("P9")
@pytest.mark.parametrize("platform", HEADERS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-signature-256": "sha256=", "x-hub-signature-256": "sha256="},
        {"x-signature-256": signature(b"other"), "x-hub-signature-256": signature(b"other")},
        {"x-signature-256": signature(b"{}", "guess"), "x-hub-signature-256": signature(b"{}", "guess")},
        {"x-signature-256": signature(b"{}")[7:], "x-hub-signature-256": signature(b"{}")[7:]},
        {"x-signature-256": "sha256=\xfc", "x-hub-signature-256": "sha256=\xfc"},
    ],
)
def test_without_the_right_signature_nothing_is_read(scene: Scene, platform: str, headers: dict[str, str]) -> None:
    status, answer = scene.call(gateway(platform, b"{}", headers=headers))
    assert (status, answer) == (401, {"error": "The signature is missing or wrong."})
    assert scene.is_empty()


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"generic": ""}', '{"generic": []}', '{"generic": {}}', '{"generic": [null, ""]}', "[]", "no json",
        '{"generic": "half a pair \\ud83d"}',
    ],
)  # fmt: skip
def test_a_platform_without_a_secret_is_closed(scene: Scene, text: str) -> None:
    scene.secrets.text = text
    raw = json.dumps(message()).encode()
    for secret in ("", "None", SECRET):
        event = gateway("generic", raw, headers={"x-signature-256": signature(raw, secret)})
        assert scene.call(event)[0] == 401
    assert scene.is_empty()
    assert scene.telemetry.counts["Unauthentic"] == 3


def test_two_secrets_are_valid_while_one_replaces_the_other(scene: Scene) -> None:
    raw = json.dumps(message()).encode()
    for secret in (SECRET, "the next one"):
        assert scene.call(gateway("generic", raw, headers={"x-signature-256": signature(raw, secret)}))[0] == 200


def test_a_changed_secret_is_known_after_a_while_and_read_only_then(scene: Scene) -> None:
    for _ in range(5):
        scene.post("generic", message())
    assert scene.secrets.reads == 1
    scene.secrets.text = '{"generic": "another"}'
    scene.secrets_now_ms = SECRET_LIFE_MS + 1
    assert scene.post("generic", message())[0] == 401
    assert scene.secrets.reads == 2


def test_an_old_secret_is_better_than_none(scene: Scene) -> None:
    scene.post("generic", message("m1"))
    scene.secrets_now_ms = SECRET_LIFE_MS + 1
    scene.secrets.failures = [SendFailed("read secret: Throttling")]
    assert scene.post("generic", message("m2"))[0] == 200


def test_without_any_secret_to_go_by_the_platform_is_asked_to_come_again(scene: Scene) -> None:
    scene.secrets.failures = [SendFailed("read secret: Throttling")]
    assert scene.post("generic", message())[0] == 503
    assert "StoreFailures" not in scene.telemetry.counts
    assert scene.post("generic", message())[0] == 200


@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    ("secret", "accounts", "status"),
    [
        ("as", ["111"], 200),
        ("as old", ["111"], 200),
        ("everybodys", ["333", "444"], 200),
        ("as", ["222"], 401),
        ("as", ["111", "222"], 401),
        ("as", ["333"], 401),
        ("everybodys", ["333", "111"], 401),
    ],
)
@pytest.mark.parametrize("statuses", [False, True])
def test_a_secret_speaks_for_its_accounts_or_for_nothing_in_the_body(
    scene: Scene, secret: str, accounts: list[str], status: int, statuses: bool
) -> None:
    scene.secrets.text = json.dumps(TWO_ACCOUNTS)
    assert scene.post("whatsapp", whatsapp(*accounts, statuses=statuses), secret=secret)[0] == status
    assert scene.is_empty() == (status == 401 or statuses)
    assert scene.telemetry.counts.get("Unauthentic", 0) == (status == 401)


@pytest.mark.promise("P9")
def test_a_bots_token_makes_its_updates_that_bots(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"telegram": {"secret": "t0", "accounts": {"one": "t1", "two": {"secret": "t2"}}}})
    for token in ("t0", "t1", "t2"):
        assert scene.post("telegram", telegram(), secret=token)[0] == 200
    for bot in ("bot", "one", "two"):
        assert len(scene.buffered(f"default/telegram/{bot}/1111111")) == 1


def test_a_secret_that_was_replaced_is_known_within_seconds(scene: Scene) -> None:
    scene.post("telegram", telegram())
    scene.secrets.text = json.dumps({"telegram": {"accounts": {"shopbot": {"secret": "new"}}}})
    assert scene.post("telegram", telegram(), secret="new")[0] == 401, "it has only just been read"
    scene.secrets_now_ms += MIN_MS_BETWEEN_SECRET_READS + 1
    assert scene.post("telegram", telegram(), secret="new")[0] == 200
    assert scene.secrets.reads == 2


def test_a_flood_of_forgeries_reads_the_secrets_once_in_a_while(scene: Scene) -> None:
    for _ in range(1_000):
        scene.post("telegram", telegram(), secret="guess")
        scene.secrets_now_ms += 50
    assert scene.secrets.reads <= 1 + 1_000 * 50 // MIN_MS_BETWEEN_SECRET_READS


def test_secrets_that_cannot_be_read_again_leave_a_refusal_a_refusal(scene: Scene) -> None:
    scene.post("telegram", telegram())
    scene.secrets_now_ms += MIN_MS_BETWEEN_SECRET_READS + 1
    scene.secrets.failures = [SendFailed("read secret: Throttling")]
    assert scene.post("telegram", telegram(), secret="guess")[0] == 401
