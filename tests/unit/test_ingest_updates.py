"""Ingest beyond messages: who may speak for whom, what changes a message, and who is typing."""

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.ingest.platforms import PLATFORMS
from lambdas.limits import MIN_MS_BETWEEN_SECRET_READS
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes.lane import Lane
from message_buffer.lanes.outcomes import Taken
from message_buffer.limits import MIN_BREAKER_PAUSE_MS, SECRET_LIFE_MS
from tests.support.engine import Engine
from tests.support.fakes import valkey_lane
from tests.support.ingest_scene import SECRET, VERIFY_TOKEN, Json, Scene, gateway, rest_gateway
from tests.support.platforms import FORM, HOST, body_of, content_type, fixtures, name_of, signed
from tests.support.two_lanes import TwoLanes
from tests.support.window import make_message_table

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.amended.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
CHAT = "default/telegram/shopbot/1111111"
NAMES = ("x-signature-256", "x-hub-signature-256", "x-twilio-signature", "x-telegram-bot-api-secret-token")


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch)


def telegram(text: str = "Hey", *, message_id: int = 1, edited: bool = False) -> Json:
    ada = {"id": 1111111, "is_bot": False, "first_name": "Ada"}
    message = {"message_id": message_id, "from": ada, "chat": {"id": 1111111, "type": "private"}, "date": 1700000000}
    if edited:
        return {"update_id": 2, "edited_message": message | {"text": text, "edit_date": 1700000100}}
    return {"update_id": 1, "message": message | {"text": text}}


def instagram(**event: Any) -> Json:
    whole = {"sender": {"id": "ada"}, "recipient": {"id": "shop"}, "timestamp": 1700000000000} | event
    return {"object": "instagram", "entry": [{"id": "shop", "time": 1, "messaging": [whole]}]}


def emit(scene: Scene, conversation: str) -> Taken:
    """Take the batch that waits and leave it frozen."""
    scene.engine.clock.advance(60_000)
    store = scene.engine.store
    store.acquire_lease(0, "lease")
    store.claim_due(0, "lease")
    taken = store.take_batch(conversation, "token")
    assert isinstance(taken, Taken)
    return taken


# -- changes ---------------------------------------------------------------------------------------


def test_an_edit_of_what_waits_changes_it_in_its_place(scene: Scene) -> None:
    scene.post("telegram", telegram("Order 1", message_id=1))
    scene.post("telegram", telegram("please", message_id=2))
    due_at_ms = scene.engine.store.peek_conversation(CHAT).due_at_ms
    for _ in range(2):
        assert scene.post("telegram", telegram("Order 2", message_id=1, edited=True))[0] == 200
    first, second = scene.buffered(CHAT)
    assert (first["text"], first["editedAt"], second["text"]) == ("Order 2", 1_700_000_100_000, "please")
    assert scene.engine.store.peek_conversation(CHAT).due_at_ms == due_at_ms
    assert scene.amended() == []
    assert scene.telemetry.counts["Changed"] == 2


def test_an_edit_of_what_is_being_emitted_goes_out_with_its_batch(scene: Scene) -> None:
    scene.post("telegram", telegram("Order 1"))
    taken = emit(scene, CHAT)
    assert scene.post("telegram", telegram("Order 2", edited=True))[0] == 200
    (event,) = scene.amended()
    VALIDATOR.validate(event)
    assert (event["change"], event["batchId"], event["messageId"]) == ("edited", taken.batch_id, "1")
    assert (event["message"]["text"], event["author"], event["at"]) == ("Order 2", "1111111", 1_700_000_100_000)
    assert (event["conversationId"], event["tenant"]) == (CHAT, "default")
    assert scene.engine.store.peek_conversation(CHAT).frozen == 1


