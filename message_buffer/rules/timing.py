"""The rules as the lanes take them, in a module without pydantic, which the rules need."""

from typing import NamedTuple

# WhatsApp and Messenger close the free-form reply 24 hours after the author's message.
WAIT_LIMIT_MS = 86_400_000


class Timing(NamedTuple):
    """When a message's batch is due. `for_scripts` has all fields but the last, in the order of the scripts."""

    silence_ms: int
    typing_ms: int
    max_wait_ms: int
    max_messages: int
    min_messages: int
    flush_reason: str
    """The reason why the batch is due at once; empty if it waits."""
    adaptive: str
    """Deviations above the mean gap, floor and ceiling, separated by spaces; empty if the wait is not adaptive."""
    window_ms: int
    """The length of the DynamoDB lane's window, which messages do not extend."""

    @property
    def for_scripts(self) -> tuple[str | int, ...]:
        return self[:-1]
