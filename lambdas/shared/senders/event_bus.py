"""Publishes on the event bus."""

from lambdas.shared.errors import SendFailed
from lambdas.shared.senders import aws

SOURCE = "message-buffer"
# The service counts the time of an entry as so many bytes, given or not.
TIME_BYTES = 14


class EventBus:
    def __init__(self, name: str) -> None:
        self._name = name

    def publish(self, detail_type: str, detail: str) -> None:
        with aws.errors_as_ours("put event"):
            answer = aws.client("events").put_events(
                Entries=[{"EventBusName": self._name, "Source": SOURCE, "DetailType": detail_type, "Detail": detail}]
            )
        # The call succeeds even if the entry did not.
        if answer.get("FailedEntryCount"):
            raise SendFailed(f"put event: {answer['Entries'][0].get('ErrorCode', 'refused')}")


def entry_bytes(detail_type: str, detail: bytes) -> int:
    """What an entry counts against the service's limit."""
    return len(SOURCE) + len(detail_type) + len(detail) + TIME_BYTES
