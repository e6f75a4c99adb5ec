"""The rules as the scripts take them; apart from the rules, because reading those takes pydantic."""

from typing import NamedTuple


class Timing(NamedTuple):
    """When a message's batch is due. All but the last are what the scripts take, in their order: `for_scripts`."""

    silence_ms: int
    typing_ms: int
    max_wait_ms: int
    max_messages: int
    min_messages: int
    flush_reason: str
    """Empty: wait. Otherwise the batch is due at once, for this reason."""
    adaptive: str
    """Empty: off. Otherwise deviations above the mean gap, floor and ceiling, with spaces between."""
    window_ms: int
    """How long the DynamoDB lane waits, be it silent or not."""

    @property
    def for_scripts(self) -> tuple[str | int, ...]:
        return self[:-1]
