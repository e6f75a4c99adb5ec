"""Every platform's route, from its own webhook to its answer and to the event."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest

from bufferctl.events import ArrivedEvent
from tests.support.judge import Talk, ids_of, if_quick_enough, judge_schema
from tests.support.local_stage import SILENCE_MS, LocalStage
from tools.local.events import Inbox, collect
from tools.local.outputs import FUNCTION_URL_PATH
from tools.local.webhooks import Webhooks, meta, telegram_message, twilio_message, whatsapp, whatsapp_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

PAGE, BOT, NUMBER, WHATSAPP_NUMBER = "102290129340398", "bot", "15558675310", "15550783881"
ACCEPTED = "application/json"
TWIML = b'<?xml version="1.0" encoding="UTF-8"?><Response></Response>'

_numbers = count(int(time.time()))


class Route(NamedTuple):
    platform: str
    body: Callable[[str, str, str], object]
    """Makes the body of a webhook from a user, a message id and a text."""
    account: str
    kind: str = ACCEPTED


def _meta(platform: str) -> Route:
    return Route(
        platform,
        lambda user, mid, text: meta(platform, {"message": {"mid": mid, "text": text}}, account=PAGE, user=user),
        PAGE,
    )


ROUTES = {
    "messenger": _meta("messenger"),
    "instagram": _meta("instagram"),
    "telegram": Route("telegram", lambda user, mid, text: telegram_message(int(mid), text, user=int(user)), BOT),
    "sms": Route("twilio", lambda user, mid, text: twilio_message(mid, text, sender=f"+{user}"), NUMBER, "text/xml"),
    "whatsapp by twilio": Route(
        "twilio",
        lambda user, mid, text: twilio_message(mid, text, sender=f"whatsapp:+{user}", to=f"whatsapp:+{NUMBER}"),
        f"whatsapp:{NUMBER}",
        "text/xml",
    ),
    "whatsapp": Route(
        "whatsapp", lambda user, mid, text: whatsapp(whatsapp_text(mid, text, sender=user)), "106540352242922"
    ),
    "generic": Route(
        "generic",
        lambda user, mid, text: {"account": "shop", "conversation": user, "id": mid, "text": text},
        "shop",
    ),
}


def new_user() -> str:
    return f"4915{uuid.uuid4().int % 10**9:09}"


def new_id() -> str:
    return str(next(_numbers))


def batches_of(inbox: Inbox, conversation: str) -> list[ArrivedEvent]:
    return [arrival for arrival in inbox.arrivals if arrival.batch["conversationId"] == conversation]


def wait_for(inbox: Inbox, conversation: str, *, arrivals: int = 1) -> list[ArrivedEvent]:
    def enough(_: Sequence[ArrivedEvent]) -> bool:
        return len(batches_of(inbox, conversation)) >= arrivals

    assert inbox.wait_until(enough, timeout_seconds=20), f"nothing came of {conversation}"
    return batches_of(inbox, conversation)


@pytest.fixture
def amended(stage: LocalStage) -> Iterator[Inbox]:
    with collect(stage.outputs, pattern=only("messages.amended")) as inbox:
        yield inbox


def only(detail_type: str) -> dict[str, Any]:
    return {"source": ["message-buffer"], "detail-type": [detail_type]}


@pytest.mark.smoke
@pytest.mark.parametrize("name", ROUTES)
def test_two_fragments_become_one_event_and_each_is_answered_as_the_platform_wants(
    stage: LocalStage, name: str
) -> None:
    route = ROUTES[name]

    def attempt() -> bool:
        user, ids = new_user(), [new_id(), new_id()]
        began = time.monotonic()
        for message_id, text in zip(ids, ("Hey", "Order #12345"), strict=True):
            answer = stage.webhooks.post(route.platform, route.body(user, message_id, text))
            assert answer.status == 200, answer.body
            assert answer.content_type.startswith(route.kind)
            if route.kind == "text/xml":
                assert answer.body in {TWIML, b"<Response></Response>"}
        # On a machine that paused between them, the first fragment is rightly a batch of its own.
        in_pace = time.monotonic() - began < SILENCE_MS / 1_000
        conversation = f"default/{route.platform}/{route.account}/{user}"
        arrival, *_ = wait_for(stage.inbox, conversation)
        judge_schema(arrival)
        assert arrival.batch["metadata"]["platform"] == route.platform
        if in_pace:
            assert arrival.batch["text"] == "Hey\nOrder #12345"
            time.sleep(1)
            assert len(batches_of(stage.inbox, conversation)) == 1
        return in_pace

    if_quick_enough(attempt)


@pytest.mark.parametrize("platform", ["whatsapp", "messenger", "instagram"])
def test_metas_challenge_is_echoed_as_plain_text(stage: LocalStage, platform: str) -> None:
    secret = stage.outputs.WebhookSecrets[platform]
    asked = {"hub.mode": "subscribe", "hub.verify_token": secret, "hub.challenge": "1158201444"}
    answer = stage.webhooks.get(platform, asked)
    assert (answer.status, answer.body) == (200, b"1158201444")
    assert answer.content_type.startswith("text/plain")
    assert stage.webhooks.get(platform, asked | {"hub.verify_token": "guessed"}).status == 403


def test_an_edit_changes_what_waits_and_what_has_left_is_amended_by_name(stage: LocalStage, amended: Inbox) -> None:
    user, message_id = new_user(), new_id()

    def send(text: str, *, edited: bool = False) -> Mapping[str, Any]:
        update = telegram_message(int(message_id), text, user=int(user), edited=edited)
        answer = stage.webhooks.post("telegram", update)
        assert answer.status == 200, answer.body
        return answer.json

    send("Order #1234")
    send("Order #12345", edited=True)
    conversation = f"default/telegram/{BOT}/{user}"
    (arrival,) = wait_for(stage.inbox, conversation)
    assert arrival.batch["text"] == "Order #12345"
    assert not batches_of(amended, conversation), "nothing to amend: the batch has the edited text"

    send("Order #54321", edited=True)
    (change,) = wait_for(amended, conversation)
    assert change.batch["batchId"] == arrival.batch["batchId"]
    assert (change.batch["change"], change.batch["messageId"]) == ("edited", message_id)
    assert change.batch["message"]["text"] == "Order #54321"


def test_a_typing_author_is_waited_for_but_not_for_ever(stage: LocalStage) -> None:
    talk = Talk(stage)
    nobody = {"account": "shop", "conversation": f"nobody-{uuid.uuid4().hex}"}
    typing = {"account": "shop", "conversation": talk.name}
    answer = stage.webhooks.post("generic", nobody, route="typing")
    assert list(answer.json["conversations"].values()) == [{"dueAt": None}]

    due_at_ms = next(iter(talk.insist().json["conversations"].values()))["dueAt"]
    time.sleep(0.3)
    answer = stage.webhooks.post("generic", typing, route="typing")
    assert answer.status == 200, answer.body
    (state,) = answer.json["conversations"].values()
    assert state["dueAt"] > due_at_ms
    (ids,) = talk.wait_all()
    assert ids == talk.ids
    (arrival,) = talk.arrivals()
    assert arrival.at_ms >= state["dueAt"]


@pytest.mark.case(26)
def test_the_ids_of_a_batch_delivered_again_one_by_one_are_known_during_and_after_its_emission(
    stage: LocalStage,
) -> None:
    user, ids = new_user(), [new_id() for _ in range(3)]
    route = ROUTES["messenger"]

    def send(message_id: str) -> Mapping[str, Any]:
        answer = stage.webhooks.post(route.platform, route.body(user, message_id, f"text of {message_id}"))
        assert answer.status == 200, answer.body
        return answer.json

    for message_id in ids:
        send(message_id)
    conversation, deadline = f"default/messenger/{PAGE}/{user}", time.monotonic() + 20
    has_come = False
    while not has_come:
        assert time.monotonic() < deadline, f"nothing came of {conversation}"
        # The last round is sent after the batch has come.
        has_come = bool(batches_of(stage.inbox, conversation))
        for message_id in ids:
            assert send(message_id)["duplicates"] == 1
    stage.wait_until_settled(conversation)
    (arrival,) = batches_of(stage.inbox, conversation)
    assert ids_of(arrival) == ids


@pytest.fixture
def at_own_address(stage: LocalStage) -> Iterator[Webhooks]:
    """Give ingest an address of its own beside the API. Yield platforms that use it."""
    function, client = stage.outputs.Functions["ingest"], stage.outputs.client("lambda")
    url = client.create_function_url_config(FunctionName=function, AuthType="NONE")["FunctionUrl"]
    name = url.removeprefix("https://").partition(".")[0]
    endpoint = f"{stage.outputs.AwsEndpointUrl}{FUNCTION_URL_PATH}{name}"
    permission = {"FunctionName": function, "Principal": "*"}
    client.add_permission(
        **permission, StatementId="url", Action="lambda:InvokeFunctionUrl", FunctionUrlAuthType="NONE"
    )
    client.add_permission(
        **permission, StatementId="by-url", Action="lambda:InvokeFunction", InvokedViaFunctionUrl=True
    )
    yield Webhooks(replace(stage.outputs, ApiEndpoint=endpoint))
    client.delete_function_url_config(FunctionName=function)


def test_every_platform_is_served_at_ingests_own_address_while_the_api_answers_too(
    stage: LocalStage, at_own_address: Webhooks
) -> None:
    for name, route in ROUTES.items():
        user, ids = new_user(), [new_id(), new_id()]
        for webhooks, message_id in zip((at_own_address, stage.webhooks), ids, strict=True):
            answer = webhooks.post(route.platform, route.body(user, message_id, "Hey"))
            assert answer.status == 200, (name, answer.body)
            assert answer.content_type.startswith(route.kind)
        conversation = f"default/{route.platform}/{route.account}/{user}"
        wait_for(stage.inbox, conversation)
        stage.wait_until_settled(conversation)
        found = [one for arrival in batches_of(stage.inbox, conversation) for one in ids_of(arrival)]
        assert sorted(found) == sorted(ids), name
    secret = stage.outputs.WebhookSecrets["whatsapp"]
    asked = {"hub.mode": "subscribe", "hub.verify_token": secret, "hub.challenge": "1158201444"}
    assert at_own_address.get("whatsapp", asked).body == b"1158201444"
    assert at_own_address.get("nobody", asked).status == 404
    assert at_own_address.post("generic", b"{}", headers={"X-Signature-256": "sha256=0"}).status == 401
