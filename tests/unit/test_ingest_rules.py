"""Ingest by rules: whose a conversation is, words that are orders, and messages that wait for more."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from message_buffer.errors import SendFailed
from message_buffer.lanes.outcomes import Taken
from message_buffer.limits import MIN_MS_BETWEEN_RULES_CHECKS
from tests.support.engine import Engine
from tests.support.ingest_scene import Json, Scene

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.buffer.cancelled.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
CHAT = "default/generic/shop/c1"
GROUP = "-100"
WORDS = {"stopWords": ["stop", "/stop"], "flushWords": ["go"]}


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch)


@pytest.fixture
def worded(scene: Scene) -> Scene:
    scene.rules.write("stage", WORDS)
    return scene


def message(message_id: str = "m1", text: str = "Hey", **fields: Any) -> Json:
    return {"account": "shop", "conversation": "c1", "id": message_id, "text": text} | fields


def photo(message_id: str = "m1", text: str = "", **fields: Any) -> Json:
    return message(message_id, text, type="image", attachments=[{"type": "image", "id": "f"} | fields])


def telegram(text: str, *, message_id: int = 1, author: int = 7, edited: bool = False) -> Json:
    told = {
        "message_id": message_id, "from": {"id": author}, "chat": {"id": int(GROUP), "type": "supergroup"},
        "date": 1_700_000_000, "text": text,
    }  # fmt: skip
    return {"update_id": 1, ("edited_message" if edited else "message"): told}


def waits_ms(scene: Scene, answer: Json, conversation: str = CHAT) -> int:
    return int(answer["conversations"][conversation]["dueAt"]) - scene.engine.clock.now_ms


def texts(scene: Scene, conversation: str = CHAT) -> list[str]:
    return [each.get("text", "") for each in scene.buffered(conversation)]


# -- whose it is -----------------------------------------------------------------------------------


def test_an_accounts_tenant_and_agent_are_the_conversations(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme", "agent": "sales"})
    scene.rules.write("agent:acme/sales", {"silenceMs": 77, "typingInferenceMs": 0})
    _, answer = scene.post("generic", message())
    assert waits_ms(scene, answer, "acme/generic/shop/c1") == 77


def test_what_a_message_says_of_itself_goes_before_what_is_known_of_its_account(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme", "agent": "sales"})
    scene.rules.write("agent:acme/sales", {"silenceMs": 77, "typingInferenceMs": 0})
    scene.rules.write("agent:acme/support", {"silenceMs": 88, "typingInferenceMs": 0})
    _, answer = scene.post("generic", message(agent="support"))
    assert waits_ms(scene, answer, "acme/generic/shop/c1") == 88
    _, answer = scene.post("generic", message(tenant="other"))
    assert waits_ms(scene, answer, "other/generic/shop/c1") == 1_000


def test_p9_who_has_an_accounts_secret_alone_writes_in_the_name_of_no_other_tenant(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"generic": {"secret": "everybodys", "accounts": {"shop": "the shop's"}}})
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    status, answer = scene.post("generic", [message("m1"), message("m2", tenant="other")], secret="the shop's")
    assert (status, answer["error"].partition(":")[0]) == (400, "[1].tenant may not be named here")
    assert scene.is_empty()
    assert scene.post("generic", message(tenant="default"), secret="the shop's")[0] == 200
    assert texts(scene, "acme/generic/shop/c1") == ["Hey"]


def test_case_35_one_user_of_two_tenants_and_accounts_has_a_buffer_in_each(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    bodies = [message(), message(tenant="other"), message(account="kiosk"), message(account="kiosk", tenant="acme")]
    _, answer = scene.post("generic", bodies)
    assert set(answer["conversations"]) == {
        "acme/generic/shop/c1", "other/generic/shop/c1", "default/generic/kiosk/c1", "acme/generic/kiosk/c1",
    }  # fmt: skip


def test_a_group_is_one_buffer_or_one_an_author(scene: Scene) -> None:
    scene.post("telegram", telegram("one", message_id=1, author=7))
    scene.post("telegram", telegram("two", message_id=2, author=8))
    assert texts(scene, f"default/telegram/shopbot/{GROUP}") == ["one", "two"]
    scene.rules.write("account:telegram/shopbot", {"perAuthor": True})
    scene.engine.clock.advance(MIN_MS_BETWEEN_RULES_CHECKS)
    scene.post("telegram", telegram("three", message_id=3, author=7))
    scene.post("telegram", telegram("four", message_id=4, author=8))
    scene.post("telegram", telegram("drei", message_id=3, author=7, edited=True))
    assert texts(scene, f"default/telegram/shopbot/{GROUP}%2F7") == ["drei"]
    assert texts(scene, f"default/telegram/shopbot/{GROUP}%2F8") == ["four"]


def test_an_owner_whose_name_fits_into_no_id_costs_no_message(scene: Scene) -> None:
    scene.rules.write("account:telegram/shopbot", {"tenant": "a" * 1_024})
    scene.post("telegram", telegram("Hey"))
    assert texts(scene, f"default/telegram/shopbot/{GROUP}") == ["Hey"]
    assert scene.telemetry.counts["RulesSkipped"] == 1


def test_typing_waits_as_the_accounts_rules_say(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    scene.rules.write("tenant:acme", {"typingInferenceMs": 9_000})
    scene.post("generic", message())
    _, answer = scene.post("generic", {"account": "shop", "conversation": "c1"}, route="typing")
    assert waits_ms(scene, answer, "acme/generic/shop/c1") == 9_000


def test_the_table_away_stops_no_message_once_it_was_read(scene: Scene) -> None:
    scene.post("generic", message("m1"))
    scene.rules.is_away = True
    scene.engine.clock.advance(60_000)
    status, answer = scene.post("generic", message("m2"))
    assert (status, answer["accepted"]) == (200, 1)
    assert scene.telemetry.counts["RulesUnreachable"] == 1


def test_p9_a_new_instance_without_the_table_takes_no_message_for_the_wrong_tenant(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    scene.rules.is_away = True
    assert scene.post("generic", message())[0] == 503
    assert scene.is_empty()
    scene.rules.is_away = False
    scene.engine.clock.advance(5_000)
    status, answer = scene.post("generic", message())
    assert (status, list(answer["conversations"])) == (200, ["acme/generic/shop/c1"])


def test_case_32_the_next_message_is_buffered_by_the_changed_rules(scene: Scene) -> None:
    scene.rules.write("stage", {"silenceMs": 8_000})
    scene.post("generic", message("m1"))
    scene.rules.write("stage", {"silenceMs": 20_000})
    scene.engine.clock.advance(500)
    assert waits_ms(scene, scene.post("generic", message("m2"))[1]) == 8_000
    scene.engine.clock.advance(MIN_MS_BETWEEN_RULES_CHECKS)
    assert waits_ms(scene, scene.post("generic", message("m3"))[1]) == 20_000
    scene.engine.clock.advance(15_000)
    since_first_ms = 500 + MIN_MS_BETWEEN_RULES_CHECKS + 15_000
    assert waits_ms(scene, scene.post("generic", message("m4"))[1]) == 30_000 - since_first_ms


# -- stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
def test_case_22_and_23_stop_drops_what_came_before_it_and_nothing_else(worded: Scene, place: int) -> None:
    others = [message("a", "a"), message("b", "nonstop")]
    bodies = [*others[:place], message("s", " STOP! "), *others[place:]]
    status, answer = worded.post("generic", bodies)
    assert (status, answer["accepted"], answer["duplicates"]) == (200, 2, 0)
    assert texts(worded) == [each["text"] for each in others[place:]]
    (event,) = worded.cancelled()
    assert (event["messageId"], event["dropped"], event["reason"]) == ("s", place, "stop_word")


def test_a_stop_is_told_with_all_that_the_schema_asks_for(worded: Scene) -> None:
    worded.post("generic", message("m1"))
    worded.post("generic", message("m2", "/stop"))
    (event,) = worded.cancelled()
    VALIDATOR.validate(event)
    assert event == {
        "version": 1, "conversationId": CHAT, "tenant": "default", "generation": 2, "dropped": 1, "frozen": 0,
        "leaving": False, "messageId": "m2", "reason": "stop_word", "at": worded.engine.clock.now_ms,
        "lane": "debounce", "metadata": {"platform": "generic"},
    }  # fmt: skip
    assert worded.telemetry.counts["Stopped"] == 1


def test_a_stop_says_whether_a_batch_was_leaving(worded: Scene) -> None:
    worded.post("generic", message("m1"))
    emit(worded)
    worded.post("generic", message("m2", "stop"))
    (event,) = worded.cancelled()
    assert (event["frozen"], event["leaving"]) == (1, True)


def test_what_comes_after_a_stop_has_a_generation_above_it(worded: Scene) -> None:
    worded.post("generic", [message("m1"), message("m2", "stop"), message("m3")])
    assert emit(worded).generation > worded.cancelled()[0]["generation"]


def test_a_stop_delivered_again_drops_nothing_that_came_since(worded: Scene) -> None:
    worded.post("generic", [message("m1"), message("s", "stop")])
    worded.post("generic", message("m2"))
    worded.post("generic", [message("m1"), message("s", "stop")])
    assert texts(worded) == ["Hey"]
    first, again = worded.cancelled()
    VALIDATOR.validate(again)
    assert (first["messageId"], first["dropped"]) == ("s", 1)
    assert (again["messageId"], again["dropped"], again["generation"]) == ("s", None, None)


def test_a_stop_that_could_not_be_told_is_delivered_again_and_told(worded: Scene) -> None:
    worded.post("generic", message("m1"))
    worded.bus.failures = [SendFailed("put event: ThrottlingException")]
    assert worded.post("generic", message("s", "stop"))[0] == 503
    assert (texts(worded), worded.cancelled()) == ([], [])
    assert worded.post("generic", message("s", "stop"))[0] == 200
    assert [event["messageId"] for event in worded.cancelled()] == ["s"]


def test_a_stop_under_a_picture_is_its_caption(worded: Scene) -> None:
    worded.post("generic", photo("m1", "stop"))
    assert texts(worded) == ["stop"]


@pytest.mark.parametrize("text", ["stop", "go"])
def test_a_button_that_is_called_as_a_word_is_an_answer(worded: Scene, text: str) -> None:
    pressed = {"id": "1", "data": "choice:2", "from": {"id": 7}, "message": {
        "message_id": 1, "chat": {"id": 7, "type": "private"},
        "reply_markup": {"inline_keyboard": [[{"text": text, "callback_data": "choice:2"}]]},
    }}  # fmt: skip
    worded.post("telegram", {"update_id": 1, "callback_query": pressed})
    assert texts(worded, "default/telegram/shopbot/7") == [text]


def test_words_are_orders_only_where_rules_say_so(worded: Scene) -> None:
    worded.rules.write("tenant:quiet", {"stopWords": []})
    worded.post("generic", message("m1", "stop", tenant="quiet"))
    assert texts(worded, "quiet/generic/shop/c1") == ["stop"]
    assert worded.cancelled() == []


# -- send now --------------------------------------------------------------------------------------


def test_a_flush_word_sends_what_waits_and_is_no_message(worded: Scene) -> None:
    worded.post("generic", message("m1"))
    status, answer = worded.post("generic", message("m2", "Go."))
    assert (status, answer["accepted"], waits_ms(worded, answer)) == (200, 0, 0)
    assert texts(worded) == ["Hey"]
    assert emit(worded).flush_reason == "flush"
    assert worded.telemetry.counts["Flushed"] == 1


def test_a_flush_word_with_nothing_to_send_is_ignored_and_counted(worded: Scene) -> None:
    status, answer = worded.post("generic", message("m1", "go"))
    assert (status, answer["conversations"]) == (200, {})
    assert worded.is_empty()
    assert worded.telemetry.counts["IgnoredKinds flush"] == 1


def test_a_flush_word_does_not_end_a_hold(worded: Scene) -> None:
    worded.post("generic", message("m1"))
    worded.engine.store.hold_buffer(CHAT, hold_ms=3_600_000)
    _, answer = worded.post("generic", message("m2", "go"))
    assert waits_ms(worded, answer) == 3_600_000
    assert worded.telemetry.counts["IgnoredKinds flush"] == 1


def test_a_flush_starts_the_processor_that_it_was_told_to(worded: Scene) -> None:
    worded.rules.write("stage", WORDS | {"silenceMs": 400_000, "maxWaitMs": 800_000})
    worded.post("generic", message("m1"))
    assert worded.functions.processors() == []
    worded.post("generic", message("m2", "go"))
    assert worded.functions.processors() == [0]


# -- messages that wait for more -------------------------------------------------------------------


def test_a_picture_waits_for_its_caption_and_the_caption_ends_that(scene: Scene) -> None:
    scene.rules.write("stage", {"mediaSilenceMs": 6_000, "typingInferenceMs": 0})
    assert waits_ms(scene, scene.post("generic", photo("m1"))[1]) == 6_000
    assert waits_ms(scene, scene.post("generic", message("m2", "that is it"))[1]) == 1_000


@pytest.mark.parametrize("body", [photo("m1", "caption"), photo("m1", type="location"), message("m1")])
def test_what_needs_no_caption_waits_for_none(scene: Scene, body: Json) -> None:
    scene.rules.write("stage", {"mediaSilenceMs": 6_000})
    assert waits_ms(scene, scene.post("generic", body)[1]) == 1_000


def test_waiting_for_more_ends_at_the_longest_wait(scene: Scene) -> None:
    scene.rules.write("stage", {"transcriptWaitMs": 90_000, "maxWaitMs": 12_000})
    assert waits_ms(scene, scene.post("generic", photo("m1", pending=True))[1]) == 12_000


def test_a_voice_note_waits_for_its_transcript_and_then_as_others_do(scene: Scene) -> None:
    scene.rules.write("stage", {"transcriptWaitMs": 10_000, "silenceMs": 3_000, "typingInferenceMs": 0})
    assert waits_ms(scene, scene.post("generic", photo("v1", pending=True))[1]) == 10_000
    scene.engine.clock.advance(1_000)
    scene.post("generic", photo("v1", "still listening", pending=True) | {"edited": True})
    due_at_ms = scene.engine.store.peek_conversation(CHAT).due_at_ms
    assert due_at_ms == scene.engine.clock.now_ms + 9_000
    scene.post("generic", photo("v1", "Where is my order?") | {"edited": True})
    assert scene.engine.store.peek_conversation(CHAT).due_at_ms == scene.engine.clock.now_ms + 2_000
    assert texts(scene) == ["Where is my order?"]


def test_a_transcript_does_not_end_the_wait_for_that_of_a_later_voice_note(scene: Scene) -> None:
    scene.rules.write("stage", {"transcriptWaitMs": 10_000, "typingInferenceMs": 0})
    scene.post("generic", photo("v1", pending=True))
    scene.post("generic", photo("v2", pending=True))
    scene.post("generic", photo("v1", "Where is my order?") | {"edited": True})
    assert scene.engine.store.peek_conversation(CHAT).due_at_ms == scene.engine.clock.now_ms + 10_000
    scene.post("generic", photo("v2", "It has number 7.") | {"edited": True})
    assert scene.engine.store.peek_conversation(CHAT).due_at_ms == scene.engine.clock.now_ms + 1_000


def test_a_transcript_that_comes_late_sends_at_once_and_starts_a_processor(scene: Scene) -> None:
    scene.rules.write("stage", {"transcriptWaitMs": 200_000, "maxWaitMs": 400_000, "typingInferenceMs": 0})
    scene.post("generic", photo("v1", pending=True))
    assert scene.functions.processors() == []
    scene.engine.clock.advance(50_000)
    scene.post("generic", photo("v1", "Where is my order?") | {"edited": True})
    assert scene.functions.processors() == [0]
    assert scene.engine.claim() == [CHAT]


def test_an_edited_text_moves_no_time(scene: Scene) -> None:
    scene.post("generic", message("m1"))
    scene.post("generic", {"account": "shop", "conversation": "c1"}, route="typing")
    before = scene.engine.store.peek_conversation(CHAT).due_at_ms
    scene.post("generic", message("m1", "Hello", edited=True))
    assert (texts(scene), scene.engine.store.peek_conversation(CHAT).due_at_ms) == (["Hello"], before)


def test_an_album_is_not_split_by_a_batchs_count(scene: Scene) -> None:
    scene.rules.write("stage", {"maxMessages": 3})
    album = [photo(f"p{n}") | {"groupId": "album"} for n in range(10)]
    for part in album:
        assert waits_ms(scene, scene.post("generic", part)[1]) > 0
    assert waits_ms(scene, scene.post("generic", message("m1"))[1]) == 0
    assert len(emit(scene).payloads) == 11


# -- what it costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Hey", "stop", "go"])
def test_a_message_or_an_order_is_one_round_trip_to_valkey_whatever_the_rules(
    worded: Scene, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worded.rules.write("account:generic/shop", {"tenant": "acme", "agent": "sales"})
    worded.rules.write("conversation:acme/generic/shop/c1", {"silenceMs": 2_000})
    connection = worded.engine.store._connection
    calls: list[str] = []
    run = connection.run

    def counted(script: Any, *args: Any) -> Any:
        calls.append(script.name)
        return run(script, *args)

    monkeypatch.setattr(connection, "run", counted)
    for n in range(20):
        worded.engine.clock.advance(1_000)
        worded.post("generic", message(f"m{n}", text))
    assert len(calls) == 20


def test_a_thousand_first_messages_read_the_table_twice(scene: Scene) -> None:
    scene.rules.write("tenant:acme", {"silenceMs": 77})
    bodies = [message("m1", conversation=f"c{n}", tenant="acme") for n in range(1_000)]
    _, answer = scene.post("generic", bodies)
    assert len(answer["conversations"]) == 1_000
    assert scene.rules.reads == ["version", "all"]


def emit(scene: Scene) -> Taken:
    """Take the batch that waits, and leave it in its conversation processor's hands."""
    scene.engine.clock.advance(60_000)
    assert scene.engine.claim() == [CHAT]
    taken = scene.engine.store.take_batch(CHAT, "token")
    assert isinstance(taken, Taken)
    return taken
