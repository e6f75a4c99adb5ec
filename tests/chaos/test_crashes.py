"""kill -9 at the worst moments: every accepted message still comes out, once by batch id, in order, in time."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from bufferctl.lateness import explain
from tests.chaos.conftest import CLAIM_TIMEOUT_MS, HEALED_BY_PROCESSOR_MS, HEALED_MS, MARGIN_MS, TOKEN_MS
from tests.support.aws_proxy import INVOKE, PUT_EVENTS, AwsProxy
from tests.support.judge import Talk, judge
from tests.support.local_stage import LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("chaos-stage")]

SCHEDULED_PASS_MS = 30_000


@pytest.fixture
def talks(stage: LocalStage) -> list[Talk]:
    names = f"c-{uuid.uuid4().hex[:12]}"
    return [Talk(stage, name=f"{names}-{number}") for number in range(3)]


def common_name(talks: list[Talk]) -> str:
    """Return the beginning of the talks' names, with which no late batch of an earlier test is caught."""
    return talks[0].name.removesuffix("-0")


def say(talks: list[Talk], count: int) -> None:
    for _ in range(count):
        for talk in talks:
            talk.insist()


@pytest.mark.case(6)
@pytest.mark.promise("P7")
def test_the_processor_killed_between_claim_and_invoke(stage: LocalStage, aws: AwsProxy, talks: list[Talk]) -> None:
    conversation_processor = stage.outputs.Functions["conversation_processor"]
    held = aws.hold(INVOKE, function=conversation_processor)
    say(talks, 2)
    stage.kill_caller("processor", held.wait())
    held.release()
    say(talks, 1)
    judge(talks, within_ms=HEALED_BY_PROCESSOR_MS)


@pytest.mark.case(5)
@pytest.mark.promise("P7")
@pytest.mark.usefixtures("watchdog")
def test_the_conversation_processor_killed_before_put_events(
    stage: LocalStage, aws: AwsProxy, talks: list[Talk]
) -> None:
    held = aws.hold(PUT_EVENTS, about=common_name(talks))
    say(talks, 2)
    stage.kill_caller("conversation_processor", held.wait())
    held.release()
    say(talks, 1)
    arrivals = judge(talks, within_ms=HEALED_MS)
    second = next(arrival.batch for arrival in arrivals if arrival.batch["attempt"] >= 2)
    why = explain(stage.facts, stage.admin.ask, str(second["batchId"]))
    assert why["lateness"] in ("late", "very_late"), why
    assert any("logged no result, so its run died: Worker process died" in each["text"] for each in why["causes"]), why


@pytest.mark.case(5)
@pytest.mark.promise("P2", "P7")
def test_the_conversation_processor_killed_after_put_events_emits_the_same_batch_again(
    stage: LocalStage, aws: AwsProxy, talks: list[Talk]
) -> None:
    held = aws.hold_answer(PUT_EVENTS, about=common_name(talks))
    say(talks, 2)
    stage.kill_caller("conversation_processor", held.wait())
    held.release()
    say(talks, 1)
    judge(talks, within_ms=HEALED_BY_PROCESSOR_MS)
    wait_for_repeat(talks)
    arrivals = judge(talks, within_ms=HEALED_BY_PROCESSOR_MS)
    ids = [arrival.batch["batchId"] for arrival in arrivals]
    (repeated,) = {batch_id for batch_id in ids if ids.count(batch_id) == 2}
    first, second = (arrival.batch["attempt"] for arrival in arrivals if arrival.batch["batchId"] == repeated)
    assert first < second


@pytest.mark.case(6)
@pytest.mark.promise("P7")
@pytest.mark.usefixtures("no_records", "watchdog")
def test_both_killed_and_then_the_watchdog_at_its_first_pass(
    stage: LocalStage, aws: AwsProxy, talks: list[Talk]
) -> None:
    processor = stage.outputs.Functions["processor"]
    emitting = aws.hold(PUT_EVENTS, about=common_name(talks))
    say(talks, 2)
    emitting.wait()
    starting = aws.hold(INVOKE, function=processor)
    assert stage.kill("processor", "conversation_processor") >= 2
    emitting.release()
    # The watchdog's pass has put back the claims and reserved a processor's start. Kill it before it starts that one.
    stage.kill_caller("watchdog", starting.wait())
    starting.release()
    judge(talks, within_ms=HEALED_MS + 5_000, timeout_seconds=40)


@pytest.mark.case(6)
@pytest.mark.promise("P7")
def test_both_killed_and_repaired_by_the_record_of_the_processors_failure(
    stage: LocalStage, aws: AwsProxy, talks: list[Talk]
) -> None:
    held = aws.hold(PUT_EVENTS, about=common_name(talks))
    say(talks, 2)
    held.wait()
    assert stage.kill("processor", "conversation_processor") >= 2
    held.release()
    judge(talks, within_ms=HEALED_BY_PROCESSOR_MS)


@pytest.mark.usefixtures("watchdog")
def test_ingest_killed_after_it_buffered_and_before_it_started_a_processor(stage: LocalStage, aws: AwsProxy) -> None:
    stage.wait_until_idle()
    talk, processor = Talk(stage), stage.outputs.Functions["processor"]
    starting = aws.hold(INVOKE, function=processor)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(talk.insist, "killed-" + talk.name)
        stage.kill_caller("ingest", starting.wait())
        starting.release()
        # The platform had no answer, so it delivers again.
        assert answer.result().json["duplicates"] == 1
    judge([talk], within_ms=HEALED_MS)


@pytest.mark.nightly
@pytest.mark.usefixtures("no_records")
def test_the_schedule_alone_brings_it_back(stage: LocalStage, aws: AwsProxy, talks: list[Talk]) -> None:
    """Wait without any message or call: only the watchdog's rule and queue invoke it."""
    # The emulator's first scheduled pass comes up to a minute after the deployment.
    since_ms, deadline = int(time.time() * 1_000), time.monotonic() + 100
    while not stage.log("watchdog", since_ms=since_ms):
        assert time.monotonic() < deadline, "the schedule made no pass"
        time.sleep(1)
    held = aws.hold(PUT_EVENTS, about=common_name(talks))
    say(talks, 1)
    held.wait()
    assert stage.kill("processor", "conversation_processor") >= 2
    held.release()
    within_ms = max(CLAIM_TIMEOUT_MS, TOKEN_MS) + SCHEDULED_PASS_MS + MARGIN_MS
    judge(talks, within_ms=within_ms, timeout_seconds=within_ms / 1_000)


def wait_for_repeat(talks: list[Talk]) -> None:
    def repeated(_: object) -> bool:
        ids = [arrival.batch["batchId"] for talk in talks for arrival in talk.arrivals()]
        return len(ids) > len(set(ids))

    inbox = talks[0].stage.inbox
    assert inbox.wait_until(repeated, timeout_seconds=HEALED_MS / 1_000), (
        "the killed conversation processor's batch did not come again"
    )