def test_an_edit_of_what_was_emitted_goes_out_again_with_each_delivery(scene: Scene) -> None:
    scene.post("telegram", telegram("Order 1"))
    emit(scene, CHAT)
    scene.engine.store.complete_batch(CHAT, "token")
    for _ in range(2):
        assert scene.post("telegram", telegram("Order 2", edited=True))[0] == 200
    first, again = scene.amended()
    assert first == again
    assert scene.buffered(CHAT) == []


def test_an_edit_without_text_is_an_edit(scene: Scene) -> None:
    scene.post("telegram", telegram("oops"))
    assert scene.post("telegram", telegram("", edited=True))[0] == 200
    assert scene.buffered(CHAT)[0].get("text", "") == ""


def test_an_unsent_message_leaves_its_buffer_and_no_redelivery_brings_it_back(scene: Scene) -> None:
    conversation = "default/instagram/shop/ada"
    scene.post("instagram", instagram(message={"mid": "a", "text": "secret"}))
    assert scene.post("instagram", instagram(message={"mid": "a", "is_deleted": True}))[0] == 200
    assert scene.buffered(conversation) == []
    assert scene.amended() == []
    assert scene.post("instagram", instagram(message={"mid": "a", "text": "secret"}))[1]["duplicates"] == 1
    assert scene.buffered(conversation) == []


def test_a_deletion_after_emission_goes_out(scene: Scene) -> None:
    conversation = "default/instagram/shop/ada"
    scene.post("instagram", instagram(message={"mid": "a", "text": "secret"}))
    taken = emit(scene, conversation)
    scene.post("instagram", instagram(message={"mid": "a", "is_deleted": True}))
    (event,) = scene.amended()
    VALIDATOR.validate(event)
    assert (event["change"], event["batchId"], event["message"]) == ("deleted", taken.batch_id, None)


@pytest.mark.parametrize(
    ("reaction", "emoji"), [({"action": "react", "emoji": "❤"}, "❤"), ({"action": "unreact"}, None)]
)
def test_a_reaction_always_goes_out_and_changes_no_buffer(scene: Scene, reaction: Json, emoji: str | None) -> None:
    scene.post("instagram", instagram(message={"mid": "a", "text": "Hey"}))
    before = scene.engine.keys()
    assert scene.post("instagram", instagram(reaction={"mid": "a", **reaction}))[0] == 200
    (event,) = scene.amended()
    VALIDATOR.validate(event)
    assert (event["change"], event["messageId"], event["emoji"], event["batchId"]) == ("reaction", "a", emoji, None)
    assert scene.engine.keys().keys() == before.keys()


def test_a_change_that_stands_before_its_message_in_one_body_is_made_after_it(scene: Scene) -> None:
    body = instagram(message_edit={"mid": "a", "text": "right"})
    body["entry"] += instagram(message={"mid": "a", "text": "wrong"})["entry"]
    assert scene.post("instagram", body)[0] == 200
    assert [each["text"] for each in scene.buffered("default/instagram/shop/ada")] == ["right"]


def test_a_change_that_could_not_be_told_is_asked_for_again(scene: Scene) -> None:
    scene.bus.failures = [SendFailed("put event: Throttling")]
    body = instagram(reaction={"mid": "a", "action": "react", "emoji": "❤"})
    assert scene.post("instagram", body)[0] == 503
    assert scene.post("instagram", body)[0] == 200
    assert len(scene.amended()) == 1


def test_half_an_emoji_does_not_keep_an_amendment_from_the_bus(scene: Scene) -> None:
    assert (
        scene.post("instagram", instagram(reaction={"mid": "a\ud83d", "action": "react", "emoji": "\ud83d"}))[0] == 200
    )
    VALIDATOR.validate(scene.amended()[0])


@pytest.mark.parametrize("fixture", fixtures(), ids=name_of)
def test_every_fixture_is_accepted_and_its_amendments_are_valid(scene: Scene, fixture: Path) -> None:
    platform = fixture.parent.name
    for _ in range(2):
        assert scene.post(platform, json.loads(fixture.read_text()))[0] == 200
    expected = json.loads(fixture.with_suffix(".expected.json").read_text())
    assert scene.telemetry.counts.get("Ignored", 0) == 2 * sum(expected["ignored"].values())
    for kind, count in expected["ignored"].items():
        assert scene.telemetry.counts[f"IgnoredKinds {kind}"] == 2 * count
    for event in scene.amended():
        VALIDATOR.validate(event)


