"""The examples answer a stand-in's queue, each in its own environment: merged turns, one reply, also after a kill."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
import urllib3
from aws_cdk import App, assertions

from message_buffer.json_object import Json
from tests.support.local_stage import install_once
from tests.support.stand_in import PATIENCE_SECONDS, REGION, StandIn
from tests.support.valkey_server import free_port

# A process that imports an agent's libraries takes seconds, and on a busy machine the first one installs them.
pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ANNA, BELA = "default/whatsapp/1/anna", "default/whatsapp/1/bela"
HIDDEN_BY_LAMBDA_MS = 900_000
HIDDEN_MS = 30_000


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.stop()


class Example:
    """An example's consumer in a process, and its agent, if that has a process of its own."""

    def __init__(self, name: str, stand_in: StandIn, folder: Path) -> None:
        self.name, self.stand_in = name, stand_in
        plain = name == "plain_lambda"
        self._python = sys.executable if plain else str(install_once("examples", EXAMPLES / "requirements.txt"))
        self._environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "AWS_ENDPOINT_URL": stand_in.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "QUEUE_URL": stand_in.queue.url,
            "MARKS_TABLE": "marks",
            "GATE_FUNCTION": "gate",
            "MODEL": "a-model",
            "AGENT_ARN": f"arn:aws:bedrock-agentcore:{REGION}:000000000000:runtime/an-agent",
            "REPLY_URL": f"{stand_in.url}/replies",
            "SESSIONS_FOLDER": str(folder),
            "PORT": str(free_port()),
        }
        self._file = folder / "memory.db"
        self._processes: list[subprocess.Popen[str]] = []
        if name == "agentcore":
            stand_in.agent_port = int(self._environment["PORT"])
            self._start("examples/agentcore/agent.py")
            patient = urllib3.Retry(connect=PATIENCE_SECONDS, backoff_factor=1, backoff_max=1)
            urllib3.request("GET", f"http://127.0.0.1:{stand_in.agent_port}/ping", retries=patient)
        self._consumer: subprocess.Popen[str] | None = None

    def deliver(self) -> None:
        """Let the consumer answer what is in the queue. Return when it is done, or was killed."""
        if self.name == "langgraph":
            self._consumer = self._consumer or self._start(
                "examples/langgraph/consumer.py", self.stand_in.queue.url, str(self._file)
            )
            self.stand_in.wait_until(lambda: not self.stand_in.queue.messages or not self._consumer)
            return
        if self._consumer is None:
            module = {"agentcore": "consumer", "plain_lambda": "handler"}[self.name]
            self._consumer = self._start("tests/support/run_handler.py", f"examples.{self.name}.{module}")
        taken = self.stand_in.queue.take(hidden_ms=HIDDEN_BY_LAMBDA_MS)
        assert self._consumer.stdin
        assert self._consumer.stdout
        self._consumer.stdin.write(json.dumps(self.stand_in.queue.event(taken)) + "\n")
        self._consumer.stdin.flush()
        if response := self._consumer.stdout.readline():
            self.stand_in.queue.end(taken, json.loads(response))

    def kill(self) -> None:
        assert self._consumer
        self._consumer.send_signal(signal.SIGKILL)
        self._consumer.wait()
        with self.stand_in.changed:
            self._consumer = None
            self.stand_in.changed.notify_all()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self._python, *command],
            cwd=ROOT, env=self._environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._processes.append(process)
        return process


@pytest.fixture(params=["agentcore", "langgraph", "plain_lambda"])
def example(request: pytest.FixtureRequest, stand_in: StandIn, tmp_path: Path) -> Iterator[Example]:
    started = Example(request.param, stand_in, tmp_path)
    yield started
    started.stop()


def replies(stand_in: StandIn) -> list[tuple[str, str]]:
    return sorted((reply["conversation"], reply["text"].removeprefix("Reply to: ")) for reply in stand_in.replies)


def test_several_batches_of_a_conversation_get_one_reply(example: Example, stand_in: StandIn) -> None:
    stand_in.put(ANNA, "a-1", "Hey", "I have a question")
    stand_in.put(BELA, "b-1", "Hello", stored=True)
    stand_in.put(ANNA, "a-2", "Order 12345")
    example.deliver()
    assert replies(stand_in) == [(ANNA, "Hey\nI have a question\nOrder 12345"), (BELA, "Hello")]
    assert not stand_in.queue.messages


def test_a_picture_without_a_caption_does_not_block_its_conversation(example: Example, stand_in: StandIn) -> None:
    stand_in.put(ANNA, "a-1", "", " ")
    example.deliver()
    assert replies(stand_in) == [(ANNA, "(no text)")]


