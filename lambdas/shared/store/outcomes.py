"""What the scripts' answers mean to a caller. `start_processor` says: you reserved the start, now do it."""

from typing import NamedTuple


class Buffered(NamedTuple):
    due_at_ms: int
    count: int
    generation: int
    start_processor: bool


class Duplicate(NamedTuple):
    """The message was buffered before. Its first sender may have failed to start a processor."""

    due_at_ms: int | None
    count: int
    generation: int
    start_processor: bool


class Acquired(NamedTuple):
    expires_at_ms: int


class Held(NamedTuple):
    """Another processor owns the shard: leave."""

    expires_at_ms: int


class Renewed(NamedTuple):
    expires_at_ms: int


class Lost(NamedTuple):
    """The lease is gone: nothing was changed; acquire again or leave."""


class Released(NamedTuple):
    next_due_at_ms: int | None
    start_processor: bool


class WorkIsNear(NamedTuple):
    """The lease was not released: stay."""

    next_due_at_ms: int


class Due(NamedTuple):
    conversation: str
    due_at_ms: int


class Claimed(NamedTuple):
    """An executor must be sent for each. `next_due_at_ms` may be early, never late."""

    next_due_at_ms: int | None
    conversations: list[Due]


class Returned(NamedTuple):
    due_at_ms: int


class Busy(NamedTuple):
    """An executor holds the batch: leave it alone."""

    until_ms: int | None


class Stale(NamedTuple):
    """Somebody else has gone on with this conversation: stop."""


class Empty(NamedTuple):
    """Nothing there."""


class Taken(NamedTuple):
    """Emit it, then complete it; or retry it. A second executor is given the same batch with a higher attempt."""

    batch_id: str
    attempt: int
    generation: int
    first_at_ms: int
    last_at_ms: int
    due_at_ms: int
    flush_reason: str
    payloads: list[bytes]


class Completed(NamedTuple):
    next_due_at_ms: int | None
    count: int
    start_processor: bool


class Retried(NamedTuple):
    due_at_ms: int
    start_processor: bool


class Recovered(NamedTuple):
    pending: int
    inflight: int
    oldest_due_at_ms: int | None
    heartbeat_at_ms: int | None
    start_processor: bool
    conversations: list[str]


class Flushed(NamedTuple):
    due_at_ms: int
    count: int
    start_processor: bool


class Cancelled(NamedTuple):
    """`leaving`: an executor held `frozen` messages at that moment; they may still come out, once."""

    generation: int
    buffered: int
    frozen: int
    leaving: bool


class OnHold(NamedTuple):
    held_until_ms: int
    count: int


class Resumed(NamedTuple):
    due_at_ms: int | None
    count: int
    start_processor: bool


class NotHeld(NamedTuple):
    due_at_ms: int | None
    count: int
    start_processor: bool


class Extended(NamedTuple):
    due_at_ms: int


class Unmoved(NamedTuple):
    """Already due, already later than asked for, or at its bound."""

    due_at_ms: int


class Edited(NamedTuple):
    position: int


class Deleted(NamedTuple):
    remaining: int


class Frozen(NamedTuple):
    """Too late: the message is in a batch that is being emitted."""

    batch_id: str


class Absent(NamedTuple):
    """Not waiting. `known`: it was buffered once, so it has been emitted, cancelled or deleted."""

    known: bool


class Conversation(NamedTuple):
    state: str  # IDLE | PENDING | INFLIGHT
    scheduled_at_ms: int | None  # its score: when pending is looked at, or the deadline in flight
    due_at_ms: int | None
    flush_reason: str | None
    count: int
    first_at_ms: int | None
    last_at_ms: int | None
    generation: int
    held_until_ms: int | None
    batch_id: str | None
    attempt: int
    frozen: int
    payloads: list[bytes]
