"""What a request may cost before its signature is known, and what unauthenticated requests leave in the process."""

import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import MAX_SECRETS_TRIED, MAX_SIGNATURE_AGE_MS, MAX_WEBHOOK_BYTES
from lambdas.ingest.unauthenticated import MAX_LINES_A_MINUTE
from message_buffer.json_object import Json
from message_buffer.limits import MINUTE_MS
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.rules import rule_book
from message_buffer.rules.rule_book import RuleBook
from tests.support.engine import Engine
from tests.support.fakes import FakeRules, RecordedTelemetry
from tests.support.ingest_scene import (
    CHAT,
    SECRET,
    VERIFY_TOKEN,
    Scene,
    account,
    gateway,
    message,
    request,
    resident_bytes,
    signature,
)
from tests.support.platforms import OBJECTS, body_of, content_type, one_message, signed

WITH_A_HASH = [name for name in PLATFORMS if name != "telegram"]
MB = 1_000_000


def post(scene: Scene, platform: str, content: Any, *, secret: str) -> tuple[int, Any]:
    return scene.call(request(platform, content, secret))


# -- CPU -------------------------------------------------------------------------------------------


Hashed = Callable[[Json], tuple[int, int]]


@pytest.fixture
def hashed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Hashed:
    """Return a function that returns a request's status, and the number of bytes of which an HMAC was computed."""
    lengths: list[int] = []

    def counting(compute: Callable[..., Any]) -> Callable[..., Any]:
        def counted(key: bytes, msg: bytes, kind: Any) -> Any:
            lengths.append(len(msg))
            return compute(key, msg, kind)

        return counted

    monkeypatch.setattr(hmac, "new", counting(hmac.new))
    monkeypatch.setattr(hmac, "digest", counting(hmac.digest))

    def call(event: Json) -> tuple[int, int]:
        lengths.clear()
        return scene.call(event)[0], sum(lengths)

    return call


@pytest.mark.parametrize("secrets", [1, 5, 200])
@pytest.mark.parametrize("platform", WITH_A_HASH)
def test_a_forged_request_costs_at_most_twice_a_true_one_whatever_the_number_of_secrets(
    scene: Scene, hashed: Hashed, platform: str, secrets: int
) -> None:
    scene.keep_secrets(platform, secrets)
    last, text = account(secrets - 1), "x" * 20_000
    # Twilio may have signed the URL with its port or without.
    most = MAX_SECRETS_TRIED * (len(text) + 1_000) * (2 if platform == "twilio" else 1)
    all_forged = []
    for claimed in (last, account(0), "19990000000"):
        forged_request = request(platform, one_message(platform, claimed, text), "a guess")
        status, forged = hashed(forged_request)
        assert status == 401
        assert 0 < forged <= most
        all_forged.append(forged)
    assert scene.is_empty()
    of_the_last = request(platform, one_message(platform, last, text), f"secret {secrets - 1}")
    status, true = hashed(of_the_last)
    assert status == 200
    assert max(all_forged) <= 2 * true


@pytest.mark.parametrize("platform", WITH_A_HASH)
def test_a_body_over_the_platforms_limit_is_refused_before_anything_is_computed(
    scene: Scene, hashed: Hashed, platform: str
) -> None:
    limit = PLATFORMS[platform].max_body_bytes
    event = gateway(platform, b" " * (limit + 1), headers={"content-type": content_type(platform)})
    event["headers"] |= signed(platform, b"", SECRET)
    assert hashed(event) == (413, 0)
    assert scene.telemetry.counts["BodiesRefused"] == 1
    (line,) = scene.telemetry.said("body refused")
    assert line == {"platform": platform, "status": 413, "reason": f"A webhook has at most {limit} bytes."}


# -- many secrets, and true webhooks ---------------------------------------------------------------


@pytest.mark.parametrize("platform", PLATFORMS)
def test_of_200_secrets_each_opens_its_account_and_the_platforms_own_all_others(scene: Scene, platform: str) -> None:
    scene.keep_secrets(platform, 200, platform_wide="everybodys")
    for name, secret in ((account(0), "secret 0"), (account(199), "secret 199"), ("19990000000", "everybodys")):
        assert post(scene, platform, one_message(platform, name), secret=secret)[0] == 200