def leave_window(lanes: TwoLanes) -> str:
    """Let the DynamoDB lane emit what it holds; its batch id."""
    lanes.scene.pass_time(60_000)
    batch_id: str = lanes.scene.events()[-1]["batchId"]
    return batch_id


@pytest.mark.parametrize(
    ("which", "lane_of_known", "lanes_of_unknown"),
    [
        ("valkey", "debounce", ["debounce"]),
        ("dynamodb", "window", ["window"]),
        # The message may wait in Valkey, so the platform is to send its edit again.
        ("fallback in an outage", "window", []),
        ("fallback after an outage", "window", ["debounce"]),
    ],
)
def test_an_amendment_names_the_lane_that_answered_for_its_message(
    database: Any, monkeypatch: pytest.MonkeyPatch, which: str, lane_of_known: str, lanes_of_unknown: list[str]
) -> None:
    make_message_table(database)
    lanes = TwoLanes()
    alone: dict[str, Lane] = {"valkey": valkey_lane(lanes.engine.store), "dynamodb": lanes.scene.lane}
    scene = Scene(lanes.engine, monkeypatch, lane=alone.get(which, lanes.ingesters[0]))
    if which not in alone:
        lanes.cut("ingest", "swallowed")
    scene.post("telegram", telegram("Order 1"))
    batch_id = emit(scene, CHAT).batch_id if which == "valkey" else leave_window(lanes)
    if which == "fallback after an outage":
        lanes.mend("ingest")
        lanes.clock.advance(MIN_BREAKER_PAUSE_MS)
    assert scene.post("telegram", telegram("Order 2", edited=True))[0] == 200
    scene.post("telegram", telegram("Order 3", message_id=9, edited=True))
    known, *unknown = scene.amended()
    assert (known["batchId"], known["lane"]) == (batch_id, lane_of_known)
    assert [(each["batchId"], each["lane"]) for each in unknown] == [(None, lane) for lane in lanes_of_unknown]


# -- what is answered ------------------------------------------------------------------------------


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


def test_a_signed_url_is_the_one_that_the_platform_called(scene: Scene) -> None:
    fields = {"MessageSid": "SM1", "From": "+1401", "To": "+1555", "Body": "hi"}
    raw = body_of("twilio", fields)
    headers = {"content-type": FORM, **signed("twilio", raw, SECRET, fields=list(fields.items()))}
    assert scene.call(gateway("twilio", raw, headers=headers | {"Host": HOST, "X-Forwarded-Proto": "https"}))[0] == 200
    assert scene.call(rest_gateway("twilio", raw, headers=headers, query={"\ud83d": "\ud83d"}))[0] == 401
    for wrong in ({"Host": "evil.example.com"}, {"X-Forwarded-Proto": "http"}):
        assert scene.call(gateway("twilio", raw, headers=headers | wrong))[0] == 401
    assert scene.call(gateway("twilio", raw, headers=headers, query={"more": "1"}))[0] == 401


@pytest.mark.parametrize("platform", ["messenger", "instagram"])
def test_every_platform_of_meta_asks_whether_we_are_we(scene: Scene, platform: str) -> None:
    query = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "42"}
    assert scene.call(gateway(platform, method="GET", query=query)) == (200, "42")
    assert scene.call(gateway(platform, method="GET", query=query | {"hub.verify_token": "x"}))[0] == 403


# -- who may speak for whom ------------------------------------------------------------------------

TWO_ACCOUNTS = {"whatsapp": {"secret": "everybodys", "accounts": {"111": {"secret": ["as", "as old"]}, "222": "bs"}}}


