"""SQS FIFO queues in memory, as strict as AWS, and one run of a Lambda function on such a queue.

`FakeSqs` has the methods of the SDK's client, as far as our code calls them. It is stricter than the emulator of the
local stage, which lets a receipt handle that has expired still hide or delete its message.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import RLock
from typing import Any

from message_buffer.aws.json_client import AwsRefused, refusal
from message_buffer.json_object import Json

DEDUPLICATION_MS = 300_000
MAX_HIDDEN_SECONDS = 43_200
MAX_ID_LENGTH = 128
MAX_ENTRIES = 10
MAX_BODY_BYTES = 1_048_576

_numbers = count(1)


@dataclass
class Message:
    body: str
    group: str
    deduplication_id: str
    sent_at_ms: int
    attributes: Mapping[str, Any]
    number: int = field(default_factory=lambda: next(_numbers))
    receipt: str = ""
    visible_at_ms: int = 0
    receives: int = 0
    first_received_at_ms: int = 0

    @property
    def message_id(self) -> str:
        return f"message-{self.number}"


@dataclass
class FifoQueue:
    """A queue in high-throughput mode: its deduplication is by group."""

    url: str
    visibility_seconds: int = 30
    max_receives: int = 20
    dead_letters: "FifoQueue | None" = None
    messages: list[Message] = field(default_factory=list)
    accepted: dict[tuple[str, str], Message] = field(default_factory=dict)
    """Group and deduplication id -> the last message with both, even if it was deleted."""

    @property
    def arn(self) -> str:
        return f"arn:aws:sqs:us-east-1:000000000000:{self.url.rpartition('/')[2]}"

    def receivable(self, now_ms: int) -> list[Message]:
        """Return what a receive may hand out: all messages of the groups that have no message in flight.

        A hidden message hides the others of its group. The messages of a group come together, oldest first.
        """
        self._bury(now_ms)
        locked = {message.group for message in self.messages if message.visible_at_ms > now_ms}
        free = [message for message in self.messages if message.group not in locked]
        first = {message.group: message.number for message in reversed(free)}
        return sorted(free, key=lambda message: (first[message.group], message.number))

    def _bury(self, now_ms: int) -> None:
        """Move the messages to the dead letters that are visible again after as many receives as are allowed."""
        if self.dead_letters is None:
            return
        for message in [each for each in self.messages if each.receives >= self.max_receives]:
            if message.visible_at_ms <= now_ms:
                self.messages.remove(message)
                self.dead_letters.messages.append(message)


class FakeSqs:
    """SQS with these queues. Threads may share it."""

    def __init__(self, clock: Callable[[], int], *queues: FifoQueue) -> None:
        self._clock = clock
        self._queues = {queue.url: queue for queue in queues}
        self._lock = RLock()
        self.failures: list[Exception] = []
        """The next calls raise these errors, one each."""

    def send_message(self, **request: Any) -> Json:
        body, group, own_id = (request[name] for name in ("MessageBody", "MessageGroupId", "MessageDeduplicationId"))
        with self._called(request) as (queue, now_ms):
            _require(all(name.isascii() and 0 < len(name) <= MAX_ID_LENGTH for name in (group, own_id)))
            _require(0 < len(body.encode()) <= MAX_BODY_BYTES)
            known = queue.accepted.get((group, own_id))
            if known is None or now_ms >= known.sent_at_ms + DEDUPLICATION_MS:
                known = Message(body, group, own_id, now_ms, request.get("MessageAttributes", {}))
                queue.accepted[group, own_id] = known
                queue.messages.append(known)
            return {"MessageId": known.message_id, "SequenceNumber": f"{known.number:020}"}

    def receive_message(self, **request: Any) -> Json:
        with self._called(request) as (queue, now_ms):
            wanted = request.get("MaxNumberOfMessages", 1)
            _require(0 < wanted <= MAX_ENTRIES)
            hidden_seconds = request.get("VisibilityTimeout", queue.visibility_seconds)
            received = queue.receivable(now_ms)[:wanted]
            for message in received:
                message.receives += 1
                message.receipt = f"{message.message_id}-{message.receives}"
                message.first_received_at_ms = message.first_received_at_ms or now_ms
                message.visible_at_ms = now_ms + hidden_seconds * 1_000
            return {"Messages": [_received(message) for message in received]} if received else {}

    def delete_message(self, **request: Any) -> Json:
        with self._called(request) as (queue, now_ms):
            message = _in_flight(queue, request["ReceiptHandle"], now_ms)
            if message:
                queue.messages.remove(message)
            return {}

    def change_message_visibility(self, **request: Any) -> Json:
        with self._called(request) as (queue, now_ms):
            hidden_seconds = request["VisibilityTimeout"]
            _require(0 <= hidden_seconds <= MAX_HIDDEN_SECONDS)
            message = _in_flight(queue, request["ReceiptHandle"], now_ms)
            _require(message is not None)
            assert message
            message.visible_at_ms = now_ms + hidden_seconds * 1_000
            return {}

    def send_message_batch(self, **request: Any) -> Json:
        return self._each(self.send_message, request)

    def delete_message_batch(self, **request: Any) -> Json:
        return self._each(self.delete_message, request)

    def change_message_visibility_batch(self, **request: Any) -> Json:
        return self._each(self.change_message_visibility, request)

    def _each(self, call: Callable[..., Json], request: Json) -> Json:
        """Make a call for each entry. The answer says which failed; the call as a whole does not fail."""
        entries = request["Entries"]
        _require(0 < len(entries) <= MAX_ENTRIES)
        _require(len({entry["Id"] for entry in entries}) == len(entries))
        found: dict[str, list[Json]] = {"Successful": [], "Failed": []}
        for entry in entries:
            try:
                answer = call(QueueUrl=request["QueueUrl"], **{k: v for k, v in entry.items() if k != "Id"})
                found["Successful"].append({"Id": entry["Id"], **answer})
            except AwsRefused as error:
                found["Failed"].append({"Id": entry["Id"], "Code": error.code, "SenderFault": True})
        return {name: listed for name, listed in found.items() if listed}

    @contextmanager
    def _called(self, request: Json) -> Iterator[tuple[FifoQueue, int]]:
        with self._lock:
            if self.failures:
                raise self.failures.pop(0)
            if request["QueueUrl"] not in self._queues:
                raise refusal("QueueDoesNotExist")("QueueDoesNotExist", {})
            yield self._queues[request["QueueUrl"]], self._clock()


def _require(valid: bool) -> None:
    if not valid:
        raise refusal("InvalidParameterValue")("InvalidParameterValue", {})


def _in_flight(queue: FifoQueue, receipt: str, now_ms: int) -> Message | None:
    """Return the message that this receive handed out, or None if it was deleted. Refuse an expired receipt."""
    name, _, _ = receipt.rpartition("-")
    message = next((each for each in queue.messages if each.message_id == name), None)
    _require(message is None or (message.receipt == receipt and message.visible_at_ms > now_ms))
    return message


def _received(message: Message) -> Json:
    return {
        "MessageId": message.message_id,
        "ReceiptHandle": message.receipt,
        "Body": message.body,
        "Attributes": {
            "ApproximateReceiveCount": str(message.receives),
            "ApproximateFirstReceiveTimestamp": str(message.first_received_at_ms),
            "SentTimestamp": str(message.sent_at_ms),
            "SequenceNumber": f"{message.number:020}",
            "MessageGroupId": message.group,
            "MessageDeduplicationId": message.deduplication_id,
        },
        "MessageAttributes": message.attributes,
    }


def as_event(received: Json, arn: str) -> Json:
    """Return the event with which Lambda invokes a function for the answer of a receive."""
    records = [
        {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"],
            "messageAttributes": message.get("MessageAttributes", {}),
            "eventSource": "aws:sqs",
            "eventSourceARN": arn,
            "awsRegion": "us-east-1",
        }
        for message in received.get("Messages", ())
    ]
    return {"Records": records}


def run_mapping(sqs: Any, queue: FifoQueue, handler: Callable[[Json], Json], *, batch_size: int = MAX_ENTRIES) -> bool:
    """Receive, invoke the function and delete what it did not report as failed, as an event source mapping does.

    Return False if the queue had nothing to hand out. If the function raises, its messages stay hidden until their
    visibility ends. Refuse an answer that keeps a message but not the later ones of its group.
    """
    event = as_event(sqs.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=batch_size), queue.arn)
    records = event["Records"]
    if not records:
        return False
    failed = {each["itemIdentifier"] for each in handler(event)["batchItemFailures"]}
    assert failed <= {record["messageId"] for record in records}, f"not of this event: {failed}"
    stopped: set[str] = set()
    for record in records:
        group = record["attributes"]["MessageGroupId"]
        if record["messageId"] in failed:
            stopped.add(group)
            continue
        assert group not in stopped, f"{record['messageId']} would be deleted, but not an older one of its group"
        sqs.delete_message(QueueUrl=queue.url, ReceiptHandle=record["receiptHandle"])
    return True
