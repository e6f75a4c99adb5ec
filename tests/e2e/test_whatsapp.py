"""WhatsApp's webhooks as Meta sends them, by HTTP and the bus only."""

import uuid
from typing import Any

import pytest

from tests.support.judge import Talk, judge
from tests.support.local_stage import LocalStage
from tools.local.webhooks import whatsapp, whatsapp_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

WITHIN_MS = 15_000


def new_id() -> str:
    return f"wamid.{uuid.uuid4().hex}"


def body_with(**value: Any) -> dict[str, Any]:
    body = whatsapp()
    body["entry"][0]["changes"][0]["value"] |= value
    return body


def new_number() -> str:
    return f"4915{uuid.uuid4().int % 10**9:09}"


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
