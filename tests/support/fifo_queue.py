"""A FIFO queue in this process, with a clock that a test moves: order, groups, hiding and deduplication as in SQS.

It is as strict as SQS, and stricter than the local stage's emulator, which lets a receipt that has lapsed still hide or
delete its message.
"""

from collections.abc import Callable
from itertools import count
from threading import RLock
from typing import Any

from message_buffer.aws.json_client import refusal
from message_buffer.json_object import Json

MAX_TOGETHER = 10
DEDUPLICATION_MS = 5 * 60_000
MAX_ID_LENGTH = 128
MAX_BODY_BYTES = 1_048_576


class _Message:
    def __init__(self, message_id: str, group: str, body: str, sent: Json) -> None:
        self.id, self.group, self.body, self.sent = message_id, group, body, sent
        self.receives = 0
        self.first_received_ms = 0
        self.visible_at_ms = 0
        self.receipt = ""


class FifoQueue:
    """A queue in high-throughput mode: its deduplication is by group. Threads may share it."""

    def __init__(
        self, name: str, clock: Callable[[], int], *, dead_letters: "FifoQueue | None" = None, max_receives: int = 20
    ) -> None:
        self.url = f"https://sqs.eu-west-1.amazonaws.com/000000000000/{name}.fifo"
        self.arn = f"arn:aws:sqs:eu-west-1:000000000000:{name}.fifo"
        self.messages: list[_Message] = []
        """The messages that are not deleted, oldest first."""
        self._clock = clock
        self._dead_letters, self._max_receives = dead_letters, max_receives
        self._sent_at_ms: dict[tuple[str, str], int] = {}
        self._numbers = count(1)
        self.lock = RLock()

    def put(self, body: str, *, group: str, deduplication_id: str, **sent: Any) -> None:
        for name in (group, deduplication_id):
            _require(name.isascii() and 0 < len(name) <= MAX_ID_LENGTH)
        _require(0 < len(body.encode()) <= MAX_BODY_BYTES)
        with self.lock:
            sent_at_ms = self._sent_at_ms.get((group, deduplication_id))
            if sent_at_ms is not None and self._clock() - sent_at_ms < DEDUPLICATION_MS:
                return
            self._sent_at_ms[group, deduplication_id] = self._clock()
            self.messages.append(_Message(f"id-{next(self._numbers)}", group, body, sent))

    def take(self, *, hidden_ms: int) -> list[_Message]:
        """Return up to ten visible messages, with as many as possible of each group.

        A message that is hidden hides the others of its group.
        """
        with self.lock:
            now_ms = self._clock()
            self._bury(now_ms)
            locked = {message.group for message in self.messages if message.visible_at_ms > now_ms}
            free = [message for message in self.messages if message.group not in locked]
            groups = list(dict.fromkeys(message.group for message in free))
            taken = sorted(free, key=lambda message: groups.index(message.group))[:MAX_TOGETHER]
            for message in taken:
                message.receives += 1
                message.first_received_ms = message.first_received_ms or now_ms
                message.visible_at_ms = now_ms + hidden_ms
                message.receipt = f"{message.id}#{message.receives}"
            return taken

    def _bury(self, now_ms: int) -> None:
        """Move the messages to the dead letters that are visible again after as many receives as are allowed."""
        if self._dead_letters is None:
            return
        for message in list(self.messages):
            if message.receives >= self._max_receives and message.visible_at_ms <= now_ms:
                self.messages.remove(message)
                self._dead_letters.messages.append(message)

    def next_at_ms(self) -> int:
        """Return the time at which the next message can be taken."""
        by_group: dict[str, int] = {}
        for message in self.messages:
            by_group[message.group] = max(by_group.get(message.group, 0), message.visible_at_ms)
        return min(by_group.values())

    def event(self, taken: list[_Message]) -> Json:
        """Return the event that Lambda's mapping makes of these messages."""
        return {
            "Records": [
                {
                    "messageId": message.id, "receiptHandle": message.receipt, "body": message.body,
                    "attributes": _attributes(message), "eventSource": "aws:sqs", "eventSourceARN": self.arn,
                }
                for message in taken
            ]
        }  # fmt: skip

    def end(self, taken: list[_Message], response: Json) -> None:
        """Delete what Lambda deletes after an invocation. Refuse a response that keeps a message, but not the later
        ones of its group: Lambda would delete these, and they would overtake the one that was kept."""
        failed = {each["itemIdentifier"] for each in response["batchItemFailures"]}
        assert failed <= {message.id for message in taken}, f"not of this invocation: {failed}"
        kept: set[str] = set()
        for message in taken:
            if message.id in failed:
                kept.add(message.group)
                continue
            assert message.group not in kept, f"{message.id} would be deleted, but not an older one of its group"
            self.delete(message.receipt)

    def find(self, receipt: str) -> _Message | None:
        """Return the message with this receipt handle, or None if the handle has expired."""
        with self.lock:
            found = (message for message in self.messages if message.receipt == receipt)
            return next((message for message in found if message.visible_at_ms > self._clock()), None)

    def delete(self, receipt: str) -> bool:
        with self.lock:
            message = self.find(receipt)
            if message:
                self.messages.remove(message)
            return message is not None


def _require(valid: bool) -> None:
    if not valid:
        raise refusal("InvalidParameterValue")("InvalidParameterValue", {})


def _attributes(message: _Message) -> dict[str, str]:
    return {
        "ApproximateReceiveCount": str(message.receives),
        "ApproximateFirstReceiveTimestamp": str(message.first_received_ms),
        "MessageGroupId": message.group,
    }


class FakeSqs:
    """The client of these queues. A test may make its next calls fail."""

    def __init__(self, *queues: FifoQueue, clock: Callable[[], int]) -> None:
        self._queues = {queue.url: queue for queue in queues}
        self._clock = clock
        self.failures = 0
        self.hidden_seconds: list[int] = []

    def receive_message(self, *, QueueUrl: str, VisibilityTimeout: int, **_: object) -> Json:  # noqa: N803
        self._begin()
        taken = self._queues[QueueUrl].take(hidden_ms=VisibilityTimeout * 1_000)
        if not taken:
            return {}
        return {
            "Messages": [
                {"MessageId": m.id, "ReceiptHandle": m.receipt, "Body": m.body, "Attributes": _attributes(m)}
                for m in taken
            ]
        }

    def change_message_visibility_batch(self, *, QueueUrl: str, Entries: list[Json]) -> Json:  # noqa: N803
        self._begin()
        failed = []
        for entry in Entries:
            message = self._queues[QueueUrl].find(entry["ReceiptHandle"])
            if message is None:
                failed.append({"Id": entry["Id"]})
            else:
                message.visible_at_ms = self._clock() + entry["VisibilityTimeout"] * 1_000
        self.hidden_seconds.append(Entries[0]["VisibilityTimeout"])
        return {"Failed": failed}

    def delete_message_batch(self, *, QueueUrl: str, Entries: list[Json]) -> Json:  # noqa: N803
        self._begin()
        gone = [entry for entry in Entries if not self._queues[QueueUrl].delete(entry["ReceiptHandle"])]
        return {"Failed": [{"Id": entry["Id"]} for entry in gone]}

    def send_message(
        self, *, QueueUrl: str, MessageBody: str, MessageGroupId: str, MessageDeduplicationId: str, **sent: Any  # noqa: N803
    ) -> Json:  # fmt: skip
        self._begin()
        self._queues[QueueUrl].put(MessageBody, group=MessageGroupId, deduplication_id=MessageDeduplicationId, **sent)
        return {}

    def _begin(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("made to fail")
