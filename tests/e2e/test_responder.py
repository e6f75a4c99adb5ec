"""From a webhook to the reply on the local stage, with a slow AI that this test plays."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bufferctl.__main__ import main as bufferctl
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import TRIAL_TENANT
from tests.e2e.conftest import API_KEY, answering, asked, said
from tests.support.aws_proxy import PUT_EVENTS, aws_proxy
from tests.support.local_stage import LocalStage
from tests.support.web_server import Answer, Request, WebServer
from tools.local.demo import REPLIES
from tools.local.events import Inbox, collect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("responder-stage")]

# A reply that a held conversation must not get would come within this time.
QUIET_SECONDS = 2.5
# A reply that has been sent is in the inbox within this time.
ON_THE_BUS_SECONDS = 0.5
REPLY_SECONDS = 60.0


@pytest.fixture(scope="module")
def replies(responder_stage: LocalStage) -> Iterator[Inbox]:
    with collect(responder_stage.outputs, pattern=REPLIES) as inbox:
        yield inbox


class Customer:
    def __init__(self, stage: LocalStage, replies: Inbox) -> None:
        self._stage = stage
        self._replies = replies
        self.account, self.user = "shop", uuid.uuid4().hex
        self.name = f"default/generic/{self.account}/{self.user}"

    def write(self, *texts: str) -> None:
        for text in texts:
            body = {"account": self.account, "conversation": self.user, "id": uuid.uuid4().hex, "text": text}
            assert self._stage.webhooks.post("generic", body).status == 200

    def heard(self) -> list[str]:
        """Return the replies, without repeats."""
        mine = [each.batch for each in self._replies.arrivals if each.batch["conversationId"] == self.name]
        replies = {(each["replyId"], each["at"]): each["parts"] for each in mine}
        return ["\n".join(part["text"] for part in parts) for parts in replies.values()]

    def hears(self, count: int) -> bool:
        """Wait for `count` replies; return whether exactly as many had come when nothing was left to be answered."""
        self._replies.wait_until(lambda _: len(self.heard()) >= count, timeout_seconds=REPLY_SECONDS)
        self._stage.wait_until_settled(self.name)
        wait_until(lambda: all_is_delivered(self._stage))
        return not self._replies.wait_until(lambda _: len(self.heard()) != count, timeout_seconds=ON_THE_BUS_SECONDS)

    def hears_nothing(self) -> bool:
        return not self._replies.wait_until(lambda _: bool(self.heard()), timeout_seconds=QUIET_SECONDS)


@pytest.fixture
def customer(responder_stage: LocalStage, replies: Inbox) -> Customer:
    return Customer(responder_stage, replies)


def test_five_fragments_are_answered_by_one_reply(ai: WebServer, customer: Customer) -> None:
    fragments = ["Hey", "I have a question", "about my order", "#12345", "when will it arrive?"]
    with answering(ai, lambda request: said(f"About: {asked(request)}")):
        customer.write(*fragments)
        assert customer.hears(1)
    assert customer.heard() == ["About: " + "\n".join(fragments)]
    assert ai.requests[-1].headers["Authorization"] == f"Bearer {API_KEY}"


def second_burst(customer: Customer) -> Callable[[Request], Answer]:
    """Return an AI that, while it answers the first burst, has the customer write a second one."""
    bursts = [["The blue one!", "With stripes."]]

    def answer(request: Request) -> Answer:
        if bursts and asked(request) == "Where is it?":
            customer.write(*bursts.pop())
        return said(f"About: {asked(request)}")

    return answer


def test_a_responder_that_is_killed_after_the_send_does_not_send_again(
    responder_stage: LocalStage, customer: Customer, capsys: pytest.CaptureFixture[str]
) -> None:
    proxied = aws_proxy(responder_stage.outputs.AwsEndpointUrl)
    with proxied as proxy, reconfigured(responder_stage, AWS_ENDPOINT_URL=proxy.url):
        held = proxy.hold_answer(PUT_EVENTS)
        customer.write("Where is it?")
        responder_stage.kill_caller("responder", held.wait(timeout_seconds=REPLY_SECONDS))
        held.release()
        wait_until(lambda: history(responder_stage, customer, capsys)["status"] == "reply_sent")
        assert customer.hears(1)
    turns = history(responder_stage, customer, capsys)["turns"]
    assert [(turn["role"], turn["text"]) for turn in turns] == [("user", "Where is it?"), ("assistant", "Hello.")]


def test_a_second_burst_during_the_reply_is_answered_together_with_the_first(ai: WebServer, customer: Customer) -> None:
    with answering(ai, second_burst(customer)):
        customer.write("Where is it?")
        assert customer.hears(1)
    assert customer.heard() == ["About: Where is it?\nThe blue one!\nWith stripes."]


def hand_off(responder_stage: LocalStage, customer: Customer) -> None:
    """Do as `bufferctl conversation handoff` does, whose output would disturb the test's."""
    request = {"operation": "conversation.handoff", "by": "eva", "conversation": customer.name, "holdMs": 600_000}
    responder_stage.invoke("admin", request, wait=True)


