"""The rules in the form that lanes use. This module does not import pydantic, because most functions do not need it."""

from typing import Literal, NamedTuple

RuleName = Literal[
    "silenceMs", "typingInferenceMs", "mediaSilenceMs", "transcriptWaitMs", "pressedSilenceMs", "vipSilenceMs",
    "learned", "windowMs", "maxWaitMs", "minMessages", "maxMessages", "flushWords", "maxBytes", "typing", "hold",
    "resume", "flush", "split",
]  # fmt: skip
"""The name of the rule or event that sets a due time. The last six are events: 4 MiB of large messages, a typing event,
a hold, an operator's two commands, and a batch that had no room for some messages."""


class Timing(NamedTuple):
    """The values that decide when a message's batch is due."""

    silence_ms: int
    typing_ms: int
    max_wait_ms: int
    max_messages: int
    min_messages: int
    flush_reason: str
    """The reason why the batch is due at once; empty if it waits."""
    pressed_ms: int | None = None
    """The wait after a press, used instead of `silence_ms`. None if the message was typed."""
    silence_rule: RuleName = "silenceMs"
    """The rule that set `silence_ms`. If `flush_reason` is not empty, the rule that set that reason."""
    learned: str = ""
    """The message's learned waits by place, in the form of `packed_waits`. Empty if the wait is not learned."""

    @property
    def for_scripts(self) -> dict[str, str | int]:
        """Return the arguments of the scripts, without `pressed_ms`, which only the script for a new message takes."""
        return {name: value for name, value in self._asdict().items() if name != "pressed_ms"}
