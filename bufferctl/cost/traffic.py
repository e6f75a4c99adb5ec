"""The traffic of a month, and how long it keeps processors running."""

from math import exp
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from bufferctl.cost.facts import DAYS, used
from infra.settings_and_defaults import TimingsConfig
from message_buffer.limits import PROCESSOR_LIFE_SECONDS

_Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Traffic(BaseModel):
    """The traffic. The fields' names are also the options of the command, and their descriptions the options' help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages_per_day: _Count = Field(100_000, description="messages that people send")
    fragments_per_batch: float = Field(4, ge=1, le=1_000, description="messages in a batch")
    wait_seconds: float = Field(14, gt=0, le=86_400, description="from a batch's first message to its due time")
    statuses_per_batch: _Count = Field(3, description="webhooks without a message: sent, delivered, read")
    text_bytes: float = Field(60, ge=0, le=65_536, description="length of a message's text")
    active_hours: float = Field(16, gt=0, le=24, description="hours of the day in which people write")
    peak: float = Field(
        5, ge=1, description="traffic of the busiest second, relative to the average of the active hours"
    )
    oversize_share: float = Field(
        0.0001, ge=0, le=1, description="share of the batches that are too large for an event"
    )

    @property
    def messages(self) -> float:
        return self.messages_per_day * DAYS

    @property
    def batches(self) -> float:
        return self.messages / self.fragments_per_batch

    @property
    def webhooks(self) -> float:
        return self.messages + self.batches * self.statuses_per_batch

    @property
    def active_seconds(self) -> float:
        return self.active_hours * DAYS * 3_600

    @property
    def busy_hours(self) -> float:
        """Return the share of the month's hours in which a batch begins, if batches begin as a Poisson process."""
        per_hour = self.batches / self.active_seconds * 3_600
        return self.active_hours / 24 * (1 - exp(-per_hour))

    @property
    def event_bytes(self) -> float:
        each = used("event_fragment_bytes") + 2 * self.text_bytes
        return used("event_bytes") + self.fragments_per_batch * each

    @property
    def payload_bytes(self) -> float:
        """Return the size of a message in the form in which it is buffered."""
        return used("fragment_bytes") + self.text_bytes


class Processors(BaseModel):
    """How long a stage's processors run, and how often they start, in a month.

    A batch keeps its shard's processor running while it waits, and for `processor_idle_ms` after it is due. These
    intervals begin at random and overlap, so they form an M/G/∞ queue. Such a queue is empty for exp(-rate x length) of
    the time.
    """

    model_config = ConfigDict(frozen=True)

    seconds: float
    starts: float


def processors(traffic: Traffic, *, shards: int, timings: TimingsConfig) -> Processors:
    """Return the running time and the starts of a stage's processors."""
    rate = traffic.batches / traffic.active_seconds / shards
    kept = traffic.wait_seconds + timings.processor_idle_ms / 1_000
    asleep = exp(-rate * kept)
    seconds = shards * traffic.active_seconds * (1 - asleep)
    run = PROCESSOR_LIFE_SECONDS - timings.processor_handover_ms / 1_000
    # If a processor is rarely needed, it ends before its hand-over. If it is always needed, each run ends with a
    # hand-over.
    handed_over = seconds / run * (1 - asleep)
    return Processors(seconds=seconds, starts=shards * traffic.active_seconds * rate * asleep + handed_over)