def test_a_batch_that_comes_again_is_not_answered_again(example: Example, stand_in: StandIn) -> None:
    stand_in.put(ANNA, "a-1", "Hey")
    example.deliver()
    stand_in.put(ANNA, "a-1", "Hey", again=True)
    example.deliver()
    stand_in.put(ANNA, "a-2", "Order 12345")
    example.deliver()
    assert replies(stand_in) == [(ANNA, "Hey"), (ANNA, "Order 12345")]
    if example.name != "plain_lambda":
        assert stand_in.asked[-1] == ["Hey", "Reply to: Hey", "Order 12345"], "the agent remembers"


@pytest.mark.parametrize("writes_again", [False, True])
def test_a_turn_survives_a_kill(example: Example, stand_in: StandIn, writes_again: bool) -> None:
    stand_in.put(ANNA, "a-1", "Hey")
    stand_in.may_answer.clear()
    first = Thread(target=example.deliver)
    first.start()
    stand_in.wait_until(lambda: bool(stand_in.asked))
    example.kill()
    first.join()
    if writes_again:
        stand_in.put(ANNA, "a-2", "Order 12345")
    stand_in.now_ms += HIDDEN_MS
    stand_in.may_answer.set()
    example.deliver()
    assert replies(stand_in) == [(ANNA, "Hey\nOrder 12345" if writes_again else "Hey")]
    if example.name == "agentcore" and not writes_again:
        assert len(stand_in.asked) == 1, "the agent has gone on, and keeps its reply"


def test_a_turn_that_failed_is_not_twice_in_the_history(example: Example, stand_in: StandIn) -> None:
    stand_in.put(ANNA, "a-1", "Hey")
    stand_in.failures = 1
    first = Thread(target=example.deliver)
    first.start()
    stand_in.wait_until(lambda: bool(stand_in.asked))
    if example.name != "langgraph":
        first.join()
    stand_in.wait_until(lambda: stand_in.queue.next_at_ms() - stand_in.now_ms <= 4_000)
    stand_in.put(ANNA, "a-2", "Order 12345")
    stand_in.now_ms += HIDDEN_MS
    example.deliver()
    first.join()
    assert replies(stand_in) == [(ANNA, "Hey\nOrder 12345")]
    assert stand_in.asked[-1] == ["Hey\nOrder 12345"]


def test_while_a_person_has_the_conversation_the_plain_one_is_silent(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.holds = [{"holder": "people", "cause": "answer", "until": stand_in.now_ms}]
    stand_in.put(ANNA, "a-1", "Hey")
    example = Example("plain_lambda", stand_in, tmp_path)
    try:
        example.deliver()
        assert (stand_in.asked, stand_in.replies, stand_in.queue.messages) == ([], [], [])
    finally:
        example.stop()


def test_a_payload_keeps_the_newest_messages_and_begins_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    from examples.agentcore.consumer import payload_of, session_id  # noqa: PLC0415 - it makes clients

    def content(limit: int) -> list[Json]:
        photo = {"type": "image", "name": "photo.png"}
        messages = [{"text": f"{n}" * 100, "attachments": [photo] if n == 9 else []} for n in range(10)]
        payload = payload_of("b-1", messages, limit=limit)
        assert len(payload) <= limit
        found: list[Json] = json.loads(payload)["content"]
        return found

    whole, cut = content(10_000), content(400)
    assert [len(each["text"].split("\n")) for each in (whole[0], cut[0])] == [10, 2]
    assert "photo.png" in whole[1]["text"]
    assert 33 <= len(session_id("c")) == len(session_id("c" * 1_000)) <= 256
    assert session_id("c") != session_id("d")


def test_the_plain_stack_lets_the_function_work_for_no_longer_than_the_queue_hides_an_entry() -> None:
    from examples.plain_lambda.app import build  # noqa: PLC0415 - constructs take a second to import

    url = "https://sqs.eu-west-1.amazonaws.com/000000000000/default.fifo"
    stack = build(App(), queue=url, gate="gate", bucket="batches", model="a-model")
    template = assertions.Template.from_stack(stack)
    template.has_resource_properties(
        "AWS::Lambda::EventSourceMapping",
        {"FunctionResponseTypes": ["ReportBatchItemFailures"]},
    )
    (function,) = template.find_resources("AWS::Lambda::Function").values()
    assert function["Properties"]["Timeout"] * 1_000 <= HIDDEN_BY_LAMBDA_MS
    assert set(function["Properties"]["Environment"]["Variables"]) == {
        "QUEUE_URL", "MARKS_TABLE", "GATE_FUNCTION", "MODEL",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["agentcore", "langgraph", "plain_lambda"])
def test_an_example_is_read_in_one_sitting(name: str) -> None:
    assert sum(len(path.read_text("utf-8").splitlines()) for path in (EXAMPLES / name).glob("*.py")) < 120
