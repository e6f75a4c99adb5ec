"""Ingest reads what simulated customers send as webhooks of their platforms."""

from typing import Any

import pytest

from lambdas.ingest.platforms.base import Incoming
from message_buffer.messages.changes import Deleted, Edited
from tests.support.webhook_cases import read as read_body
from tools.console.customers import BODIES_KEPT_OF_A_CUSTOMER, CUSTOMERS_KEPT, KINDS, CannotDo, Customer, Customers

ACCOUNTS = {"whatsapp": "1065", "messenger": "17", "instagram": "18", "twilio": "1555", "telegram": "bot"}
CASES = [
    (platform, kind)
    for platform, kinds in KINDS.items()
    for kind in kinds
    if kind not in ("again", "typing", "human_reply")
]


def read(platform: str, body: Any) -> list[Any]:
    intake = read_body(platform, body)
    assert not intake.ignored.total(), intake.ignored
    return intake.updates


@pytest.mark.parametrize(("platform", "kind"), CASES)
def test_each_kind_is_read_as_what_it_plays(platform: str, kind: str) -> None:
    customer = Customer(platform, ACCOUNTS.get(platform, "shop"), "4917")
    customers = Customers()
    first = customers.webhook(customer, "text", text="Hey")
    sent = customers.webhook(customer, kind, text="Yes")
    (update,) = read(platform, sent.body)
    match kind:
        case "edit":
            assert isinstance(update, Edited)
            assert (update.message.id, update.message.text) == (first.message_id, "Yes")
        case "delete":
            assert isinstance(update, Deleted)
            assert update.message_id == first.message_id
        case _:
            assert isinstance(update, Incoming)
            assert update.message.attachments if kind in ("file", "voice") else update.message.text == "Yes"
            assert update.conversation.user.endswith("4917")


def test_the_edit_of_a_voice_note_brings_its_transcript() -> None:
    customer, customers = Customer("generic", "shop", "4917"), Customers()
    (spoken,) = read("generic", customers.webhook(customer, "voice").body)
    (edited,) = read("generic", customers.webhook(customer, "edit", text="Where is my order?").body)
    assert spoken.message.attachments[0].pending
    assert [each.pending for each in edited.message.attachments] == [False]


def test_the_answer_of_a_person_of_the_business_is_read_as_that() -> None:
    sent = Customers().webhook(Customer("whatsapp", "1065", "4917"), "human_reply", text="Eva here")
    intake = read_body("whatsapp", sent.body)
    (reply,) = intake.human_replies
    assert (reply.id, reply.conversation.user, intake.updates) == (sent.message_id, "4917", [])


def test_a_customer_cannot_change_what_a_person_of_the_business_wrote() -> None:
    customer, customers = Customer("whatsapp", "1065", "4917"), Customers()
    first = customers.webhook(customer, "text", text="Hey")
    answered = customers.webhook(customer, "human_reply", text="Eva here")
    assert customers.webhook(customer, "edit", text="Ho").message_id == first.message_id
    with pytest.raises(CannotDo, match="has not sent"):
        customers.webhook(customer, "edit", text="x", message_id=answered.message_id)


@pytest.mark.parametrize("platform", KINDS)
def test_a_redelivery_is_the_same_body_again(platform: str) -> None:
    customer, customers = Customer(platform, ACCOUNTS.get(platform, "shop"), "4917"), Customers()
    first = customers.webhook(customer, "text", text="Hey")
    assert customers.webhook(customer, "again") == first


@pytest.mark.parametrize("kind", ["delete", "nonsense", ""])
def test_a_kind_that_a_platform_does_not_send_is_refused(kind: str) -> None:
    with pytest.raises(CannotDo, match="has no webhook"):
        Customers().webhook(Customer("twilio", "1555", "1401"), kind)


@pytest.mark.parametrize("message_id", [None, "unknown"])
def test_a_change_needs_an_earlier_message(message_id: str | None) -> None:
    with pytest.raises(CannotDo, match="has not sent"):
        Customers().webhook(Customer("generic", "shop", "ada"), "edit", text="x", message_id=message_id)


def test_the_bodies_that_are_kept_are_bounded() -> None:
    customers, customer = Customers(), Customer("generic", "shop", "ada")
    ids = [customers.webhook(customer, "text", text=str(n)).message_id for n in range(BODIES_KEPT_OF_A_CUSTOMER + 1)]
    with pytest.raises(CannotDo):
        customers.webhook(customer, "again", message_id=ids[0])
    customers.webhook(customer, "again", message_id=ids[1])
    for n in range(CUSTOMERS_KEPT):
        customers.webhook(Customer("generic", "shop", f"other{n}"), "text", text="x")
    with pytest.raises(CannotDo):
        customers.webhook(customer, "again", message_id=ids[-1])
