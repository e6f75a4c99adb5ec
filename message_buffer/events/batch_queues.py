"""Sends batches to the stage's queues: FIFO queues that hand over one conversation's batches in order.

While a batch of a conversation is at work, SQS hands out no later one. The body has the fields that a delivery by
EventBridge has, so a consumer reads both in the same way.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from message_buffer.aws import clients as aws
from message_buffer.events.event_bus import SOURCE
from message_buffer.lanes.valkey.keys import batch_prefix
from message_buffer.rules.queues import DEFAULT, HANDOFF

# More than the batches that a function emits at once, so that none waits for a thread. The threads are kept, because
# starting one takes half as much CPU time as a call.
THREADS = 64


class BatchQueues:
    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls
        self._threads = ThreadPoolExecutor(THREADS, "send batch")

    def __bool__(self) -> bool:
        """Return whether the stage has queues."""
        return bool(self._urls)

    def connect(self) -> None:
        """Open a connection, so that the first batch need not wait for it."""
        with aws.errors_as_ours("connect to the queues"):
            aws.client("sqs").connect()

    def name_of(self, stored: str | None, *, is_handed_off: bool) -> str | None:
        """Return the name of a batch's queue, or None if the stage has none for it. `stored` is the name that ingest
        stored in the newest message."""
        wanted = (HANDOFF if is_handed_off else None, stored, DEFAULT)
        return next((name for name in wanted if name in self._urls), None)

    def send_while(self, publish: Callable[[], None], send: Callable[[], None]) -> None:
        """Call both at the same time, and return when both have returned. If one of them raises an error, raise it
        after the other has ended, too, so that neither is still running when the batch is tried again."""
        sent = self._threads.submit(send)
        try:
            publish()
        finally:
            failure = sent.exception()
        if failure is not None:
            raise failure

    def send(self, name: str, detail_type: str, detail: str, *, conversation: str, batch_id: str) -> None:
        # The detail is JSON already, so do not encode it again.
        body = f'{{"source":"{SOURCE}","detail-type":"{detail_type}","detail":{detail}}}'
        with aws.errors_as_ours("send batch"):
            aws.client("sqs").send_message(
                QueueUrl=self._urls[name],
                MessageBody=body,
                MessageGroupId=batch_prefix(conversation),
                MessageDeduplicationId=batch_id,
            )


def acceptable(detail: bytes) -> bytes:
    """Return the JSON with U+FFFE and U+FFFF escaped, which people can write but SQS refuses."""
    return detail.replace("\ufffe".encode(), rb"\ufffe").replace("\uffff".encode(), rb"\uffff")
