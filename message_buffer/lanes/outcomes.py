"""What the scripts' answers mean to a caller. `start_processor` says: you reserved the start, now do it."""

from dataclasses import dataclass
from typing import Literal

LaneName = Literal["debounce", "window"]


@dataclass(frozen=True, slots=True)
class Buffered:
    due_at_ms: int
    count: int
    start_processor: bool = False


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The message was buffered before. Its first sender may have failed to start a processor."""

    due_at_ms: int | None
    count: int
    start_processor: bool = False


@dataclass(frozen=True, slots=True)
class Acquired:
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Held:
    """Another processor owns the shard: leave."""

    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Renewed:
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is gone: nothing was changed; acquire again or leave."""


@dataclass(frozen=True, slots=True)
class Released:
    next_due_at_ms: int | None
    start_processor: bool


@dataclass(frozen=True, slots=True)
class WorkIsNear:
    """The lease was not released: stay."""

    next_due_at_ms: int


@dataclass(frozen=True, slots=True)
class Due:
    conversation: str
    due_at_ms: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A conversation processor must be sent for each. `next_due_at_ms` may be early, never late."""

    next_due_at_ms: int | None
    conversations: list[Due]


@dataclass(frozen=True, slots=True)
class Returned:
    due_at_ms: int


@dataclass(frozen=True, slots=True)
class Busy:
    """A conversation processor holds the batch: leave it alone."""

    until_ms: int | None


@dataclass(frozen=True, slots=True)
class Stale:
    """Somebody else has gone on with this conversation: stop."""


@dataclass(frozen=True, slots=True)
class Empty:
    """Nothing there."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Emit it, then complete it; or retry it. A second conversation processor is given the same batch with a higher
    attempt.
    """

    batch_id: str
    attempt: int
    generation: int
    first_at_ms: int
    last_at_ms: int
    due_at_ms: int
    flush_reason: str
    payloads: list[bytes]
    lane: LaneName = "debounce"
    left_out: frozenset[int] | None = None
    """Positions of messages that another lane emits; None: nothing was settled."""


@dataclass(frozen=True, slots=True)
class Completed:
    next_due_at_ms: int | None
    count: int
    start_processor: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """What is left out of the batch is the same at every attempt from now on."""


@dataclass(frozen=True, slots=True)
class Retried:
    due_at_ms: int
    start_processor: bool


@dataclass(frozen=True, slots=True)
class Recovered:
    pending: int
    inflight: int
    oldest_due_at_ms: int | None
    heartbeat_at_ms: int | None
    start_processor: bool
    conversations: list[str]


@dataclass(frozen=True, slots=True)
class Flushed:
    due_at_ms: int
    count: int
    start_processor: bool = False


@dataclass(frozen=True, slots=True)
class Cancelled:
    """`leaving`: a conversation processor held the `frozen` messages at that moment; they may still come out, once."""

    generation: int
    buffered: int
    frozen: int
    leaving: bool
    lane: LaneName = "debounce"


@dataclass(frozen=True, slots=True)
class AlreadyCancelled:
    """This very cancel was done before; what came since is untouched."""

    generation: int
    lane: LaneName = "debounce"


def cancelled_in_both(
    main: Cancelled | AlreadyCancelled, window: Cancelled | AlreadyCancelled
) -> Cancelled | AlreadyCancelled:
    """What the Valkey lane says, with what the DynamoDB lane dropped."""
    if isinstance(main, AlreadyCancelled) or isinstance(window, AlreadyCancelled):
        return main
    return Cancelled(
        main.generation,
        main.buffered + window.buffered,
        main.frozen + window.frozen,
        main.leaving or window.leaving,
    )


@dataclass(frozen=True, slots=True)
class OnHold:
    """Until then; a longer hold that was there before goes on."""

    held_until_ms: int
    start_processor: bool = False


@dataclass(frozen=True, slots=True)
class Resumed:
    due_at_ms: int | None
    start_processor: bool = False


@dataclass(frozen=True, slots=True)
class NotHeld:
    due_at_ms: int | None
    start_processor: bool = False


@dataclass(frozen=True, slots=True)
class Extended:
    due_at_ms: int


@dataclass(frozen=True, slots=True)
class Retimed:
    """It waits as the new rules would have it, which may be as long as before."""

    due_at_ms: int
    count: int
    start_processor: bool = False


@dataclass(frozen=True, slots=True)
class Unmoved:
    """Already due, already later than asked for, or at its bound."""

    due_at_ms: int


@dataclass(frozen=True, slots=True)
class Edited:
    position: int
    behind: int
    """So many messages came after it, and wait too."""


@dataclass(frozen=True, slots=True)
class Waiting:
    position: int
    lane: LaneName = "debounce"

    @property
    def batch_id(self) -> None:
        """A waiting message is in no batch yet."""


@dataclass(frozen=True, slots=True)
class Deleted:
    remaining: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """Too late: the message is in a batch that is being emitted."""

    batch_id: str
    lane: LaneName = "debounce"


@dataclass(frozen=True, slots=True)
class Absent:
    """Not among the newest that wait. `known`: it was buffered once, so it has most likely been emitted, or deleted.

    `batch_id`: in which batch to look for it, which may turn out not to hold it; None: not remembered, or not yet out.
    """

    known: bool
    batch_id: str | None
    lane: LaneName = "debounce"


@dataclass(frozen=True, slots=True)
class Listed:
    conversation: str
    state: str  # PENDING | INFLIGHT
    scheduled_at_ms: int  # as peek_conversation says it


@dataclass(frozen=True, slots=True)
class Page:
    """It may be empty, or name a conversation again. The last one has no `next_cursor`."""

    next_cursor: str | None
    conversations: list[Listed]


@dataclass(frozen=True, slots=True)
class Conversation:
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
