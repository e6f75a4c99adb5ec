"""The console's listener keeps its queue while AWS is away. When the local stage has ended, it waits for the next."""

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from botocore.exceptions import EndpointConnectionError

from bufferctl.errors import Unreachable
from lambdas.canary.listening import ArrivedEvent, Subscription
from message_buffer.json_object import Json
from tools.console import listener
from tools.console.bus import Bus
from tools.console.place import NOT_UP, Options, ShownStage

AWAY = EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
HALF_A_LINE = """print('{"problem": null}'); print('{"event": {"det', end="")"""
TWO_EVENTS = """
for detail in ({"metadata": 1}, {"metadata": {}}):
    print(json.dumps({"event": {"detail-type": "messages.batch.ready", "detail": detail}, "at": 1}))
"""
EVENT = ArrivedEvent({"detail-type": "messages.batch.ready", "detail": {}}, 1)


class Queue:
    """Answers each request with the next of its answers, and then ends the listener. Counts the subscriptions."""

    def __init__(self, ended: threading.Event, *answers: list[ArrivedEvent] | Exception) -> None:
        self._ended = ended
        self._answers = list(answers)
        self.made = self.removed = 0

    @contextmanager
    def subscribe(self, *_: Any, **__: Any) -> Iterator["Queue"]:
        self.made += 1
        try:
            yield self
        finally:
            self.removed += 1

    def poll(self, *, wait_seconds: int) -> list[ArrivedEvent]:
        del wait_seconds
        answer = self._answers.pop(0)
        if not self._answers:
            self._ended.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


class FoundPlace(ShownStage):
    def find(self) -> Any:
        class Found:
            client, event_bus = None, "bus"

        return Found()


def listen(queue: Queue, ended: threading.Event, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "subscribe", queue.subscribe)
    monkeypatch.setattr(listener, "PAUSE_AFTER_A_PROBLEM_SECONDS", 0)
    listener._listen(FoundPlace(options), ended)


def test_while_aws_is_away_the_queue_is_kept_and_its_events_come_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    queue = Queue(ended, [], AWAY, AWAY, [EVENT])
    listen(queue, ended, Options(stage="dev"), monkeypatch)
    assert (queue.made, queue.removed) == (1, 1)
    *problems, event = map(json.loads, capsys.readouterr().out.splitlines())
    assert [bool(each["problem"]) for each in problems] == [False, False, True, True, False]
    assert "cannot be reached" in problems[-2]["problem"]
    assert event["event"] == EVENT.event


def test_events_that_were_taken_from_the_queue_are_not_lost_if_aws_goes_away_then() -> None:
    """Reproduce a defect: what was deleted from the queue before the first failure was never shown."""
    messages = [
        {"Body": json.dumps({"n": n}), "ReceiptHandle": str(n), "Attributes": {"SentTimestamp": "1"}} for n in range(3)
    ]
    sqs = MagicMock()
    sqs.receive_message.side_effect = [{"Messages": messages}, {"Messages": messages[1:]}]
    sqs.delete_message.side_effect = [None, AWAY, AWAY]
    subscription = Subscription(sqs, "queue")
    assert [arrival.event for arrival in subscription.poll(wait_seconds=0)] == [{"n": 0}]
    with pytest.raises(EndpointConnectionError):
        subscription.poll(wait_seconds=0)


def test_when_the_local_stage_ends_the_listener_says_so_at_once_and_leaves_its_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended = threading.Event()
    queue = Queue(ended, [EVENT], AWAY, [])
    with pytest.raises(Unreachable, match=re.escape(NOT_UP)):
        listen(queue, ended, Options(outputs=tmp_path), monkeypatch)
    assert not ended.is_set()
    assert (queue.made, queue.removed) == (1, 1)


def bus_of(source: str = "") -> tuple[Bus, Any]:
    """Return a bus whose listener runs this program, and the hub to which it publishes."""
    hub: Any = MagicMock()
    return Bus([sys.executable, "-c", source], hub=hub, polls=MagicMock(), history=MagicMock(), words=True), hub


def test_a_half_line_of_a_killed_listener_does_not_end_the_bus() -> None:
    """Reproduce a defect: the page got no events any more, because the bus's thread had died."""
    bus, hub = bus_of(HALF_A_LINE)
    bus._listen()
    assert bus.problem is None
    hub.publish.assert_called_once_with("bus", {"problem": None})


def test_an_event_of_another_form_does_not_end_the_bus() -> None:
    """Reproduce a defect: after one such event, the page got no events any more."""
    bus, hub = bus_of(f"import json\n{TWO_EVENTS}")
    bus._listen()
    assert [each.args[0] for each in hub.publish.call_args_list] == ["notice", "event"]


@pytest.mark.parametrize(
    ("said", "pauses"),
    [
        ({"problem": "AWS refuses CreateQueue."}, [2, 4, 8, 16, 32, 60, 60]),
        ({"problem": None}, [2] * 7),
    ],
    ids=["cannot listen", "has listened"],
)
def test_a_listener_that_cannot_listen_is_started_ever_more_rarely(said: Json, pauses: list[float]) -> None:
    """Reproduce a defect: without the right to remove a queue, the console left one behind every few seconds."""
    bus, _ = bus_of()
    waits: Any = MagicMock()
    waits.is_set.side_effect = [False] * len(pauses) + [True]
    bus._ended = waits
    bus._listen = lambda: bus._understand(said)  # type: ignore[method-assign]
    bus.run()
    assert [each.args[0] for each in waits.wait.call_args_list] == pauses
