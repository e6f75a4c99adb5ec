"""Services fail for a while: every accepted message still comes out, once and in order."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.aws_proxy import (
    INVOKE,
    LOSE_ANSWER,
    PUT_EVENTS,
    AwsProxy,
    Call,
    refuse_entries,
)
from tests.support.judge import Talk, judge
from tests.support.local_stage import MAX_ATTEMPTS, LocalStage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("chaos-stage"),
    pytest.mark.usefixtures("watchdog"),
]

MARGIN_MS = 15_000
# Between attempts the batch waits one second, then two.
RETRIES_MS = 7_000


@contextmanager
def traffic(talks: list[Talk], *, pause_seconds: float = 0.15) -> Iterator[None]:
    """Let people write during the outage; their platform delivers each message until it is accepted."""
    done = threading.Event()
    failures: list[BaseException] = []

    def write(talk: Talk) -> None:
        try:
            while not done.is_set():
                talk.insist()
                done.wait(pause_seconds)
        except AssertionError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(talk,), daemon=True) for talk in talks]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert not failures, failures


def test_valkey_forgets_its_scripts_in_mid_traffic(stage: LocalStage, aws: AwsProxy) -> None:
    talks = [Talk(stage) for _ in range(3)]
    with traffic(talks):
        for _ in range(30):
            stage.valkey.script_flush()
            time.sleep(0.1)
    judge(talks, within_ms=MARGIN_MS)


@pytest.mark.case(4)
@pytest.mark.promise("P2")
def test_put_events_that_refuses_every_entry_is_repeated_as_the_same_batch(stage: LocalStage, aws: AwsProxy) -> None:
    talk = Talk(stage)
    trap = aws.on(PUT_EVENTS, refuse_entries, times=MAX_ATTEMPTS - 1)
    say_two_batches(talk)
    first, *_ = judge([talk], within_ms=RETRIES_MS + MARGIN_MS)
    tried = [detail_of(call) for call in trap.caught]
    assert [detail["attempt"] for detail in tried] == [*range(1, MAX_ATTEMPTS)]
    assert {detail["batchId"] for detail in tried} == {first.batch["batchId"]}
    assert [detail["messages"] for detail in tried] == [first.batch["messages"]] * (MAX_ATTEMPTS - 1)
    assert first.batch["attempt"] == MAX_ATTEMPTS


def test_a_conversation_processor_started_twice_emits_once(stage: LocalStage, aws: AwsProxy) -> None:
    """Start it twice, as Lambda may: it delivers an event at least once, and the answer to an Invoke may be lost."""
    talks = [Talk(stage) for _ in range(3)]
    aws.on(INVOKE, LOSE_ANSWER, times=3, function=stage.outputs.Functions["conversation_processor"])
    for talk in talks:
        talk.insist()
    arrivals = judge(talks, within_ms=MARGIN_MS, quiet_seconds=1.0)
    assert len(arrivals) == len(talks)


def say_two_batches(talk: Talk) -> None:
    """Send messages for two batches; the second waits behind the first, whose emission fails."""
    talk.insist()
    talk.insist()
    time.sleep(2)
    talk.insist()


def detail_of(call: Call) -> dict[str, Any]:
    detail = json.loads(call.json["Entries"][0]["Detail"])
    assert isinstance(detail, dict)
    return detail
