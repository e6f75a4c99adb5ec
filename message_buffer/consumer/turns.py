"""Consumes a stage's queues: one turn of a conversation at a time, the turns of several conversations side by side.

A turn consists of the batches of a conversation that the queue delivers together, up to ten. The queue delivers no
later batch of the conversation before these are deleted, or were hidden for long enough.

    def handler(event, context):
        return turns.handle(event, answer, queue_urls=[QUEUE_URL], marks=Marks(TABLE))

    def answer(turn):
        reply = ask_the_agent(turn.batches)
        turn.require_hidden()  # raises an error if another run may have the turn by now
        send(reply)

If `answer` returns, the turn is finished. If it raises an error, the queue delivers the whole turn again after a pause.
If the process is killed, it does so after `HIDDEN_SECONDS`. So a turn may arrive twice; `Marks` recognises its batches.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from message_buffer.aws import clients as aws
from message_buffer.errors import LockLost, SendFailed
from message_buffer.heartbeat import Heartbeat
from message_buffer.json_object import Json

# Lambda requires that a queue hides its entries for as long as the function may run. Hide them for less as soon as the
# function runs, because a killed function would block its conversations for that time.
HIDDEN_SECONDS = 30
# The heartbeat hides the entries for one more period, this many times within each period. So they stay hidden even if
# one call is slow.
BEATS_WHILE_HIDDEN = 3
# After a failure, the pause doubles from the minimum to the maximum.
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 4, 300
# SQS delivers at most this many entries together.
MAX_ENTRIES = 10
MAX_POLL_SECONDS = 20
ATTRIBUTES = ["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "MessageGroupId"]


class TryAgain(Exception):
    """Raised by `answer` to choose the pause after which the turn is delivered again. It is not logged."""

    def __init__(self, seconds: int) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Marks(Protocol):
    """Remembers which batches were answered."""

    def answered(self, batch_ids: Collection[str]) -> set[str]:
        """Return those of the batches that were answered before."""

    def mark(self, batch_ids: Collection[str]) -> None:
        """Remember that these batches were answered."""


@dataclass(frozen=True)
class Entry:
    """A delivery of one batch."""

    id: str
    receipt: str
    queue_url: str
    group: str
    """Entries with the same group belong to the same conversation."""
    body: str
    receives: int
    """How often the queue has delivered this entry, including this delivery."""
    first_received_at_ms: int

    @cached_property
    def batch(self) -> Json:
        """Return the fields of the event `messages.batch.ready`."""
        detail: Json = json.loads(self.body)["detail"]
        return detail


class Turn:
    """The entries of one conversation that are to be answered together, oldest first."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        self._hidden_until = math.inf

    @property
    def batches(self) -> list[Json]:
        return [entry.batch for entry in self.entries]

    @property
    def pause_seconds(self) -> int:
        """Return the usual pause after a failure."""
        return min(MIN_PAUSE_SECONDS << (max(entry.receives for entry in self.entries) - 1), MAX_PAUSE_SECONDS)

    def require_hidden(self) -> None:
        """Raise an error if another run may have the entries by now. Call it before each step that has effects."""
        if time.monotonic() >= self._hidden_until:
            raise LockLost("the entries were not hidden in time")

    def hide(self, *, seconds: int) -> None:
        """Hide the entries from other runs for `seconds` from now on."""
        hidden_until = time.monotonic() + seconds
        response = self._call("change_message_visibility_batch", self.entries, VisibilityTimeout=seconds)
        # An entry that was finished while the call was under way cannot be hidden any more.
        refused = {entry.id for entry in self.entries} & {failed["Id"] for failed in response.get("Failed", ())}
        self._hidden_until = -math.inf if refused else hidden_until
        if refused:
            raise SendFailed("hide entries: refused")

    def finish(self, finished: Sequence[Entry]) -> None:
        """Delete these entries now, so that they are not delivered again even if the rest of the turn fails."""
        self.entries = [entry for entry in self.entries if entry not in finished]
        # Lambda deletes them, too, at the end of the invocation.
        with suppress(SendFailed):
            self._call("delete_message_batch", finished)

    def _call(self, operation: str, entries: Sequence[Entry], **fields: int) -> Json:
        if not entries:
            return {}
        request = [{"Id": entry.id, "ReceiptHandle": entry.receipt, **fields} for entry in entries]
        with aws.errors_as_ours(operation):
            response: Json = getattr(aws.client("sqs"), operation)(QueueUrl=entries[0].queue_url, Entries=request)
        return response


