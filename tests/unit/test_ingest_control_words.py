"""Stop and flush words, from the webhook to the answer."""

import json
from pathlib import Path

import jsonschema
import pytest

from message_buffer.errors import SendFailed
from message_buffer.lanes.holds import NO_END_MS
from tests.support.ingest_scene import CHAT, Scene, emit, message, photo, texts, waits_ms

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.buffer.cancelled.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
WORDS = {"stopWords": ["stop", "/stop"], "flushWords": ["go"]}


@pytest.fixture
def worded(scene: Scene) -> Scene:
    scene.rules.write("stage", WORDS)
    return scene


# -- stop ------------------------------------------------------------------------------------------


@pytest.mark.case(22, 23)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_stop_drops_what_came_before_it_and_nothing_else(worded: Scene, place: int) -> None:
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
        "lane": "valkey", "metadata": {"platform": "generic"},
    }  # fmt: skip


def test_a_stop_delivered_again_drops_nothing_that_came_since(worded: Scene) -> None:
    worded.post("generic", [message("m1"), message("s", "stop")])
    worded.post("generic", message("m2"))
    worded.post("generic", [message("m1"), message("s", "stop")])
    assert texts(worded) == ["Hey"]
    first, again = worded.cancelled()
    VALIDATOR.validate(again)
    assert (first["messageId"], first["dropped"]) == ("s", 1)
    assert (again["messageId"], again["dropped"], again["generation"]) == ("s", None, None)


def test_a_stop_ends_the_steps_of_silence_and_a_repeat_leaves_those_after_a_newer_message(worded: Scene) -> None:
    sent_ms = worded.engine.clock() - 1_000
    stop = message("s", "stop", sentAt=sent_ms)
    worded.post("generic", stop)
    worded.engine.clock.advance(60_000)
    worded.post("generic", stop)
    assert worded.takeovers.steps == [("end", CHAT, NO_END_MS), ("end", CHAT, sent_ms)]


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


def test_a_flush_word_with_nothing_to_send_is_ignored_and_counted_and_ends_the_steps_of_silence(worded: Scene) -> None:
    sent_ms = worded.engine.clock() - 1_000
    status, answer = worded.post("generic", message("m1", "go", sentAt=sent_ms))
    assert worded.takeovers.steps == [("end", CHAT, sent_ms)]
    assert (status, answer["conversations"]) == (200, {})
    assert worded.is_empty()
    assert worded.telemetry.counts["IgnoredKinds flush"] == 1


def test_a_stop_says_whether_a_batch_was_leaving(worded: Scene) -> None:
    worded.post("generic", message("m1"))
    emit(worded)
    worded.post("generic", message("m2", "stop"))
    (event,) = worded.cancelled()
    assert (event["frozen"], event["leaving"]) == (1, True)
