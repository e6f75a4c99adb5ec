"""The generic platform reads deletions and reactions, refuses unknown fields, and counts in its answer what it did."""

import pytest

from message_buffer.json_object import Json
from tests.support.ingest_scene import Scene, emit, message, texts
from tests.support.platforms import NOTHING_DONE

OF = {"account": "shop", "conversation": "c1"}


def counts(answer: Json) -> Json:
    return {name: value for name, value in answer.items() if value and name != "conversations"}


def test_a_deletion_takes_a_waiting_message_back(scene: Scene) -> None:
    scene.post("generic", [message("m1", "a"), message("m2", "b")])
    status, answer = scene.post("generic", OF | {"id": "m1", "deleted": True})
    assert (status, counts(answer), texts(scene)) == (200, {"changed": 1}, ["b"])


def test_a_deletion_of_what_has_left_is_published(scene: Scene) -> None:
    scene.post("generic", message("m1", "a"))
    emit(scene)
    status, answer = scene.post("generic", OF | {"id": "m1", "deleted": True, "author": "Ada"})
    (event,) = scene.amended()
    assert (status, counts(answer)) == (200, {"amended": 1})
    assert (event["change"], event["messageId"], event["author"]) == ("deleted", "m1", "Ada")


@pytest.mark.parametrize("reaction", ["👍", None])
def test_a_reaction_is_published_with_its_emoji_and_buffers_nothing(scene: Scene, reaction: str | None) -> None:
    status, answer = scene.post("generic", OF | {"id": "m1", "reaction": reaction, "author": "Ada"})
    (event,) = scene.amended()
    assert (status, counts(answer)) == (200, {"amended": 1})
    assert (event["change"], event["messageId"], event["author"]) == ("reaction", "m1", "Ada")
    assert event["emoji"] == reaction
    assert scene.is_empty()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ([message(), message("m2") | {"replyto": "m1"}], "[1]: A field is unknown; did you mean replyTo?"),
        (message() | {"zzz": 1}, "A field is unknown; valid are account, agent, attachments, author, conversation, "),
        (message() | {"deleted": True}, "text cannot be beside deleted."),
        (OF | {"deleted": True}, "id is missing."),
        (message(text=""), "text is empty, and there are no attachments."),
    ],
)
def test_a_wrong_field_is_refused_with_the_reason_and_changes_nothing(
    scene: Scene, body: Json | list[Json], problem: str
) -> None:
    status, answer = scene.post("generic", body)
    assert status == 400
    assert answer["error"].startswith(problem)
    assert scene.is_empty()
    assert not scene.amended()


def test_what_people_wrote_in_the_place_of_a_fields_name_is_not_logged(scene: Scene) -> None:
    scene.post("generic", message() | {"Ada's PIN is 1234": 1})
    (logged,) = scene.telemetry.said("body refused")
    assert "1234" not in str(logged)


def test_the_answer_counts_everything_that_a_body_did(scene: Scene) -> None:
    scene.rules.write("stage", {"stopWords": ["stop"], "flushWords": ["go"]})
    _, answer = scene.post(
        "generic",
        [
            message("m1", "a"), message("m1", "a"), message("m2", "go"), message("m3", "go") | {"conversation": "c2"},
            message("m4", "stop") | {"conversation": "c3"}, message("m1", "b") | {"edited": True},
            OF | {"id": "m0", "reaction": "👍"},
        ],
    )  # fmt: skip
    assert answer.keys() == NOTHING_DONE.keys()
    assert counts(answer) == {
        "accepted": 1, "duplicates": 1, "changed": 1, "amended": 1, "stopped": 1, "flushed": 1, "ignored": 1,
    }  # fmt: skip
