"""The rules as the scripts take them; apart from the rules, because reading those takes pydantic."""

from typing import NamedTuple


class Timing(NamedTuple):
    """When a message's batch is due."""

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
    def for_scripts(self) -> dict[str, str | int]:
        """Return what the scripts take, by the names in their headers: all but the DynamoDB lane's wait."""
        return {
            "silence_ms": self.silence_ms,
            "typing_ms": self.typing_ms,
            "max_wait_ms": self.max_wait_ms,
            "max_messages": self.max_messages,
            "min_messages": self.min_messages,
            "flush_reason": self.flush_reason,
            "adaptive": self.adaptive,
        }