def whatsapp(*accounts: str, statuses: bool = False) -> Json:
    def value(account: str) -> Json:
        items = {"statuses": [{}]} if statuses else {"messages": [item(account)]}
        return {"metadata": {"phone_number_id": account}, **items}

    def item(account: str) -> Json:
        return {"from": "491", "id": f"wamid.{account}", "timestamp": "1", "type": "text", "text": {"body": "Hey"}}

    return {"entry": [{"changes": [{"value": value(account)} for account in accounts]}]}


@pytest.mark.parametrize(
    ("secret", "accounts", "status"),
    [
        ("as", ["111"], 200),
        ("as old", ["111"], 200),
        ("bs", ["222"], 200),
        ("everybodys", ["333", "444"], 200),
        ("as", ["222"], 401),
        ("as", ["111", "222"], 401),
        ("as", ["333"], 401),
        ("everybodys", ["333", "111"], 401),
    ],
)
@pytest.mark.parametrize("statuses", [False, True])
def test_p9_a_secret_speaks_for_its_accounts_or_for_nothing_in_the_body(
    scene: Scene, secret: str, accounts: list[str], status: int, statuses: bool
) -> None:
    scene.secrets.text = json.dumps(TWO_ACCOUNTS)
    assert scene.post("whatsapp", whatsapp(*accounts, statuses=statuses), secret=secret)[0] == status
    assert scene.is_empty() == (status == 401 or statuses)
    assert scene.telemetry.counts.get("Unauthentic", 0) == (status == 401)


def test_p9_a_bots_token_makes_its_updates_that_bots(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"telegram": {"secret": "t0", "accounts": {"one": "t1", "two": {"secret": "t2"}}}})
    for token in ("t0", "t1", "t2"):
        assert scene.post("telegram", telegram(), secret=token)[0] == 200
    for bot in ("bot", "one", "two"):
        assert len(scene.buffered(f"default/telegram/{bot}/1111111")) == 1


@pytest.mark.parametrize("platform", PLATFORMS)
def test_p9_a_platform_without_a_secret_is_closed_and_that_is_counted(scene: Scene, platform: str) -> None:
    for text in ("{}", json.dumps({platform: {"accounts": {"111": {}}}})):
        scene.secrets.text = text
        scene.secrets_now_ms += SECRET_LIFE_MS + 1
        body = {"Body": "x"} if platform == "twilio" else {}
        assert scene.post(platform, body, secret="")[0] == 401
    assert (scene.telemetry.counts["NoSecret"], scene.telemetry.counts["Unauthentic"]) == (2, 2)
    assert scene.is_empty()


def test_a_wrong_signature_is_not_a_missing_secret(scene: Scene) -> None:
    assert scene.post("telegram", telegram(), secret="guess")[0] == 401
    assert "NoSecret" not in scene.telemetry.counts


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


# -- typing ----------------------------------------------------------------------------------------

CONVERSATION = "default/generic/shop/c1"


def typing(**fields: str) -> Json:
    return {"account": "shop", "conversation": "c1"} | fields


def test_typing_makes_a_buffer_wait_longer(scene: Scene) -> None:
    scene.post("generic", typing(id="m1", text="Hey"))
    scene.engine.clock.advance(500)
    due_at_ms = scene.engine.clock.now_ms + 3_000
    assert scene.post("generic", typing(), route="typing") == (
        200,
        {"conversations": {CONVERSATION: {"dueAt": due_at_ms}}},
    )
    assert scene.engine.store.peek_conversation(CONVERSATION).due_at_ms == due_at_ms


def test_typing_makes_no_buffer(scene: Scene) -> None:
    status, answer = scene.post("generic", [typing(), typing(tenant="acme"), typing()], route="typing")
    assert (status, answer) == (
        200,
        {"conversations": {CONVERSATION: {"dueAt": None}, "acme/generic/shop/c1": {"dueAt": None}}},
    )
    assert scene.is_empty()


