"""Handles notices, which are Lambda's records of asynchronous runs that failed.

A notice does not prove that nothing is running: Lambda may deliver one event to two runs, of which only one fails. A
notice may also come twice or late, and anyone who may send to the queue could forge it. So the scripts that this module
calls end only the lease or claim of the notice's own event, and do no harm if that event's run is still alive.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from lambdas.limits import MAX_CONVERSATIONS_IN_A_RECOVERY
from message_buffer.aws import clients as aws
from message_buffer.errors import InvalidInput, SendFailed, StoreError
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import MAX_TIME_MS
from message_buffer.telemetry import Telemetry

# The form of a notice's condition and error type. Other texts are not logged, because they may quote a message.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,99}")
_START_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Dead(NamedTuple):
    """The run that a notice reports. `started_by` is None in the events of older code."""

    shard: int
    conversation: str | None
    """None if the run was a processor."""
    started_by: str | int | None
    """The start id of a processor, or the deadline of a conversation processor's claim."""
    reason: str

    @property
    def role(self) -> str:
        return "processor" if self.conversation is None else "conversation_processor"


class Hides(Protocol):
    def hide(self, receipt: str, *, for_ms: int) -> None: ...


class NoticeQueue:
    def __init__(self, url: str) -> None:
        self._url = url

    def hide(self, receipt: str, *, for_ms: int) -> None:
        """Hide a received notice for `for_ms` from now; then the queue delivers it again."""
        with aws.errors_as_ours("hide notice"):
            aws.client("sqs").change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=receipt, VisibilityTimeout=-(-for_ms // 1_000)
            )


class Notices:
    def __init__(self, lane: ValkeyLane, queue: Hides, telemetry: Telemetry, *, max_step_ms: int) -> None:
        self._lane = lane
        self._queue = queue
        self._telemetry = telemetry
        self._max_step_ms = max_step_ms

    def handle(self, records: Iterable[Mapping[str, Any]], remaining_ms: Callable[[], int]) -> list[str]:
        """Act on each notice, and return the ids of those that the queue must deliver again.

        After several deliveries the queue moves a notice to another queue, which an operator reads.
        """
        return [record["messageId"] for record in records if not self._handle(record, remaining_ms)]

    def _handle(self, record: Mapping[str, Any], remaining_ms: Callable[[], int]) -> bool:
        if remaining_ms() < self._max_step_ms:
            return self._again(record, for_ms=0)
        try:
            dead = read_notice(record["body"], shards=self._lane.store.settings.shards)
            if dead is None:
                return True
            wait_ms = self._end(dead)
        except InvalidInput as error:
            self._telemetry.warn("notice unreadable", reason=str(error))
            return self._again(record, for_ms=0)
        except StoreError as error:
            self._telemetry.count("StoreFailures")
            self._telemetry.warn("notice not handled", reason=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - an error about one notice must not stop the others
            self._telemetry.crash("notice not handled", error)
            return False
        return wait_ms == 0 or self._again(record, for_ms=wait_ms)

    def _again(self, record: Mapping[str, Any], *, for_ms: int) -> bool:
        try:
            self._queue.hide(record["receiptHandle"], for_ms=for_ms)
        except SendFailed as error:
            self._telemetry.warn("notice not hidden", reason=str(error))
        return False

    def _end(self, dead: Dead) -> int:
        """End the dead run's lease or claim. Return the time after which the notice must come again, or 0."""
        wait_ms = 0
        if dead.conversation is not None and isinstance(dead.started_by, int):
            ended = self._lane.end_claim(dead.conversation, deadline_ms=dead.started_by).due_at_ms is not None
        elif dead.conversation is None and isinstance(dead.started_by, str):
            processor = self._lane.end_processor(dead.shard, dead.started_by)
            ended, wait_ms = processor.ended, processor.wait_ms
        else:
            # An event of older code does not identify a lease or claim, so put back what expired.
            self._lane.recover_expired(dead.shard, limit=MAX_CONVERSATIONS_IN_A_RECOVERY)
            ended = False
        if ended:
            self._telemetry.count_by("Deaths", reason=dead.role)
        self._telemetry.warn(
            "run died",
            role=dead.role, shard=dead.shard, conversation=dead.conversation, reason=dead.reason, ended=ended,
            next_in_ms=wait_ms,
        )  # fmt: skip
        return wait_ms


def read_notice(body: str, *, shards: int) -> Dead | None:
    """Return the run that a notice reports, or None for a warm-up, which has no claim.

    Raise InvalidInput if the notice is not about a run of this stage.
    """
    try:
        record = json.loads(body)
        payload = record["requestPayload"]
        if payload.get("warm") is True:
            return None
        conversation, shard = payload.get("conversation"), payload["shard"]
        started_by = payload.get("start") if conversation is None else payload.get("deadline")
        condition = record.get("requestContext", {}).get("condition")
        error = record["responsePayload"].get("errorType") if isinstance(record.get("responsePayload"), dict) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidInput("this is not Lambda's record of a start") from None
    if type(shard) is not int or not 0 <= shard < shards:
        raise InvalidInput("the start names no shard of this stage")
    if conversation is None:
        is_valid = started_by is None or (isinstance(started_by, str) and _START_ID.fullmatch(started_by))
    else:
        is_deadline = type(started_by) is int and 0 < started_by <= MAX_TIME_MS
        is_valid = isinstance(conversation, str) and (started_by is None or is_deadline)
    if not is_valid:
        raise InvalidInput("the start does not say what it was for")
    return Dead(shard, conversation, started_by, ": ".join(filter(None, map(_name, (condition, error)))))


def _name(text: object) -> str | None:
    return text if isinstance(text, str) and _NAME.fullmatch(text) else None
