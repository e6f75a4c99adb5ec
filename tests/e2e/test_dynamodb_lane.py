"""A stage with the DynamoDB lane alone, without Valkey: the same routes, the same event, the same commands."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lambdas.dynamodb_processor.service import WINDOW_LOCK_MS
from tests.conftest import PROFILE
from tests.e2e.test_bufferctl import Operator
from tests.support.aws_proxy import PUT_EVENTS, aws_proxy
from tests.support.engine import payload
from tests.support.judge import Talk, ids_of, if_quick_enough, judge, judge_schema
from tests.support.local_stage import MAX_WAIT_MS, SILENCE_MS, TYPING_MS, LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("window-stage")]

COME_SECONDS = 40.0
# The bound of P7 for this lane.
MAX_LATE_MS = 60_000
LARGE_MESSAGES, LARGE_TEXT = 10_000, "x" * (60 * 1024 - 200)
DRAINED_SECONDS = 1_200.0


@pytest.fixture
def talk(dynamodb_stage: LocalStage) -> Talk:
    return Talk(dynamodb_stage)


@pytest.mark.smoke
def test_there_is_no_valkey(dynamodb_stage: LocalStage) -> None:
    assert dynamodb_stage.outputs.ValkeyUrl is None
    assert sorted(dynamodb_stage.outputs.Functions) == ["admin", "dynamodb_processor", "gate", "ingest"]


@pytest.mark.smoke
def test_fragments_of_a_window_are_one_event(talk: Talk) -> None:
    for _ in range(5):
        talk.say()
    batches = talk.wait_all(timeout_seconds=COME_SECONDS)
    # On a slow machine, the last of the messages may arrive when the batch has left.
    assert [each for batch in batches for each in batch] == talk.ids
    arrival = talk.arrivals()[0]
    judge_schema(arrival)
    assert arrival.batch["lane"] == "dynamodb"
    first = arrival.batch["messages"][0]
    assert talk.accepted[0].due_at_ms - first["receivedAt"] >= SILENCE_MS
    assert SILENCE_MS <= arrival.batch["metadata"]["waitMs"] <= MAX_WAIT_MS
    assert arrival.at_ms >= talk.accepted[0].due_at_ms


@pytest.mark.smoke
@pytest.mark.promise("P4")
def test_each_fragment_moves_the_due_time_and_silence_ends_the_wait(dynamodb_stage: LocalStage) -> None:
    def attempt() -> bool:
        talk = Talk(dynamodb_stage)
        began = time.monotonic()
        for _ in range(3):
            talk.say()
        if time.monotonic() - began > SILENCE_MS / 1_000:
            return False
        due = [each.due_at_ms for each in talk.accepted]
        assert due == sorted(set(due))
        assert len(talk.wait_all(timeout_seconds=COME_SECONDS)) == 1
        arrival = talk.arrivals()[0]
        assert arrival.at_ms >= due[-1]
        assert due[-1] - arrival.batch["metadata"]["lastMessageAt"] == max(SILENCE_MS, TYPING_MS)
        return True

    if_quick_enough(attempt)


@pytest.mark.promise("P7")
def test_a_batch_whose_run_is_killed_leaves_within_a_minute(dynamodb_stage: LocalStage) -> None:
    """Kill one run when it has frozen its batch, which no other run can emit before its lock expires."""
    with (
        aws_proxy(dynamodb_stage.outputs.AwsEndpointUrl) as aws,
        dynamodb_stage.configured("dynamodb_processor", AWS_ENDPOINT_URL=aws.url),
    ):
        talk, held = Talk(dynamodb_stage), aws.hold(PUT_EVENTS)
        talk.insist()
        dynamodb_stage.kill_caller("dynamodb_processor", held.wait())
        held.release()
        talk.insist()
        arrivals = judge([talk], within_ms=MAX_LATE_MS, timeout_seconds=90)
    assert ids_of(arrivals[0]) == talk.ids[:1]
    assert arrivals[0].batch["attempt"] == 2
    late_ms = arrivals[0].at_ms - talk.accepted[0].due_at_ms
    assert late_ms >= WINDOW_LOCK_MS / 2, "no lock was lost, so the kill came too late to show anything"


@pytest.mark.timeout(1_800)
@pytest.mark.skipif(PROFILE != "nightly", reason="it stores 600 MB, so only `make nightly` runs it")
def test_ten_thousand_large_messages_drain_within_the_functions_memory(
    dynamodb_stage: LocalStage, capsys: pytest.CaptureFixture[str]
) -> None:
    """Store more than ingest accepts, and read from the system how much memory the function's processes ever had."""
    outputs = dynamodb_stage.outputs
    name = outputs.Functions["dynamodb_processor"]
    memory_mb = outputs.client("lambda").get_function_configuration(FunctionName=name)["MemorySize"]
    # New processes, because those of other tests have seen other batches.
    with dynamodb_stage.configured("dynamodb_processor", TESTED="memory"):
        talk = Talk(dynamodb_stage)
        conversation = f"default/generic/shop/{talk.name}"
        store(dynamodb_stage, conversation)
        talk.insist()
        assert talk.conversation_id == conversation
        peaks_mb: dict[int, float] = {}
        wanted, emitted = LARGE_MESSAGES + 1, dict[str, int]()
        deadline = time.monotonic() + DRAINED_SECONDS
        while sum(emitted.values()) < wanted:
            assert time.monotonic() < deadline, f"{sum(emitted.values())} of {wanted} came out"
            time.sleep(0.5)
            peaks_mb |= {each.pid: peak_mb(each.pid) for each in dynamodb_stage.workers("dynamodb_processor")}
            emitted = {
                str(each.batch["batchId"]): int(each.batch["messageCount"])
                for each in dynamodb_stage.inbox.arrivals
                if each.batch["conversationId"] == conversation
            }
        # To search all tombstones for messages takes the emulator seconds, so look only at the window while it is open.
        while "open" in window_of(dynamodb_stage, conversation):
            assert time.monotonic() < deadline, "the window stays open"
            time.sleep(0.5)
    assert sum(emitted.values()) == wanted
    shown = Operator(dynamodb_stage, capsys).asks("conversation", "show", conversation)
    assert (shown["state"], shown["count"]) == ("idle", 0)
    assert 0 < max(peaks_mb.values()) < memory_mb, peaks_mb