def test_typing_for_ever_does_not_keep_a_batch_for_ever(scene: Scene) -> None:
    scene.post("generic", typing(id="m1", text="Hey"))
    first_at_ms = scene.engine.clock.now_ms
    answers = []
    for _ in range(40):
        answers.append(scene.post("generic", typing(), route="typing")[1]["conversations"][CONVERSATION]["dueAt"])
        scene.engine.clock.advance(900)
    assert max(answers) == first_at_ms + 30_000


@pytest.mark.parametrize(
    ("rules", "wait_ms"),
    [
        ({"silenceMs": 5_000, "typingInferenceMs": 0}, 5_000),
        ({"silenceMs": 500, "typingInferenceMs": 2_000}, 2_000),
        ({"priority": "vip", "vipSilenceMs": 400}, 400),
    ],
)
def test_typing_waits_by_the_rules(fake: Engine, monkeypatch: pytest.MonkeyPatch, rules: Json, wait_ms: int) -> None:
    scene = Scene(fake, monkeypatch, stage_rules=rules)
    scene.post("generic", typing(id="m1", text="Hey"))
    scene.engine.clock.advance(100)
    _, answer = scene.post("generic", typing(), route="typing")
    assert answer["conversations"][CONVERSATION]["dueAt"] == scene.engine.clock.now_ms + wait_ms


@pytest.mark.parametrize("platform", [name for name in PLATFORMS if name != "generic"])
def test_who_tells_of_no_typing_has_no_such_door(scene: Scene, platform: str) -> None:
    raw = b"{}"
    assert scene.call(gateway(platform, raw, headers=signed(platform, raw, SECRET), route="typing"))[0] == 404


def test_typing_is_signed_like_everything(scene: Scene) -> None:
    assert scene.post("generic", typing(), route="typing", secret="guess")[0] == 401
    scene.secrets.text = json.dumps({"generic": {"accounts": {"shop": "as", "other": "bs"}}})
    scene.secrets_now_ms += SECRET_LIFE_MS + 1
    assert scene.post("generic", [typing(), typing(account="other")], route="typing", secret="as")[0] == 401
    assert scene.post("generic", typing(), route="typing", secret="as")[0] == 200


@pytest.mark.parametrize(
    "body", [b"{", [], 7, {}, {"account": "shop"}, typing(conversation=""), typing(conversation="c" * 2_000)]
)
def test_typing_that_is_wrong_is_refused_in_a_sentence(scene: Scene, body: Any) -> None:
    status, answer = scene.post("generic", body, route="typing")
    assert status == 400
    assert answer["error"].endswith(".") or "bytes" in answer["error"]


def test_typing_is_only_told_by_post(scene: Scene) -> None:
    assert scene.call(gateway("generic", method="GET", route="typing"))[0] == 405


def test_typing_while_valkey_is_away_is_for_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(scene.engine.store, "extend_wait", fail)
    assert scene.post("generic", typing(), route="typing")[0] == 503


# -- nobody else -----------------------------------------------------------------------------------

# 10,000 bodies of each platform in the nightly run.
MANY = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 200


@pytest.mark.parametrize("platform", PLATFORMS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=MANY)
@given(
    fixture=st.sampled_from(fixtures()),
    given_header=st.text(max_size=80),
    junk=st.binary(max_size=40),
)
def test_p9_from_an_unverified_body_nothing_reaches_the_store(
    scene: Scene, platform: str, fixture: Path, given_header: str, junk: bytes
) -> None:
    raw = body_of(fixture.parent.name, json.loads(fixture.read_text())) + junk
    headers = {"content-type": content_type(platform), **dict.fromkeys(NAMES, given_header)}
    for route in ("webhook", "typing"):
        assert scene.call(gateway(platform, raw, headers=headers, route=route))[0] in (401, 404)
    assert scene.is_empty()
    assert scene.bus.published == []


# -- hostile input ---------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


def mutated(draw: st.DrawFn, value: Any, odds: int = 8) -> Any:
    """The value with some of its parts replaced by anything, doubled or left out."""
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
