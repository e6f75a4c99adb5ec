"""From each platform's webhook to the event, a function that is killed, and an outage of Valkey."""

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError

from bufferctl import sessions
from tests.support.judge import TEXT_MARK, Talk, judge, judge_schema, settle
from tests.support.local_stage import LocalStage
from tests.support.webhook_bodies import meta, telegram_message, twilio_message
from tools.local.outputs import FUNCTION_URL_PATH
from tools.local.webhooks import Webhooks, whatsapp, whatsapp_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

# Long enough for cold starts beside other tests: these tests judge which messages come, not how fast.
WITHIN_MS = 15_000
PAGE, BOT, NUMBER = "102290129340398", "bot", "15558675310"
SECRET_WORDS = f"{TEXT_MARK} nobody else"

_numbers = count(int(time.time()))


class Route(NamedTuple):
    platform: str
    body: Callable[[str, str, str], object]
    """Makes the body of a webhook from a user, a message id and a text."""
    kind: str = "application/json"


def _meta(platform: str) -> Route:
    return Route(
        platform,
        lambda user, mid, text: meta(platform, {"message": {"mid": mid, "text": text}}, account=PAGE, user=user),
    )


# A new platform needs a route here.
ROUTES = {
    "messenger": _meta("messenger"),
    "instagram": _meta("instagram"),
    "telegram": Route("telegram", lambda user, mid, text: telegram_message(int(mid), text, user=int(user))),
    "sms": Route("twilio", lambda user, mid, text: twilio_message(mid, text, sender=f"+{user}"), "text/xml"),
    "whatsapp by twilio": Route(
        "twilio",
        lambda user, mid, text: twilio_message(mid, text, sender=f"whatsapp:+{user}", to=f"whatsapp:+{NUMBER}"),
        "text/xml",
    ),
    "whatsapp": Route("whatsapp", lambda user, mid, text: whatsapp(whatsapp_text(mid, text, sender=user))),
    "generic": Route(
        "generic", lambda user, mid, text: {"account": "shop", "conversation": user, "id": mid, "text": text}
    ),
}


def new_user() -> str:
    return f"4915{uuid.uuid4().int % 10**9:09}"


def say(talk: Talk, route: Route, *, webhooks: Webhooks) -> None:
    """Send a message of the talk as the route's platform does, and expect the answer that the platform wants."""
    message_id = str(next(_numbers))
    answer = webhooks.post(route.platform, route.body(talk.name, message_id, f"{TEXT_MARK} {message_id}"))
    assert answer.status == 200, answer.body
    assert answer.content_type.startswith(route.kind)
    if route.kind == "text/xml":
        # Twilio would send any other answer to the author, and it does not show the conversation's state.
        assert answer.body.endswith(b"<Response></Response>")
        account = f"whatsapp:{NUMBER}" if "whatsapp" in str(route.body("1", "1", "")) else NUMBER
        talk.note_state({f"default/twilio/{account}/{talk.name}": {"dueAt": None}}, message_id)
    else:
        talk.note(answer, message_id)


@pytest.mark.smoke
def test_two_fragments_of_each_platform_become_one_event(stage: LocalStage) -> None:
    talks = {name: Talk(stage, name=new_user()) for name in ROUTES}
    for name, talk in talks.items():
        for _ in range(2):
            say(talk, ROUTES[name], webhooks=stage.webhooks)
    judge(list(talks.values()), within_ms=WITHIN_MS)
    for name, talk in talks.items():
        arrival, *_ = talk.arrivals()
        assert arrival.batch["metadata"]["platform"] == ROUTES[name].platform
        assert arrival.batch["text"].splitlines()[0] == f"{TEXT_MARK} {talk.ids[0]}"
    # On a machine that paused between two fragments, the first is rightly a batch of its own.
    assert sum(len(talk.batches()) == 1 for talk in talks.values()) > len(talks) / 2


def test_a_burst_of_an_author_who_hides_the_number_is_one_event(stage: LocalStage) -> None:
    talk, sender, user_id = Talk(stage), new_user(), f"DE.{uuid.uuid4().hex}"
    for number in (sender, None, sender):
        message_id = f"wamid.{uuid.uuid4().hex}"
        item = whatsapp_text(message_id, "Hey", sender=number or "") | {"from_user_id": user_id}
        talk.note(stage.webhooks.post("whatsapp", whatsapp(item)), message_id)
    (arrival, *_) = judge([talk], within_ms=WITHIN_MS)
    assert arrival.batch["conversationId"].endswith(f"/{sender}")