@pytest.mark.promise("P9")
def test_accounts_that_a_customers_words_name_do_not_displace_the_platforms_own_secrets(scene: Scene) -> None:
    scene.keep_secrets("generic", 200, platform_wide="everybodys")
    card = {"type": "card", "rows": [{"account": account(number)} for number in range(20)]}
    body = message(account="without a secret of its own", attachments=[card])
    assert post(scene, "generic", body, secret="everybodys")[0] == 200


@pytest.mark.parametrize("platform", WITH_A_HASH)
def test_of_200_secrets_none_opens_the_account_of_another(scene: Scene, platform: str) -> None:
    scene.keep_secrets(platform, 200, platform_wide="everybodys")
    for secret in ("secret 0", "secret 151", "everybodys", "a guess"):
        assert post(scene, platform, one_message(platform, account(150)), secret=secret)[0] == 401
    assert scene.is_empty()


ODD = message(account=account(150))
HONEST = {
    "generic: over several lines": json.dumps(ODD, indent=2).encode(),
    "generic: the account last": json.dumps({"text": "x" * 60_000, **dict(reversed(ODD.items()))}).encode(),
    "generic: another field of that name first": json.dumps(
        {"attachments": [{"type": "file", "account": account(7)}]} | ODD
    ).encode(),
    "generic: the account of another in the text": json.dumps(ODD | {"text": f'"account":"{account(7)}"'}).encode(),
    "generic: a list": json.dumps([ODD, ODD | {"id": "m2"}]).encode(),
    "generic: an escaped slash": json.dumps(ODD).replace("1555", "\\u0031555").encode(),
    "whatsapp: the messages before the number": json.dumps(
        {"entry": [{"changes": [{"value": {"messages": [{"id": f"w{n}"} for n in range(5)],
                                           "metadata": {"phone_number_id": account(150)}}}]}],
         "object": OBJECTS["whatsapp"]}
    ).encode(),
    "whatsapp: news of a business account, without a number": json.dumps(
        {"object": OBJECTS["whatsapp"], "entry": [{"id": account(150), "changes": [{"field": "account_update"}]}]}
    ).encode(),
    "messenger: the page after its events": json.dumps(
        {"object": "page",
         "entry": [{"messaging": [{"sender": {"id": "7"}, "delivery": {}}] * 3, "id": account(150)}]}
    ).encode(),
    "twilio: a status, whose sender is our number": body_of(
        "twilio", {"MessageSid": "SM1", "From": f"+{account(150)}", "To": "+1401", "MessageStatus": "delivered"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_the_account_is_found_wherever_an_honest_body_has_it(scene: Scene, name: str) -> None:
    platform = name.partition(":")[0]
    scene.keep_secrets(platform, 200)
    assert post(scene, platform, HONEST[name], secret="secret 150")[0] == 200


def test_few_secrets_are_all_tried_even_if_the_body_names_no_account(scene: Scene) -> None:
    scene.keep_secrets("whatsapp", MAX_SECRETS_TRIED - 1, platform_wide="everybodys")
    news = {"object": OBJECTS["whatsapp"], "entry": []}
    for secret in ("everybodys", *(f"secret {number}" for number in range(MAX_SECRETS_TRIED - 1))):
        assert post(scene, "whatsapp", news, secret=secret)[0] == 200


# -- memory ----------------------------------------------------------------------------------------


def test_2000_signed_names_of_60_kb_leave_nothing_in_the_process(scene: Scene) -> None:
    def refused(number: int) -> None:
        raw = json.dumps(message(conversation=f"{number:06}" + "c" * 60_000)).encode()
        assert scene.call(gateway("generic", raw, headers={"x-signature-256": signature(raw)}))[0] == 400

    for number in range(50):
        refused(number)
    before = resident_bytes()
    for number in range(50, 2_050):
        refused(number)
    # Each name takes 120 KB, as a part and as an id.
    assert resident_bytes() - before < 20 * MB
    assert scene.is_empty()


def test_agents_that_a_sender_names_do_not_fill_the_memory_with_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_book, "MAX_RESOLVED_RULES", 20)
    rules = FakeRules()
    for number in range(10):
        rules.write(f"agent:default/{number}", {"silenceMs": 1_000 + number})
        rules.write(f"conversation:default/generic/shop/{number}", {"maxWaitMs": 10_000 + number})
    book = RuleBook(rules, {}, RecordedTelemetry(), clock=lambda: 1_000_000)
    for agent in range(10):
        for user in range(10):
            conversation = ConversationId("default", "generic", "shop", str(user))
            timing = book.for_conversation(conversation, str(agent)).rules.timing
            assert (timing.silence_ms, timing.max_wait_ms) == (1_000 + agent, 10_000 + user)
    assert len(book._snapshot._resolved) <= 20


# -- bodies that are refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "content", "status", "reason"),
    [
        ("generic", message(sentAt=-1), 400, "sentAt is not valid: Input should be greater than or equal to 0."),
        ("generic", message(text="x" * 70_000), 413, "A message is too large: "),
        ("whatsapp", b"{", 400, "The body is not JSON in UTF-8."),
    ],
)
def test_a_signed_body_that_is_refused_leaves_a_line_and_is_counted(
    scene: Scene, platform: str, content: Any, status: int, reason: str
) -> None:
    assert post(scene, platform, content, secret=SECRET)[0] == status
    (line,) = scene.telemetry.said("body refused")
    assert (line["platform"], line["status"]) == (platform, status)
    assert line["reason"].startswith(reason)
    assert scene.telemetry.counts == {"BodiesRefused": 1}


@pytest.mark.promise("P9")
@pytest.mark.parametrize("platform", OBJECTS)
def test_what_meta_signed_for_one_of_its_platforms_is_not_taken_for_another(scene: Scene, platform: str) -> None:
    for other in OBJECTS.keys() - {platform}:
        body = one_message(platform, "1555") | {"object": OBJECTS[other]}
        assert post(scene, platform, body, secret=SECRET) == (400, {"error": f"object must be {OBJECTS[platform]}."})
    assert scene.is_empty()


# -- the time in the signature of the generic platform ----------------------------------------------

STALE = (401, {"error": "The time in the signature is missing, or not within 5 minutes of ours."})
WRONG = (401, {"error": "The signature is missing or wrong."})


def at(scene: Scene, offset_ms: int) -> float:
    return (scene.engine.clock.now_ms + offset_ms) // 1_000


def forged(platform: str = "generic") -> Json:
    return gateway(platform, b"{}", headers={"x-signature-256": "sha256=no", "x-hub-signature-256": "sha256=no"})


@pytest.mark.promise("P9")
def test_a_flood_of_forgeries_writes_a_few_lines_a_minute_and_every_one_is_counted(scene: Scene) -> None:
    for _ in range(200):
        assert scene.call(forged())[0] == 401
    said = scene.telemetry.said("signature refused")
    assert said == [{"platform": "generic", "reason": "The signature is missing or wrong."}] * MAX_LINES_A_MINUTE
    # A metric is a log line, too: it is written five times, and then whenever the count has doubled.
    assert scene.telemetry.counts == {"Unauthentic": 160}
    scene.call(forged("whatsapp"))
    assert scene.telemetry.said("signature refused")[-1]["platform"] == "whatsapp", "a flood hides no other platform"
    scene.engine.clock.advance(MINUTE_MS)
    scene.call(timed(scene, message()))
    assert scene.telemetry.said("signature refused")[-1] == {
        "platform": "generic",
        "more": 200 - MAX_LINES_A_MINUTE,
    }
    assert scene.telemetry.counts["Unauthentic"] == 201


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (gateway("generic", b" " * (MAX_WEBHOOK_BYTES + 1)), "body refused"),
        (gateway("whatsapp", method="GET", query={"hub.mode": "subscribe", "hub.verify_token": "no"}), "challenge"),
    ],
)  # fmt: skip
def test_no_request_without_a_proof_writes_more_than_a_few_lines_a_minute(scene: Scene, event: Json, line: str) -> None:
    for _ in range(50):
        assert scene.call(event)[0] in (400, 403, 413)
    assert len(scene.telemetry.lines) == len(scene.telemetry.said(line)) == MAX_LINES_A_MINUTE
    assert set(scene.telemetry.counts.values()) <= {40}
    scene.engine.clock.advance(MINUTE_MS)
    scene.call(event)
    if line == "body refused":
        assert scene.telemetry.counts["BodiesRefused"] == 51


