"""Publishes events on the event bus."""

from collections.abc import Iterator, Sequence
from typing import Any

from message_buffer.aws import clients as aws
from message_buffer.errors import SendFailed
from message_buffer.json_object import to_json
from message_buffer.messages.conversation_id import ConversationId

# One call to EventBridge accepts at most this many entries. Some emulators also limit a call's bytes.
MAX_ENTRIES_IN_A_CALL = 10
MAX_ENTRY_BYTES_IN_A_CALL = 256 * 1024
SOURCE = "message-buffer"
# EventBridge counts this many bytes for an entry's time, even if the entry has none.
TIME_BYTES = 14
EVENT_VERSION = 1


class EventBus:
    def __init__(self, name: str) -> None:
        self._name = name

    def connect(self) -> None:
        """Open a connection, so that the first event need not wait for it."""
        with aws.errors_as_ours("connect to the event bus"):
            aws.client("events").connect()

    def publish(self, detail_type: str, detail: str) -> None:
        self.publish_all(detail_type, [detail])

    def publish_all(self, detail_type: str, details: Sequence[str]) -> None:
        """Publish events in as few calls as EventBridge allows. If this raises SendFailed, some of the events may have
        been published."""
        for call in _calls(detail_type, details):
            entries = [
                {"EventBusName": self._name, "Source": SOURCE, "DetailType": detail_type, "Detail": detail}
                for detail in call
            ]
            with aws.errors_as_ours("put event"):
                response = aws.client("events").put_events(Entries=entries)
            # A successful response may report entries that EventBridge has refused.
            if response.get("FailedEntryCount"):
                codes = [entry["ErrorCode"] for entry in response["Entries"] if "ErrorCode" in entry]
                raise SendFailed(f"put event: {codes[0] if codes else 'refused'}")


def conversation_event(conversation: ConversationId, agent: str | None, at_ms: int, fields: dict[str, Any]) -> str:
    """Return an event about a conversation, with the fields that all of them have."""
    event = {
        "version": EVENT_VERSION,
        "conversationId": str(conversation),
        "tenant": conversation.tenant,
        **({} if agent is None else {"agent": agent}),
        **fields,
        "at": at_ms,
        "metadata": {"platform": conversation.platform},
    }
    return to_json(event).decode()


def _calls(detail_type: str, details: Sequence[str]) -> Iterator[list[str]]:
    call: list[str] = []
    size = 0
    for detail in details:
        bytes_of_one = entry_bytes(detail_type, detail.encode())
        if call and (len(call) == MAX_ENTRIES_IN_A_CALL or size + bytes_of_one > MAX_ENTRY_BYTES_IN_A_CALL):
            yield call
            call, size = [], 0
        call.append(detail)
        size += bytes_of_one
    if call:
        yield call


def entry_bytes(detail_type: str, detail: bytes) -> int:
    """Return the size of an entry as the service counts it."""
    return len(SOURCE) + len(detail_type) + len(detail) + TIME_BYTES
