"""What exceeds a quota is refused aloud, and comes again; what fits is buffered first."""

import json
from typing import Any

import pytest

from lambdas.ingest import handler as handler_module
from lambdas.ingest.messages_put_aside import MAX_PUT_ASIDE
from lambdas.ingest.responses import MAX_RETRY_AFTER_SECONDS
from lambdas.ingest.service import MAX_WORK_MS_IN_A_WEBHOOK
from message_buffer.errors import SendFailed
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK
from tests.support.engine import Engine
from tests.support.fakes import FakeFunctions, RecordedTelemetry, valkey_lane
from tests.support.ingest_scene import CHAT, Scene, gateway, message, texts
from tests.support.ingest_scene import whatsapp as of_whatsapp
from tests.support.platforms import body_of, content_type, signed

FEW = {"messagesPerMinute": 5, "conversationsPerMinute": 5}
SHOP, TENANT = "account:generic/shop", "tenant:default"


def fragments(first: int, last: int, **fields: Any) -> list[dict[str, Any]]:
    return [message(f"m{n}", f"fragment {n}", **fields) for n in range(first, last + 1)]


def retry_after(scene: Scene, body: Any, platform: str = "generic") -> int:
    raw = body_of(platform, body)
    headers = {"content-type": content_type(platform), **signed(platform, raw, "s3cret")}
    return int(handler_module.handler(gateway(platform, raw, headers=headers), None)["headers"]["Retry-After"])


def whatsapp(*texts_of: str, **more: Any) -> dict[str, Any]:
    given = [
        {"from": "491701", "id": f"wamid.1.{text}", "timestamp": "1749416383", "type": "text",
         "text": {"body": text}}
        for text in texts_of
    ]  # fmt: skip
    return of_whatsapp(*given, account="1", **more)


@pytest.mark.case(20)
@pytest.mark.promise("P1")
def test_a_limiter_in_front_of_the_buffer_loses_no_fragment(scene: Scene) -> None:
    """The platform sends what was refused until it is taken, and every fragment is there once, in order."""
    scene.rules.write(SHOP, {"quota": FEW})
    sent = fragments(1, 12)
    statuses = []
    for _ in range(10):
        status, _ = scene.post("generic", sent)
        statuses.append(status)
        if status == 200:
            break
        scene.engine.clock.advance(30_000)
    assert statuses[0] == 429
    assert statuses[-1] == 200
    assert texts(scene) == [f"fragment {n}" for n in range(1, 13)]


def test_what_fits_is_buffered_and_the_rest_is_refused(scene: Scene) -> None:
    scene.rules.write(SHOP, {"quota": FEW})
    status, answer = scene.post("generic", fragments(1, 8))
    assert (status, answer) == (429, {"error": "Over the quota; send it again later."})
    assert texts(scene) == [f"fragment {n}" for n in range(1, 6)]
    assert scene.telemetry.counts["Messages"] == 5
    assert scene.telemetry.counts["OverQuota"] == 3
    assert scene.telemetry.said("over quota") == [
        {
            "platform": "generic",
            "taken": 0,
            "put_aside": 0,
            "dropped": 0,
            "accounts": ["default/generic/shop"],
            "account_messages": 3,
        }
    ]


def test_the_refusal_says_when_to_come_again(scene: Scene) -> None:
    scene.rules.write(SHOP, {"quota": FEW})
    assert retry_after(scene, fragments(1, 8)) == 12
    scene.engine.clock.advance(11_500)
    assert retry_after(scene, fragments(1, 8)) == 1
    scene.rules.write("account:generic/slow", {"quota": {"messagesPerMinute": 1}})
    scene.engine.clock.advance(5_000)
    slow = fragments(1, 9, account="slow")
    assert retry_after(scene, slow) == MAX_RETRY_AFTER_SECONDS