def test_a_passed_challenge_and_a_refused_body_of_a_proven_sender_are_always_logged(scene: Scene) -> None:
    token = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "1"}
    for _ in range(2 * MAX_LINES_A_MINUTE):
        assert scene.call(gateway("whatsapp", method="GET", query=token))[0] == 200
        assert scene.call(timed(scene, {"account": "shop"}))[0] == 400
    assert len(scene.telemetry.said("challenge")) == len(scene.telemetry.said("body refused")) == 10


def timed(scene: Scene, body: Json, offset_ms: int = 0) -> Json:
    raw = json.dumps(body).encode()
    return gateway("generic", raw, headers=signed("generic", raw, SECRET, at_seconds=at(scene, offset_ms)))


@pytest.mark.parametrize("offset_ms", [0, 1_000 - MAX_SIGNATURE_AGE_MS, MAX_SIGNATURE_AGE_MS])
def test_a_signature_with_a_time_about_now_is_good(scene: Scene, offset_ms: int) -> None:
    assert scene.call(timed(scene, message(), offset_ms))[0] == 200
    assert len(scene.buffered(CHAT)) == 1


@pytest.mark.promise("P9")
@pytest.mark.parametrize("offset_ms", [-MAX_SIGNATURE_AGE_MS - 1_000, MAX_SIGNATURE_AGE_MS + 1_000, 10**14])
def test_a_signature_with_another_time_is_refused(scene: Scene, offset_ms: int) -> None:
    assert scene.call(timed(scene, message(), offset_ms)) == STALE
    assert scene.is_empty()
    assert scene.telemetry.said("signature refused") == [{"platform": "generic", "reason": STALE[1]["error"]}]