Answer = Callable[[Turn], None]


def handle(event: Json, answer: Answer, *, queue_urls: Collection[str], marks: Marks | None = None) -> Json:
    """Answer the entries of a Lambda event source mapping with `ReportBatchItemFailures`. Return those that failed."""
    urls = {url.rpartition("/")[2]: url for url in queue_urls}
    entries = [_entry(urls[each["eventSourceARN"].rpartition(":")[2]], each) for each in event["Records"]]
    failed = _answer_all(entries, answer, marks)
    return {"batchItemFailures": [{"itemIdentifier": entry.id} for entry in failed]}


def poll(queue_url: str, answer: Answer, *, marks: Marks | None = None, wait_seconds: int = MAX_POLL_SECONDS) -> int:
    """Answer the entries that one call of ReceiveMessage returns. Return their number. For a loop in a process."""
    patience = aws.Patience(aws.AWS_CONNECT_SECONDS, wait_seconds + aws.AWS_ANSWER_SECONDS, attempts=1)
    with aws.errors_as_ours("receive entries"):
        found = aws.client("sqs", patience=patience).receive_message(
            QueueUrl=queue_url, MaxNumberOfMessages=MAX_ENTRIES, VisibilityTimeout=HIDDEN_SECONDS,
            WaitTimeSeconds=wait_seconds, AttributeNames=ATTRIBUTES,
        ).get("Messages", [])  # fmt: skip
    _answer_all([_entry(queue_url, each) for each in found], answer, marks)
    return len(found)


def _entry(queue_url: str, given: Json) -> Entry:
    # Lambda's names of these fields begin with a small letter, and those of SQS with a capital one.
    message = {name.lower(): value for name, value in given.items()}
    receives, first_received_at_ms, group = (message["attributes"][name] for name in ATTRIBUTES)
    ids = message["messageid"], message["receipthandle"]
    return Entry(*ids, queue_url, group, message["body"], int(receives), int(first_received_at_ms))


def _answer_all(entries: Sequence[Entry], answer: Answer, marks: Marks | None) -> list[Entry]:
    """Return the entries that the queue has to deliver again."""
    if not entries:
        return []
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    with ThreadPoolExecutor(len(groups)) as threads:
        left = threads.map(partial(_answer_group, answer, marks), map(Turn, groups.values()))
        return [entry for each in left for entry in each]


def _answer_group(answer: Answer, marks: Marks | None, turn: Turn) -> list[Entry]:
    try:
        keep_hidden = partial(turn.hide, seconds=HIDDEN_SECONDS)
        keep_hidden()
        with Heartbeat(keep_hidden, every_seconds=HIDDEN_SECONDS / BEATS_WHILE_HIDDEN):
            if marks:
                answered = marks.answered([entry.batch["batchId"] for entry in turn.entries])
                turn.finish([entry for entry in turn.entries if entry.batch["batchId"] in answered])
            if turn.entries:
                answer(turn)
                # The turn was answered, so without the marks it is better deleted than answered again.
                with suppress(SendFailed):
                    if marks:
                        marks.mark([entry.batch["batchId"] for entry in turn.entries])
            turn.finish(turn.entries)
    except Exception as error:  # whatever went wrong, the queue delivers the turn again
        if not isinstance(error, TryAgain):
            logging.getLogger(__name__).warning("turn is tried again", exc_info=error)
        if turn.entries:
            with suppress(SendFailed):
                turn.hide(seconds=error.seconds if isinstance(error, TryAgain) else turn.pause_seconds)
    return turn.entries