def test_of_a_mixed_body_only_the_tenant_over_its_quota_is_refused(scene: Scene) -> None:
    scene.rules.write("tenant:greedy", {"quota": FEW})
    greedy = [message(f"g{n}", conversation="c9", tenant="greedy") for n in range(8)]
    honest = fragments(1, 8)
    mixed = [each for pair in zip(greedy, honest, strict=True) for each in pair]
    assert scene.post("generic", mixed)[0] == 429
    assert len(texts(scene)) == 8
    assert len(texts(scene, "greedy/generic/shop/c9")) == 5
    (said,) = scene.telemetry.said("over quota")
    assert (said["accounts"], said["tenant_messages"]) == (["greedy/generic/shop"], 3)
    scene.engine.clock.advance(60_000)
    assert scene.post("generic", mixed)[0] == 200
    assert len(texts(scene)) == 8
    assert len(texts(scene, "greedy/generic/shop/c9")) == 8


@pytest.mark.promise("P3")
def test_what_follows_a_refused_message_waits_for_it(scene: Scene) -> None:
    """A later message, or a stop word, must not overtake the one that comes again."""
    scene.rules.write("stage", {"stopWords": ["stop"]})
    scene.rules.write(SHOP, {"quota": {"conversationsPerMinute": 1}})
    body = [message("open", conversation="c0"), message("m1"), message("m2", "stop"), message("m3", "new")]
    assert scene.post("generic", body)[0] == 429
    assert scene.cancelled() == []
    statuses = []
    for _ in range(2):
        scene.engine.clock.advance(60_000)
        statuses.append(scene.post("generic", body)[0])
    assert statuses == [429, 200], "after the stop word, the last message opens a buffer again"
    assert texts(scene) == ["new"]
    assert scene.cancelled()[0]["dropped"] == 1


@pytest.mark.promise("P3")
@pytest.mark.parametrize("word", ["stop", "now"])
def test_a_control_word_waits_for_a_message_that_its_accounts_quota_refused(scene: Scene, word: str) -> None:
    """The lane was not asked about that message, because another conversation had spent the quota."""
    scene.rules.write("stage", {"stopWords": ["stop"], "flushWords": ["now"]})
    scene.rules.write(SHOP, {"quota": FEW})
    body = [*fragments(1, 6, conversation="c0"), message("old", "never mind"), message("word", word)]
    scene.post("generic", message("before", "first"))
    assert scene.post("generic", body)[0] == 429
    assert (texts(scene), scene.cancelled()) == (["first"], [])
    assert scene.telemetry.counts["OverQuota"] == 4
    scene.engine.clock.advance(60_000)
    assert scene.post("generic", body)[0] == 200
    assert texts(scene) == ([] if word == "stop" else ["first", "never mind"])


@pytest.mark.case(20)
@pytest.mark.promise("P1")
def test_what_a_platform_that_punishes_refusals_sends_over_a_quota_is_put_aside_and_brought_in(scene: Scene) -> None:
    few = {"quota": {"messagesPerMinute": 1}}
    for scope in ("account:whatsapp/1", "account:telegram/shopbot"):
        scene.rules.write(scope, few)
    assert scene.post("whatsapp", whatsapp("a", "b", "c"))[0] == 200

    def update(number: int) -> dict[str, Any]:
        chat = {"id": 5, "type": "private"}
        return {"update_id": number, "message": {"message_id": number, "chat": chat, "date": 1749416383, "text": "Hey"}}

    assert [scene.post("telegram", update(number))[0] for number in (1, 2)] == [200, 200]
    assert scene.telemetry.counts["OverQuota"] == len(scene.dead_letters.bodies) == 3
    letters = [json.loads(body) for body in scene.dead_letters.bodies]
    assert {each["kind"] for each in letters} == {"message"}
    assert texts(scene, "default/whatsapp/1/491701") == ["a"]
    for letter in [*letters, letters[0]]:
        assert handler_module.handler({"redrive": letter}, None) == {"redriven": letter["batchId"]}
    assert texts(scene, "default/whatsapp/1/491701") == ["a", "b", "c"]
    assert len(texts(scene, "default/telegram/shopbot/5")) == 2