@pytest.mark.smoke
@pytest.mark.promise("P7")
def test_a_processor_that_is_killed_loses_nothing(stage: LocalStage) -> None:
    talk = Talk(stage)
    talk.insist()
    stage.wait_until_busy()
    talk.insist()
    assert stage.kill("processor")
    talk.insist()
    judge([talk], within_ms=2 * WITHIN_MS)


@pytest.mark.smoke
@pytest.mark.promise("P10")
def test_without_valkey_a_message_leaves_by_the_dynamodb_lane(stage: LocalStage) -> None:
    talk = Talk(stage)
    with stage.stage.without_valkey():
        talk.insist()
        talk.wait_all()
        (arrival,) = talk.arrivals()
        judge_schema(arrival)
        assert arrival.batch["lane"] == "dynamodb"
    settle([talk], timeout_seconds=60)


@pytest.fixture
def at_own_address(stage: LocalStage) -> Iterator[Webhooks]:
    """Give ingest an address of its own beside the API. Yield platforms that use it."""
    function, client = stage.outputs.Functions["ingest"], stage.outputs.client("lambda")
    url = client.create_function_url_config(FunctionName=function, AuthType="NONE")["FunctionUrl"]
    name = url.removeprefix("https://").partition(".")[0]
    endpoint = f"{stage.outputs.AwsEndpointUrl}{FUNCTION_URL_PATH}{name}"
    permission: dict[str, Any] = {"FunctionName": function, "Principal": "*"}
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
    talks = {name: Talk(stage, name=new_user()) for name in ROUTES}
    for name, talk in talks.items():
        for webhooks in (at_own_address, stage.webhooks):
            say(talk, ROUTES[name], webhooks=webhooks)
    judge(list(talks.values()), within_ms=WITHIN_MS)
    asked = {"hub.mode": "subscribe", "hub.verify_token": stage.outputs.WebhookSecrets["whatsapp"]}
    assert at_own_address.get("whatsapp", asked | {"hub.challenge": "1158201444"}).body == b"1158201444"
    assert at_own_address.get("nobody", asked).status == 404
    assert at_own_address.post("generic", b"{}", headers={"X-Signature-256": "sha256=0"}).status == 401


def test_who_has_no_policy_is_refused(stage: LocalStage) -> None:
    """The emulator enforces IAM as AWS does, so each other test shows that a function's own role is enough."""
    iam = stage.outputs.client("iam")
    iam.create_user(UserName="intruder")
    key = iam.create_access_key(UserName="intruder")["AccessKey"]
    try:
        intruder = sessions.emulator_session(key["AccessKeyId"], key["SecretAccessKey"]).client(
            "sqs", endpoint_url=stage.outputs.AwsEndpointUrl, region_name=stage.outputs.Region
        )
        with pytest.raises(ClientError, match="AccessDenied"):
            intruder.receive_message(QueueUrl=stage.outputs.DeadLetterQueueUrl)
    finally:
        iam.delete_access_key(UserName="intruder", AccessKeyId=key["AccessKeyId"])
        iam.delete_user(UserName="intruder")


@pytest.mark.promise("P9")
def test_the_logs_hold_no_text_no_name_and_no_secret(stage: LocalStage) -> None:
    since_ms, talk = int(time.time() * 1_000), Talk(stage)
    talk.say(text=SECRET_WORDS, author=SECRET_WORDS, attachments=[{"type": "file", "name": SECRET_WORDS}])
    wrong = {"X-Signature-256": "sha256=" + "0" * 64}
    stage.webhooks.post("generic", talk.body(text=SECRET_WORDS), headers=wrong)
    stage.webhooks.post("generic", talk.body() | {"sentAt": SECRET_WORDS})
    stage.webhooks.post("generic", f'{{"text": "{SECRET_WORDS}"'.encode())
    judge([talk], within_ms=WITHIN_MS)
    stage.wait_until_idle()
    forbidden = [SECRET_WORDS, *stage.outputs.WebhookSecrets.values()]
    for role in stage.outputs.LogGroups:
        lines = stage.log(role, since_ms=since_ms)
        assert lines or role in ("watchdog", "dynamodb_processor", "admin", "gate"), f"{role} says nothing at all"
        assert not [line for line in lines if any(word in line for word in forbidden)]
