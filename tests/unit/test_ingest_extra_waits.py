"""Messages that wait for a caption, a transcript, or the rest of an album."""

import pytest

from message_buffer.json_object import Json
from tests.support.ingest_scene import CHAT, Scene, emit, message, photo, texts, waits_ms
from tests.support.learned import MODEL
from tests.support.webhook_cases import Case, cases, whole


def types_of(case: Case) -> set[str]:
    """Return the types of the messages that a webhook contains."""
    return {update.get("type", "") for update in case.expected.get("updates", [])}


def test_a_picture_waits_for_its_caption_and_the_caption_ends_that(scene: Scene) -> None:
    scene.rules.write("stage", {"mediaSilenceMs": 6_000, "typingInferenceMs": 0})
    assert waits_ms(scene, scene.post("generic", photo("m1"))[1]) == 6_000
    assert waits_ms(scene, scene.post("generic", message("m2", "that is it"))[1]) == 1_000


@pytest.mark.parametrize("body", [photo("m1", "caption"), photo("m1", type="location"), message("m1")])
def test_what_needs_no_caption_waits_for_none(scene: Scene, body: Json) -> None:
    scene.rules.write("stage", {"mediaSilenceMs": 6_000})
    assert waits_ms(scene, scene.post("generic", body)[1]) == 1_000


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


def test_a_learned_wait_follows_the_text_and_not_the_silence(scene: Scene) -> None:
    rules = {"wait": "learned", "learned": MODEL, "mediaSilenceMs": 4_000, "pressedSilenceMs": 70}
    scene.rules.write("stage", rules)
    assert waits_ms(scene, scene.post("generic", message("m1", "and then"))[1]) == 6_000
    assert waits_ms(scene, scene.post("generic", message("m2", "is that so?"))[1]) == 1_000
    assert waits_ms(scene, scene.post("generic", photo("m3"))[1]) == 4_000, "a file alone"
    emit(scene)
    scene.post("generic", photo("v1", pending=True))
    scene.post("generic", photo("v1", "Where is it?") | {"edited": True})
    due_at_ms = scene.engine.store.peek_conversation(CHAT).due_at_ms
    assert due_at_ms == scene.engine.clock.now_ms + 1_000, "the wait of the transcript"


@pytest.mark.parametrize(
    "case", [each for each in cases() if types_of(each) & {"button", "interactive", "order"}], ids=str
)
def test_what_people_press_on_a_platform_waits_as_a_press(scene: Scene, case: Case) -> None:
    scene.rules.write("stage", {"pressedSilenceMs": 70})
    scene.post(case.platform, case.body)
    (name,) = scene.engine.store.list_conversations(0).conversations
    assert (scene.engine.store.peek_conversation(name).due_at_ms or 0) - scene.engine.clock.now_ms == 70


@pytest.mark.parametrize(
    ("platform", "content", "wait_ms"),
    [
        ("twilio", {"Body": "the first part"}, 5_000),
        ("twilio", {"Body": "Hey", "From": "whatsapp:+15551234567", "To": "whatsapp:+15558675310"}, 1_000),
        ("whatsapp", {"messages": [{"type": "text", "text": {"body": "Hey"}}]}, 1_000),
        ("whatsapp", {"messages": [{"type": "image", "image": {"id": "1", "mime_type": "image/jpeg"}}]}, 4_000),
        ("messenger", {"message": {"attachments": [{"type": "image", "payload": {"url": "https://a.test/1"}}]}}, 2_000),
    ],
)
def test_a_channel_whose_parts_come_later_waits_longer(
    scene: Scene, platform: str, content: Json, wait_ms: int
) -> None:
    scene.post(platform, whole(platform, content))
    (name,) = scene.engine.store.list_conversations(0).conversations
    assert (scene.engine.store.peek_conversation(name).due_at_ms or 0) - scene.engine.clock.now_ms == wait_ms


def test_an_album_is_not_split_by_a_batchs_count(scene: Scene) -> None:
    scene.rules.write("stage", {"maxMessages": 3})
    album = [photo(f"p{n}") | {"groupId": "album"} for n in range(10)]
    for part in album:
        assert waits_ms(scene, scene.post("generic", part)[1]) > 0
    assert waits_ms(scene, scene.post("generic", message("m1"))[1]) == 0
    assert len(emit(scene).payloads) == 11