def test_an_account_that_has_put_too_many_messages_aside_is_refused_aloud(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/1", {"quota": {"messagesPerMinute": 1}})
    most = MAX_PUT_ASIDE.messages_per_minute
    bodies = [whatsapp(f"{n} a", f"{n} b") for n in range(most)]
    statuses = [scene.post("whatsapp", body)[0] for body in bodies]
    assert statuses == [200] * (most // 2) + [429] * (most // 2)
    assert len(scene.dead_letters.bodies) == most - 1
    scene.engine.clock.advance(30_000)
    assert scene.post("whatsapp", bodies[-1])[0] == 200


def test_what_may_be_put_aside_does_not_depend_on_the_number_of_shards(scene: Scene) -> None:
    scene.engine.store.settings = scene.engine.store.settings._replace(shards=16)
    scene.rules.write("account:whatsapp/1", {"quota": {"messagesPerMinute": 1}})
    assert scene.post("whatsapp", whatsapp(*map(str, range(MAX_PUT_ASIDE.messages_per_minute))))[0] == 200


def test_a_webhook_with_too_many_messages_to_put_aside_leaves_room_for_those_of_others(scene: Scene) -> None:
    scene.engine.store.settings = scene.engine.store.settings._replace(max_waiting=8)
    for user in ("491701", "491702"):
        conversation = f"default/whatsapp/1/{user}"
        scene.engine.store.hold_buffer(conversation, holder="people", cause="operator", hold_ms=3_600_000)
    many = whatsapp(*map(str, range(8 + MAX_PUT_ASIDE.messages_per_minute + 1)))
    assert [scene.post("whatsapp", many)[0] for _ in range(3)] == [503] * 3
    each = {"from": "491702", "timestamp": "1749416383", "type": "text", "text": {"body": "Hey"}}
    few = whatsapp(messages=[each | {"id": f"m{n}"} for n in range(10)])
    assert scene.post("whatsapp", few)[0] == 200
    assert len(scene.dead_letters.bodies) == 2


def test_a_platform_that_punishes_refusals_is_not_told_that_changes_over_a_quota_were_dropped(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/1", {"quota": {"messagesPerMinute": 1}})
    assert [scene.post("whatsapp", reactions(3))[0] for _ in range(2)] == [200, 200]
    assert len(scene.amended()) == 3
    assert scene.dead_letters.bodies == []
    assert (scene.telemetry.counts["OverQuota"], scene.telemetry.counts["Dropped"]) == (3, 3)
    (said,) = scene.telemetry.said("over quota")
    assert (said["dropped"], said["put_aside"]) == (3, 0)


@pytest.mark.promise("P1")
def test_a_reaction_over_its_quota_keeps_no_message_of_its_conversation_out(scene: Scene) -> None:
    """A flood of reactions put aside the messages of everybody who had also reacted to one."""
    scene.rules.write("account:whatsapp/1", {"quota": {"messagesPerMinute": 1}})
    scene.post("whatsapp", reactions(3))
    body = whatsapp("a")
    (reaction,) = reactions(1)["entry"][0]["changes"][0]["value"]["messages"]
    body["entry"][0]["changes"][0]["value"]["messages"] += [reaction | {"from": "491701"}]
    assert scene.post("whatsapp", body)[0] == 200
    assert texts(scene, "default/whatsapp/1/491701") == ["a"]
    assert (scene.dead_letters.bodies, scene.telemetry.counts["Dropped"]) == ([], 1)


@pytest.mark.promise("P3")
def test_what_follows_a_stop_word_over_its_quota_waits_for_it(scene: Scene) -> None:
    scene.rules.write("stage", {"stopWords": ["stop"]})
    scene.rules.write(SHOP, {"quota": FEW})
    scene.post("generic", changes("stop words", 8))
    body = [message("a", "a"), message("s", "stop"), message("b", "b")]
    scene.engine.clock.advance(1_000)
    seconds = retry_after(scene, body)
    assert texts(scene) == ["a"]
    scene.engine.clock.advance(seconds * 1_000)
    assert scene.post("generic", body)[0] == 200
    assert (texts(scene), len(scene.cancelled())) == (["b"], 8 + 1)


def test_typing_events_have_a_quota_of_their_own(scene: Scene) -> None:
    scene.rules.write(SHOP, {"quota": {"messagesPerMinute": 5}})
    typing = [{"account": "shop", "conversation": f"c{n}"} for n in range(5)]
    assert [scene.post("generic", typing, route="typing")[0] for _ in range(2)] == [200, 429]
    assert scene.telemetry.counts["OverQuota"] == 5
    assert scene.post("generic", changes("edits", 5))[0] == 200
    scene.engine.clock.advance(60_000)
    assert scene.post("generic", typing, route="typing")[0] == 200


def test_a_queue_that_fails_leaves_the_message_with_its_platform(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/1", {"quota": {"messagesPerMinute": 1}})
    scene.dead_letters.failures.append(SendFailed("send dead letter: ServiceUnavailable"))
    assert scene.post("whatsapp", whatsapp("a", "b"))[0] == 503


def test_a_full_conversation_of_a_platform_that_punishes_refusals_is_put_aside(scene: Scene) -> None:
    conversation = "default/whatsapp/1/491701"
    scene.engine.store.settings = scene.engine.store.settings._replace(max_waiting=8)
    scene.engine.store.hold_buffer(conversation, holder="people", cause="operator", hold_ms=3_600_000)
    assert scene.post("whatsapp", whatsapp(*map(str, range(10))))[0] == 200
    letter = json.loads(scene.dead_letters.bodies[0])
    assert (len(scene.dead_letters.bodies), letter["reason"]) == (2, "refused: waiting")
    with pytest.raises(SendFailed):
        handler_module.handler({"redrive": letter}, None)
    scene.engine.store.cancel_buffer(conversation)
    handler_module.handler({"redrive": letter}, None)
    assert texts(scene, conversation) == ["8"]


def test_twilio_does_not_come_again_so_its_messages_are_taken(scene: Scene) -> None:
    scene.rules.write("account:twilio/15558675310", {"quota": {"messagesPerMinute": 1}})
    forms = [{"MessageSid": f"SM{n}", "From": "+49170", "To": "+15558675310", "Body": f"text {n}"} for n in range(4)]
    assert [scene.post("twilio", form)[0] for form in (*forms, forms[-1])] == [200] * 5
    assert len(texts(scene, "default/twilio/15558675310/49170")) == 4
    said = scene.telemetry.said("over quota")
    assert [(line["taken"], line["accounts"]) for line in said] == 3 * [(1, ["default/twilio/15558675310"])]
    assert "OverQuota" not in scene.telemetry.counts


def test_a_full_conversation_is_answered_503_and_the_others_of_the_body_are_buffered(scene: Scene) -> None:
    scene.engine.store.settings = scene.engine.store.settings._replace(max_waiting=8)
    scene.engine.store.hold_buffer(CHAT, holder="people", cause="operator", hold_ms=3_600_000)
    body = [*fragments(1, 12), message("other", conversation="c2")]
    status, answer = scene.post("generic", body)
    assert (status, answer) == (503, {"error": "Not everything could be kept; send it again."})
    assert len(texts(scene)) == 8
    assert len(texts(scene, "default/generic/shop/c2")) == 1
    assert scene.telemetry.counts["OverQuota"] == 4
    scene.engine.store.cancel_buffer(CHAT)
    assert scene.post("generic", message("later"))[0] == 200


# -- changes and control words ---------------------------------------------------------------------

CHANGES: dict[str, dict[str, Any]] = {
    "edits": {"edited": True},
    "deletions": {"deleted": True, "text": None},
    "reactions": {"reaction": "👍", "text": None},
    "stop words": {"text": "stop"},
}


def changes(kind: str, count: int) -> list[dict[str, Any]]:
    each = [message(f"m{n}", conversation=f"c{n}") | CHANGES[kind] for n in range(count)]
    return [{name: value for name, value in item.items() if value is not None} for item in each]


@pytest.mark.parametrize("kind", CHANGES)
def test_changes_and_stop_words_are_charged_as_messages_are(scene: Scene, kind: str) -> None:
    scene.rules.write("stage", {"stopWords": ["stop"]})
    scene.rules.write(SHOP, {"quota": {"messagesPerMinute": 10}})
    body = changes(kind, 15)
    statuses, published = [], []
    for _ in range(5):
        statuses.append(scene.post("generic", body)[0])
        published.append(len(scene.bus.published))
        scene.engine.clock.advance(30_000)
    assert (statuses, published) == ([200, 429, 429, 200, 429], [15, 15, 15, 30, 30])
    assert scene.telemetry.counts["OverQuota"] == 3 * 15


@pytest.mark.promise("P1")
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("count", [5, 20])
def test_the_changes_of_a_webhook_never_keep_its_messages_out(scene: Scene, kind: str, count: int) -> None:
    """They are charged with each delivery, so a webhook whose changes fill the quota would be refused for ever."""
    scene.rules.write("stage", {"stopWords": ["stop"]})
    scene.rules.write(SHOP, {"quota": FEW | {"conversationsPerMinute": 100}})
    body = [*changes(kind, count), *fragments(1, 8, conversation="other")]
    for _ in range(10):
        if scene.post("generic", body)[0] == 200:
            break
        scene.engine.clock.advance(retry_after(scene, body) * 1_000)
    assert texts(scene, "default/generic/shop/other") == [f"fragment {n}" for n in range(1, 9)]


# -- the bounds of one webhook ---------------------------------------------------------------------


def of_many_people(count: int) -> dict[str, Any]:
    each = {"timestamp": "1749416383", "type": "text", "text": {"body": "Hey"}}
    return whatsapp(messages=[each | {"from": f"49{n}", "id": f"m{n}"} for n in range(count)])


def reactions(count: int) -> dict[str, Any]:
    reaction = {"message_id": "wamid.1", "emoji": "👍"}
    each = {"from": "4917", "timestamp": "1749416383", "type": "reaction", "reaction": reaction}
    return whatsapp(messages=[each | {"id": f"r{n}"} for n in range(count)])


def standby(count: int) -> dict[str, Any]:
    echo = {"is_echo": True, "app_id": 5}
    each = {"sender": {"id": "9"}, "timestamp": 1749416383000}
    events = [each | {"recipient": {"id": f"1{n}"}, "message": echo | {"mid": f"m{n}"}} for n in range(count)]
    return {"object": "page", "entry": [{"id": "9", "standby": events}]}


@pytest.mark.parametrize(
    "body",
    [
        reactions(MAX_ITEMS_IN_A_WEBHOOK + 1),
        of_many_people(MAX_ITEMS_IN_A_WEBHOOK + 1),
        whatsapp(*map(str, range(MAX_ITEMS_IN_A_WEBHOOK + 1))),
        standby(MAX_ITEMS_IN_A_WEBHOOK + 1),
    ],
    ids=["changes", "conversations", "messages of one conversation", "replies in threads of another app"],
)
def test_a_webhook_with_more_than_any_platform_sends_is_refused_whole(scene: Scene, body: Any) -> None:
    status, answer = scene.post("messenger" if body["object"] == "page" else "whatsapp", body)
    assert (status, answer["error"]) == (413, "A webhook has at most 1000 messages, changes and human replies.")
    assert scene.is_empty()
    assert scene.telemetry.counts["BodiesRefused"] == 1


class SlowLane:
    """The Valkey lane, each call of which takes a quarter of a webhook's time and a bit."""

    def __init__(self, engine: Engine) -> None:
        self._lane = valkey_lane(engine.store, FakeFunctions(), RecordedTelemetry())
        self._clock = engine.clock
        self.call_ms = MAX_WORK_MS_IN_A_WEBHOOK // 4 + 1

    def __getattr__(self, name: str) -> Any:
        self._clock.advance(self.call_ms if name != "charge" else 0)
        return getattr(self._lane, name)


def test_a_webhook_that_takes_too_long_keeps_what_is_done_and_comes_again(
    fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = SlowLane(fake)
    scene = Scene(fake, monkeypatch, lane=lane, stage_rules={"silenceMs": 60_000, "maxWaitMs": 120_000})
    reacted = [{**message(f"m{n}"), "reaction": "👍"} for n in range(1, 7)]
    for each in reacted:
        del each["text"]
    assert retry_after(scene, fragments(1, 6)) == 5
    assert texts(scene) == [f"fragment {n}" for n in range(1, 5)]
    assert retry_after(scene, reacted) == 5
    assert len(scene.amended()) == 4
    assert scene.telemetry.counts["Messages"] == 4
    lane.call_ms = 0
    assert scene.post("generic", [*fragments(1, 6), *reacted])[0] == 200
    assert texts(scene) == [f"fragment {n}" for n in range(1, 7)]
    assert len(scene.amended()) == 4 + 6


def many_reactions(count: int) -> list[dict[str, Any]]:
    sent = [{**message(f"m{n}"), "reaction": "👍"} for n in range(count)]
    for each in sent:
        del each["text"]
    return sent


@pytest.mark.parametrize("of_messages", [False, True])
def test_a_large_webhook_that_takes_too_long_goes_on_where_the_delivery_before_has_ended(
    fake: Engine, monkeypatch: pytest.MonkeyPatch, of_messages: bool
) -> None:
    """Each delivery began again with the first change, so the webhook was never done, and others waited behind it."""
    wait = {"silenceMs": 900_000, "maxWaitMs": 900_000}
    scene = Scene(fake, monkeypatch, lane=SlowLane(fake), stage_rules=wait)
    body = fragments(0, 29) if of_messages else many_reactions(30)
    statuses: list[int] = []
    while 200 not in statuses and len(statuses) < 10:
        statuses.append(scene.post("generic", body)[0])
        assert len(texts(scene)) + len(scene.amended()) == min(4 * len(statuses), 30)
    assert statuses == [503] * 7 + [200]
    # The platform sends it again, or another sender sends the same.
    assert scene.post("generic", body)[0] == 200
    assert scene.post("generic", many_reactions(31))[0] == 503


def test_of_a_large_webhook_with_refused_items_no_item_is_left_out(
    fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = SlowLane(fake)
    scene = Scene(fake, monkeypatch, lane=lane, stage_rules={"silenceMs": 900_000, "maxWaitMs": 900_000})
    scene.rules.write(TENANT, {"quota": {"messagesPerMinute": 2, "conversationsPerMinute": 2}})
    body = [*fragments(0, 19), *fragments(20, 30, tenant="other")]
    assert scene.post("generic", body)[0] == 503
    lane.call_ms = 0
    for _ in range(10):
        fake.clock.advance(60_000)
        scene.post("generic", body)
    assert scene.post("generic", body)[0] == 200
    assert texts(scene) == [f"fragment {n}" for n in range(20)]


def test_a_webhook_of_which_too_much_is_put_aside_comes_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is slow must not keep the function until it is killed."""
    scene.rules.write("account:whatsapp/1", {"quota": {"messagesPerMinute": 1}})
    put = scene.dead_letters.put

    def slowly(body: str) -> None:
        scene.engine.clock.advance(MAX_WORK_MS_IN_A_WEBHOOK // 4 + 1)
        put(body)

    monkeypatch.setattr(scene.dead_letters, "put", slowly)
    assert scene.post("whatsapp", whatsapp(*map(str, range(10))))[0] == 503
    assert len(scene.dead_letters.bodies) == 4


def test_changes_and_control_words_that_follow_a_message_that_is_put_aside_are_dropped(scene: Scene) -> None:
    scene.rules.write("stage", {"stopWords": ["stop"]})
    scene.rules.write("account:whatsapp/1", {"quota": {"messagesPerMinute": 1}})
    body = whatsapp("a", "b", "stop")
    body["entry"][0]["changes"][0]["value"]["messages"] += reactions(1)["entry"][0]["changes"][0]["value"]["messages"]
    body["entry"][0]["changes"][0]["value"]["messages"][-1]["from"] = "491701"
    assert scene.post("whatsapp", body)[0] == 200
    assert (texts(scene, "default/whatsapp/1/491701"), scene.cancelled(), scene.amended()) == (["a"], [], [])
    assert len(scene.dead_letters.bodies) == 1
    assert scene.telemetry.counts["Dropped"] == 2


def test_a_stop_word_is_charged_before_the_messages_of_its_webhook(scene: Scene) -> None:
    scene.rules.write("stage", {"stopWords": ["stop"]})
    scene.rules.write(SHOP, {"quota": FEW})
    scene.post("generic", message("m0", conversation="other"))
    assert scene.post("generic", [*fragments(1, 8), message("s", "stop", conversation="other")])[0] == 429
    assert len(scene.cancelled()) == 1
    assert texts(scene, "default/generic/shop/other") == []