def test_after_a_person_took_over_no_part_of_the_reply_is_sent(
    responder_stage: LocalStage, customer: Customer, ai: WebServer, capsys: pytest.CaptureFixture[str]
) -> None:
    taken_over = threading.Event()

    def while_the_ai_answers(_request: Request) -> Answer:
        hand_off(responder_stage, customer)
        responder_stage.kill("responder")
        taken_over.set()
        return said("Hello.")

    with answering(ai, while_the_ai_answers):
        customer.write("Where is it?")
        # The responder function tells the history, too, so a kill would end a question that is asked meanwhile.
        wait_until(taken_over.is_set)
        wait_until(lambda: history(responder_stage, customer, capsys)["status"] == "reply_withheld")
        customer.write("Hello?")
        assert customer.hears_nothing()
        ai.answer = said("Here I am again.")
        operate(responder_stage, "conversation", "resume", customer.name)
        assert customer.hears(1)
    turns = history(responder_stage, customer, capsys)["turns"]
    assert [turn["text"] for turn in turns] == ["Where is it?", "Hello?", "Here I am again."]


# -- hands on the stage ----------------------------------------------------------------------------


@contextmanager
def reconfigured(responder_stage: LocalStage, *, AWS_ENDPOINT_URL: str = "", **options: Any) -> Iterator[None]:  # noqa: N803
    settings = {f"options.{name}": value for name, value in options.items()}
    variables: dict[str, Any] = {"AWS_ENDPOINT_URL": AWS_ENDPOINT_URL} if AWS_ENDPOINT_URL else {}
    # A process that is at work while its configuration changes would go on with the old one.
    wait_until(lambda: all_is_delivered(responder_stage))
    with responder_stage.configured("responder", settings=settings, **variables):
        yield
        wait_until(lambda: all_is_delivered(responder_stage))


def all_is_delivered(responder_stage: LocalStage) -> bool:
    """Return whether the responder's queues have no batch, neither waiting nor in work."""
    found = responder_stage.outputs.client("lambda").get_function_configuration(
        FunctionName=responder_stage.outputs.Functions["responder"]
    )
    sqs, names = (
        responder_stage.outputs.client("sqs"),
        ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
    )
    queues = json.loads(found["Environment"]["Variables"]["SETTINGS"])["queues"]
    counts = [sqs.get_queue_attributes(QueueUrl=each["url"], AttributeNames=names) for each in queues.values()]
    return not any(int(count) for each in counts for count in each["Attributes"].values())


def operate(responder_stage: LocalStage, *command: str) -> None:
    assert bufferctl(["--outputs", str(responder_stage.stage.outputs_file), "--json", *command]) == 0


def history(responder_stage: LocalStage, customer: Customer, capsys: pytest.CaptureFixture[str]) -> Json:
    capsys.readouterr()
    operate(responder_stage, "conversation", "history", customer.name, "--messages", "--older", "5")
    found: Json = json.loads(capsys.readouterr().out)
    return found


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_canary_is_well_and_its_messages_are_not_answered(
    responder_stage: LocalStage, replies: Inbox, ai: WebServer
) -> None:
    since_ms, asked = int(time.time() * 1_000), len(ai.requests)
    responder_stage.invoke("canary", {"id": uuid.uuid4().hex}, wait=True)
    assert [line for line in responder_stage.log("canary", since_ms=since_ms) if '"canary is well"' in line]
    time.sleep(QUIET_SECONDS)
    assert len(ai.requests) == asked
    assert not [each for each in replies.arrivals if each.batch["tenant"] == TRIAL_TENANT]
    counted = [line for line in responder_stage.log("conversation_processor", since_ms=since_ms) if '"Batches"' in line]
    assert counted == []
