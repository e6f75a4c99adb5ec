"""WhatsApp's webhooks as Meta sends them, by HTTP and the bus only."""

import time
import uuid
from typing import Any

import pytest

from local.webhooks import whatsapp, whatsapp_text
from tests.support.judge import Talk, ids_of, judge
from tests.support.local_stage import LocalStage
from tests.support.platforms import NOTHING_DONE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

WITHIN_MS = 15_000


def new_id() -> str:
    return f"wamid.{uuid.uuid4().hex}"


def body_with(**value: Any) -> dict[str, Any]:
    body = whatsapp()
    body["entry"][0]["changes"][0]["value"] |= value
    return body


def whatsapp_status(message_id: str, *, recipient: str, status: str = "delivered") -> dict[str, Any]:
    return {"id": message_id, "status": status, "timestamp": str(int(time.time())), "recipient_id": recipient}


def new_number() -> str:
    return f"4915{uuid.uuid4().int % 10**9:09}"


def test_fragments_become_one_event(stage: LocalStage) -> None:
    talk, sender = Talk(stage), new_number()
    for text in ("Hey", "I have a question", "Order #12345"):
        message_id = new_id()
        answer = stage.webhooks.post("whatsapp", whatsapp(whatsapp_text(message_id, text, sender=sender)))
        talk.note(answer, message_id)
    (arrival,) = judge([talk], within_ms=WITHIN_MS)
    assert arrival.batch["text"] == "Hey\nI have a question\nOrder #12345"
    assert arrival.batch["metadata"]["platform"] == "whatsapp"
    assert {message["author"] for message in arrival.batch["messages"]} == {sender}


@pytest.mark.smoke
def test_a_burst_of_an_author_who_hides_the_number_is_one_event(stage: LocalStage) -> None:
    talk, sender, user_id = Talk(stage), new_number(), f"DE.{uuid.uuid4().hex}"
    for number in (sender, None, sender):
        message_id = new_id()
        item = whatsapp_text(message_id, f"text of {message_id}", sender=number or "") | {"from_user_id": user_id}
        talk.note(stage.webhooks.post("whatsapp", body_with(messages=[item])), message_id)
    (arrival,) = judge([talk], within_ms=WITHIN_MS)
    assert arrival.batch["conversationId"].endswith(f"/{sender}")
    assert len(arrival.batch["messages"]) == 3
    for options in ({"dryRun": True}, {}):
        answer = stage.admin.ask("conversation.forget", conversation=arrival.batch["conversationId"], **options)
        assert answer["counts"]["aliases"] == 2
        assert answer["otherName"].endswith(f"/{user_id}")


def test_one_post_with_messages_of_several_people_and_statuses_between(stage: LocalStage) -> None:
    senders = [new_number(), new_number()]
    talks = {sender: Talk(stage) for sender in senders}
    said = [(senders[number % 2], new_id()) for number in range(6)]
    body = whatsapp(
        *(whatsapp_text(message_id, f"text of {message_id}", sender=sender) for sender, message_id in said),
        statuses=tuple(whatsapp_status(new_id(), recipient=sender) for sender in senders),
    )
    answer = stage.webhooks.post("whatsapp", body)
    assert (answer.status, answer.json["accepted"]) == (200, 6)
    for sender, talk in talks.items():
        state = {name: state for name, state in answer.json["conversations"].items() if name.endswith(sender)}
        talk.note_state(state, *(message_id for author, message_id in said if author == sender))
    arrivals = judge(list(talks.values()), within_ms=WITHIN_MS)
    assert len(arrivals) == 2
    assert sorted(map(len, map(ids_of, arrivals))) == [3, 3]


def test_statuses_alone_are_accepted_and_buffer_nothing(stage: LocalStage) -> None:
    before = len(stage.keys("*:msgs:*"))
    recipient = new_number()
    status = whatsapp_status(new_id(), recipient=recipient, status="read")
    answer = stage.webhooks.post("whatsapp", whatsapp(statuses=(status,)))
    assert (answer.status, answer.json) == (200, NOTHING_DONE | {"ignored": 1})
    assert not stage.keys(f"*{recipient}*")
    assert len(stage.keys("*:msgs:*")) <= before


def test_a_redelivered_post_adds_nothing(stage: LocalStage) -> None:
    talk, sender, message_id = Talk(stage), new_number(), new_id()
    body = whatsapp(whatsapp_text(message_id, "once", sender=sender))
    talk.note(stage.webhooks.post("whatsapp", body), message_id)
    assert stage.webhooks.post("whatsapp", body).json["duplicates"] == 1
    (arrival,) = judge([talk], within_ms=WITHIN_MS)
    assert ids_of(arrival) == [message_id]


def test_the_challenge_is_echoed_to_a_caller_who_knows_the_token(stage: LocalStage) -> None:
    token = stage.outputs.WebhookSecrets["whatsapp"]
    query = {"hub.mode": "subscribe", "hub.verify_token": token, "hub.challenge": "1158201444"}
    answer = stage.webhooks.get("whatsapp", query)
    assert (answer.status, answer.body) == (200, b"1158201444")


@pytest.mark.parametrize("wrong", [{"hub.verify_token": "guess"}, {"hub.mode": "unsubscribe"}])
def test_the_challenge_is_refused_otherwise(stage: LocalStage, wrong: dict[str, str]) -> None:
    token = stage.outputs.WebhookSecrets["whatsapp"]
    query = {"hub.mode": "subscribe", "hub.verify_token": token, "hub.challenge": "1158201444"} | wrong
    answer = stage.webhooks.get("whatsapp", query)
    assert answer.status == 403
    assert b"1158201444" not in answer.body