@pytest.mark.promise("P9")
def test_the_time_can_be_neither_changed_nor_left_out(scene: Scene) -> None:
    old = timed(scene, message(), -MAX_SIGNATURE_AGE_MS - 1_000)
    newer = {**old["headers"], "X-Signature-Timestamp": f"{at(scene, 0):.0f}"}
    without = {name: value for name, value in old["headers"].items() if name != "X-Signature-Timestamp"}
    for headers in (newer, without, newer | {"X-Signature-Timestamp": ""}):
        assert scene.call(old | {"headers": headers}) == WRONG
    raw = f"{old['headers']['X-Signature-Timestamp']}.{json.dumps(message())}".encode()
    assert scene.call(gateway("generic", raw, headers=without))[0] == 400, "with its time before it, a body is no JSON"
    assert scene.is_empty()


@pytest.mark.parametrize("given", ["", "now", "-5", "1" * 12, "\ud83d"])
def test_a_time_that_is_none_is_refused_though_it_is_signed(scene: Scene, given: str) -> None:
    raw = json.dumps(message()).encode()
    text = f"{given}.".encode("utf-8", "surrogatepass") + raw
    headers = {"x-signature-timestamp": given, "x-signature-256": signature(text)}
    assert scene.call(gateway("generic", raw, headers=headers)) == STALE


@pytest.mark.promise("P9")
def test_a_stage_may_require_the_time(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(fake, monkeypatch, time_is_required=True)
    assert scene.post("generic", message()) == STALE
    assert scene.post("generic", message(), route="typing") == STALE
    assert scene.is_empty()
    assert scene.call(timed(scene, message()))[0] == 200
    assert post(scene, "whatsapp", one_message("whatsapp", "1555"), secret=SECRET)[0] == 200
