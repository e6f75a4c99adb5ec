"""Ingest reads what simulated customers send as webhooks of their platforms."""

from typing import Any

import pytest

from lambdas.ingest.platforms.base import Incoming
from message_buffer.messages.changes import Deleted, Edited
from tests.support.webhook_cases import read as read_body
from tools.console.customers import KINDS, Customer, PostedWebhook, webhook

CASES = [(platform, kind) for platform, kinds in KINDS.items() for kind in kinds if kind != "typing"]


def post(platform: str, kind: str, *, message_id: str | None = None) -> PostedWebhook:
    return webhook(Customer(platform, "1065", "4917"), kind, text="Yes", message_id=message_id)


def read(platform: str, posted: PostedWebhook) -> Any:
    intake = read_body(platform, posted.body)
    assert not intake.ignored.total(), intake.ignored
    (update,) = intake.updates
    return update


@pytest.mark.parametrize(("platform", "kind"), CASES)
def test_each_kind_is_read_as_what_it_plays(platform: str, kind: str) -> None:
    update = read(platform, post(platform, kind, message_id="m1"))
    match kind:
        case "edit" | "transcript":
            assert isinstance(update, Edited)
            assert (update.message.id, update.message.text) == ("m1", "Yes")
            assert [each.pending for each in update.message.attachments] == [False] * (kind == "transcript")
        case "delete":
            assert isinstance(update, Deleted)
            assert update.message_id == "m1"
        case _:
            assert isinstance(update, Incoming)
            assert update.message.id == "m1"
            assert update.message.attachments if kind in ("file", "voice") else update.message.text == "Yes"
            assert any(each.pending for each in update.message.attachments) == (kind == "voice")
            assert update.conversation.user == "4917"


@pytest.mark.parametrize("platform", KINDS)
def test_each_message_has_an_id_of_its_own(platform: str) -> None:
    first, second = post(platform, "text"), post(platform, "text")
    assert read(platform, first).message.id == first.message_id != second.message_id


def test_typing_has_an_address_of_its_own_and_names_the_tenant() -> None:
    posted = webhook(Customer("generic", "shop", "ada", "acme"), "typing", text="", message_id=None)
    assert posted.route == "typing"
    assert posted.body == {"account": "shop", "conversation": "ada", "tenant": "acme"}