def store(stage: LocalStage, conversation: str) -> None:
    """Put messages into the table as ingest does, without a note of them."""
    client, table = stage.outputs.client("dynamodb"), stage.outputs.HoldingTableName
    arrived_at_ms = int(time.time() * 1_000) - LARGE_MESSAGES

    def items(number: int) -> list[dict[str, Any]]:
        message_id = f"m-{number:05}"
        key = {"conversation": {"S": conversation}}
        arrived = {"arrived_at": {"N": str(arrived_at_ms + number)}, "apart": {"N": "1"}}
        return [
            {**key, "item": {"S": f"m#{message_id}"}, **arrived},
            {**key, "item": {"S": f"p#{message_id}"}, "body": {"B": payload(message_id, LARGE_TEXT)}},
        ]

    def put(begin: int) -> None:
        found = [item for number in range(begin, min(begin + 12, LARGE_MESSAGES)) for item in items(number)]
        client.batch_write_item(RequestItems={table: [{"PutRequest": {"Item": item}} for item in found]})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(put, range(0, LARGE_MESSAGES, 12)))


def window_of(stage: LocalStage, conversation: str) -> dict[str, Any]:
    key = {"conversation": {"S": conversation}, "item": {"S": "!"}}
    table = stage.outputs.client("dynamodb")
    return dict(table.get_item(TableName=stage.outputs.HoldingTableName, Key=key, ConsistentRead=True)["Item"])


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has had, or 0 if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1_024
    return 0.0


def test_an_operator_leads_a_conversation_of_the_dynamodb_lane(
    dynamodb_stage: LocalStage, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(dynamodb_stage, capsys)
    operator.types("conversation", "hold", operator.conversation, "--for", "1h")
    operator.sends("Hey")
    shown = operator.asks("conversation", "show", operator.conversation)
    assert (shown["state"], shown["count"]) == ("pending", 1)
    assert operator.asks("status")["windows"]["open"] >= 1
    assert "DynamoDB lane" in operator.types("status")
    operator.types("conversation", "resume", operator.conversation)
    assert operator.sees(timeout_seconds=COME_SECONDS).batch["lane"] == "dynamodb"
    operator.sends("again")
    operator.types("conversation", "cancel", operator.conversation, "--yes")
    assert operator.asks("conversation", "show", operator.conversation)["state"] == "idle"
    operator.types("conversation", "flush", operator.conversation, code=4)
