"""The example of docs/consumer.md, as a process of its own that listens to the bus of the local stage."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bufferctl.__main__ import main
from bufferctl.sessions import CREDENTIALS
from message_buffer.json_object import Json
from tests.support.judge import Talk
from tests.support.local_stage import MAX_EVENT_BYTES, LocalStage
from tools.local.stage import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

EXAMPLE = ROOT / "examples" / "consumer"
WITHIN_SECONDS = 75.0
# The last poll of an example that was killed may still receive an event. It comes again when the queue no longer hides
# it: here after this time instead of half a minute.
HIDDEN_SECONDS = 5


class Example:
    """The example's queue and rule, and its process for as long as it runs."""

    def __init__(self, stage: LocalStage, home: Path) -> None:
        self._stage = stage
        self._memory = home / "memory.db"
        self.name = f"example-{uuid.uuid4().hex[:12]}"
        outputs = stage.outputs
        at_stage = {"AWS_ENDPOINT_URL": outputs.AwsEndpointUrl, "AWS_DEFAULT_REGION": outputs.Region}
        unknown = dict.fromkeys(["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"], os.devnull)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._environment = kept | CREDENTIALS | at_stage | unknown | {"NO_PROXY": "*"}
        subscribing = [sys.executable, str(EXAMPLE / "subscribe.py"), outputs.EventBusName, self.name]
        done = subprocess.run(
            subscribing, env=self._environment, capture_output=True, text=True, check=True, timeout=30
        )
        self.queue_url = done.stdout.strip()
        hidden = {"VisibilityTimeout": str(HIDDEN_SECONDS)}
        outputs.client("sqs").set_queue_attributes(QueueUrl=self.queue_url, Attributes=hidden)

    @contextmanager
    def running(self) -> Iterator["queue.Queue[Json]"]:
        """Run the example inside the block; yield a queue of the lines that it prints."""
        done: queue.Queue[Json] = queue.Queue()
        command = [sys.executable, str(EXAMPLE / "consumer.py"), self.queue_url, str(self._memory)]
        process = subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        lines = process.stdout

        def read() -> None:
            for line in lines:
                done.put(json.loads(line))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield done
            assert process.poll() is None, "the example ended by itself"
        finally:
            process.kill()
            process.wait()
            reader.join()
            lines.close()

    def remove(self) -> None:
        rule = {"EventBusName": self._stage.outputs.EventBusName}
        events = self._stage.outputs.client("events")
        events.remove_targets(Rule=self.name, Ids=["queue"], **rule)
        events.delete_rule(Name=self.name, **rule)
        self._stage.outputs.client("sqs").delete_queue(QueueUrl=self.queue_url)

    def publish(self, event: Json) -> None:
        """Put an event on the bus as the buffer would, so that it comes again."""
        entry = {
            "EventBusName": self._stage.outputs.EventBusName,
            "Source": event["source"],
            "DetailType": event["detail-type"],
            "Detail": json.dumps(event["detail"]),
        }
        assert self._stage.outputs.client("events").put_events(Entries=[entry])["FailedEntryCount"] == 0


@pytest.fixture
def example(stage: LocalStage, tmp_path: Path) -> Iterator[Example]:
    installed = Example(stage, tmp_path)
    yield installed
    installed.remove()


def done_for(talk: Talk, done: "queue.Queue[Json]") -> Json:
    """Return what the example did next with an event of this conversation: the bus carries others, too."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while True:
        said = done.get(timeout=max(0.0, deadline - time.monotonic()))
        conversation = said.pop("conversation")
        if conversation == f"default/generic/shop/{talk.name}":
            return said


def test_the_example_handles_each_batch_once_also_after_it_was_killed(stage: LocalStage, example: Example) -> None:
    talk = Talk(stage)
    with example.running() as done:
        talk.say()
        talk.say()
        batches = talk.wait_all()
        assert [done_for(talk, done)["messages"] for _ in batches] == batches
    (arrival, *_) = talk.arrivals()
    example.publish(arrival.event)
    with example.running() as done:
        assert arrival.batch["batchId"] in done_for(talk, done)["repeated"]
        talk.say("later")
        assert done_for(talk, done)["messages"] == ["later"]


def test_the_example_fetches_a_batch_that_was_too_large_for_an_event(stage: LocalStage, example: Example) -> None:
    talk = Talk(stage)
    bodies = [talk.body(text="x" * (MAX_EVENT_BYTES // 2)) for _ in range(3)]
    with example.running() as done:
        talk.note(stage.webhooks.post("generic", bodies), *(body["id"] for body in bodies))
        assert done_for(talk, done)["messages"] == talk.ids


def test_the_example_hears_of_an_edit_after_the_batch(stage: LocalStage, example: Example) -> None:
    talk = Talk(stage)
    with example.running() as done:
        talk.say("m1")
        batch = done_for(talk, done)["batch"]
        stage.webhooks.post("generic", talk.body("m1", text="Order 54321", edited=True))
        assert done_for(talk, done) == {"amended": "m1", "change": "edited", "batch": batch}


def test_the_example_leaves_out_a_batch_from_before_a_cancel(
    stage: LocalStage, example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = Talk(stage)
    with example.running() as done:
        talk.say()
        batch = done_for(talk, done)["batch"]
        outputs = ["--outputs", str(stage.stage.outputs_file)]
        assert main([*outputs, "conversation", "cancel", talk.conversation_id, "--yes"]) == 0, capsys.readouterr().err
        assert "cancelled" in done_for(talk, done)
        talk.wait_all()
        (arrival,) = talk.arrivals()
        late = f"{batch}-late"
        example.publish({**arrival.event, "detail": arrival.batch | {"batchId": late}})
        assert done_for(talk, done) == {"outdated": late}
        talk.say()
        assert done_for(talk, done)["messages"] == talk.ids[1:]


def test_the_example_goes_on_after_an_event_that_it_cannot_handle(stage: LocalStage, example: Example) -> None:
    talk = Talk(stage)
    with example.running() as done:
        talk.say()
        talk.wait_all()
        assert done_for(talk, done)["messages"] == talk.ids
        (arrival,) = talk.arrivals()
        example.publish({**arrival.event, "detail": arrival.batch | {"version": 2, "batchId": "of-another-version"}})
        assert done_for(talk, done) == {"failed": "ValueError"}
        talk.say()
        assert done_for(talk, done)["messages"] == talk.ids[1:]
