"""The outcomes of calls to a lane or to the store, and what the caller must do after each.

If the `start_id` of an outcome is not None, a script has reserved the start of the shard's processor under this id, and
the caller of the store must start the processor now. `ValkeyLane` does so, and returns outcomes without a start id.
"""

from dataclasses import dataclass
from typing import Literal, TypeVar, dataclass_transform

from message_buffer.errors import InvalidInput
from message_buffer.lanes.holds import Hold, Holds, end_of

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def outcome(plain: type[T]) -> type[T]:
    """Make the class a dataclass. Only mypy treats its fields as read-only, because `frozen` would double the time of
    the import."""
    return dataclass(slots=True)(plain)


LaneName = Literal["valkey", "dynamodb"]
RefusalReason = Literal[
    "account_messages", "account_conversations", "tenant_messages", "tenant_conversations", "waiting"
]
"""The quota that is used up, or `waiting` if too many messages or bytes wait in the conversation."""


def lane_of(name: object) -> LaneName:
    """Return the lane of this name. Raise InvalidInput."""
    if name == "valkey":
        return "valkey"
    if name == "dynamodb":
        return "dynamodb"
    raise InvalidInput("there is no such lane; valid: valkey, dynamodb")


@outcome
class MessageBuffered:
    """The message waits. Acknowledge it to its platform."""

    due_at_ms: int
    count: int
    rule: str
    """The rule that set `due_at_ms`."""
    start_id: str | None = None


@outcome
class MessageDuplicate:
    """The message was already buffered. Acknowledge it. `due_at_ms` and `rule` are None if it no longer waits."""

    due_at_ms: int | None
    count: int
    rule: str | None = None
    start_id: str | None = None


@outcome
class MessageRefused:
    """Nothing was buffered or charged. Ask the platform to send the message again, at the earliest after `wait_ms`."""

    reason: RefusalReason
    wait_ms: int


Buffered = MessageBuffered | MessageDuplicate | MessageRefused


@outcome
class Charged:
    """The quotas are charged. Do the work."""


@outcome
class LeaseAcquired:
    """The caller has the lease. Renew it before it expires."""

    expires_at_ms: int
    returned: int = 0
    """The number of conversations that were put back because the processor that had claimed them died."""


@outcome
class LeaseTaken:
    """Another processor has the lease. End the run."""

    expires_at_ms: int


@outcome
class Renewed:
    """The caller's lease or token now lasts until `expires_at_ms`."""

    expires_at_ms: int


@outcome
class LeaseLost:
    """The lease is lost and nothing was changed. Acquire it again, or end the run."""


@outcome
class LeaseReleased:
    """The lease was released. End the run."""

    next_due_at_ms: int | None
    start_id: str | None


@outcome
class WorkIsNear:
    """The lease was not released. Keep running, because work is due soon."""

    next_due_at_ms: int


@outcome
class DueConversation:
    """A claimed conversation, and when it was due."""

    conversation: str
    due_at_ms: int


@outcome
class ConversationsClaimed:
    """The caller has claimed these conversations until `deadline_ms`. Start a conversation processor for each.

    `next_due_at_ms` may be too early, but never too late.
    """

    next_due_at_ms: int | None
    conversations: list[DueConversation]
    deadline_ms: int
    expired: int = 0
    """How many conversations were put back because a claim or a token had ended."""
    waits_for_slot: bool = False
    """True if more conversations are due, but all slots are taken."""


@outcome
class ClaimReturned:
    """The conversation's claim was returned. The conversation is due again at `due_at_ms`."""

    due_at_ms: int


@outcome
class BatchBusy:
    """Another conversation processor has the batch. Do nothing."""

    until_ms: int | None


@outcome
class RunStale:
    """Nothing was changed, because another run has taken over this conversation. End the run."""


@outcome
class BufferEmpty:
    """Nothing waits in the conversation."""


@outcome
class BatchTaken:
    """The caller has taken the batch. Emit the batch and complete it, or retry it. If the caller does none of this, the
    next run gets the same batch and a higher `attempt`."""

    batch_id: str
    attempt: int
    generation: int
    first_at_ms: int
    last_at_ms: int
    due_at_ms: int
    flush_reason: str
    rule: str
    applied_wait_ms: int
    """`due_at_ms` minus the last arrival before `due_at_ms` was computed. Negative if a host's clock lagged."""
    payloads: list[bytes]
    lane: LaneName = "valkey"
    until_ms: int = 0
    """When the token ends unless it is renewed. Until then no other run may take the batch. 0 in the DynamoDB lane."""
    handoff: Hold | None = None
    """The hand-off mark, if the conversation had one that had not ended when the batch was taken."""
    previous_at_ms: int | None = None
    """When the conversation's last message before this batch arrived. None if the lane does not remember one."""
    replied_at_ms: int | None = None
    """When the first reply since then was sent, or an earlier time if none was. None if no reply was ever noted."""
    tail: str = ""
    """The unfinished turn of the batch before (`tuning/turns.py`), or ''."""


@outcome
class BatchCompleted:
    """The batch is done. `next_due_at_ms` is when the messages after the batch are due, or None if there are none."""

    next_due_at_ms: int | None
    count: int
    start_id: str | None


@outcome
class BatchRetried:
    """The batch was put back. A later run takes it again under the same id."""

    due_at_ms: int
    start_id: str | None


@outcome
class ShardRecovered:
    """The state of a shard, and at most `limit` conversations that were put back because their claims had expired."""

    pending: int
    inflight: int
    oldest_due_at_ms: int | None
    heartbeat_at_ms: int | None
    start_id: str | None
    conversations: list[str]


@outcome
class BufferFlushed:
    """The buffer is due at once."""

    due_at_ms: int
    count: int
    start_id: str | None = None


@outcome
class BufferCancelled:
    """The waiting messages were dropped. Publish the cancellation.

    If `leaving` is true, a conversation processor already had the `frozen` messages, so it may still emit them once.
    """

    generation: int
    buffered: int
    frozen: int
    leaving: bool
    lane: LaneName = "valkey"


@outcome
class AlreadyCancelled:
    """This cancel was already carried out. Newer messages are kept. Publish the cancellation again."""

    generation: int
    lane: LaneName = "valkey"


Cancelled = BufferCancelled | AlreadyCancelled


@outcome
class ConversationForgotten:
    """The conversation is erased in this lane."""

    last_at_ms: int | None
    """When the newest of its messages arrived, including those already emitted. None if the lane knew no message."""
    waiting: int
    frozen: int
    leaving_until_ms: int | None
    """Until this time, a conversation processor that already had the `frozen` messages may emit them once."""


def cancelled_in_both(in_valkey: Cancelled, in_dynamodb: Cancelled) -> Cancelled:
    """Return the Valkey lane's outcome. Add the DynamoDB lane's counts, unless one of the lanes had already carried out
    the cancel, and so knows no counts."""
    if isinstance(in_valkey, AlreadyCancelled) or isinstance(in_dynamodb, AlreadyCancelled):
        return in_valkey
    return BufferCancelled(
        in_valkey.generation,
        in_valkey.buffered + in_dynamodb.buffered,
        in_valkey.frozen + in_dynamodb.frozen,
        in_valkey.leaving or in_dynamodb.leaving,
    )


@outcome
class OnHold:
    """The conversation is on hold until `held_until_ms`, when its last hold ends. After a call that has set a hand-off
    mark, the mark ends then."""

    held_until_ms: int
    start_id: str | None = None


@outcome
class HoldEnded:
    """The conversation is no longer on hold, or its mark was ended. `due_at_ms` is None if nothing waits."""

    due_at_ms: int | None
    start_id: str | None = None


@outcome
class NotOnHold:
    """The conversation had no such hold or mark, and nothing was changed."""

    due_at_ms: int | None
    start_id: str | None = None


ResumeOutcome = HoldEnded | OnHold | NotOnHold  # OnHold if the other hold has not ended


@outcome
class GenerationAndHolds:
    """The holds that have not ended, and the conversation's generation, or 0 if the lane does not know it."""

    generation: int
    holds: Holds


@outcome
class BufferExtended:
    """The buffer now waits until `due_at_ms`."""

    due_at_ms: int


@outcome
class BufferRetimed:
    """The buffer waits as the new rules say. Its due time may be the same as before."""

    due_at_ms: int
    count: int
    rule: str
    start_id: str | None = None


@outcome
class BufferUnmoved:
    """Nothing was changed, because the buffer is already due, is due later anyway, or may not wait any longer."""

    due_at_ms: int


Extended = BufferExtended | BufferUnmoved | BufferEmpty
Retimed = BufferRetimed | BufferUnmoved | BufferEmpty


@outcome
class MessageEdited:
    """The waiting message was replaced, or has a newer edit already. Nothing has to be published."""

    is_newest: bool
    """True if the message was replaced, and no message arrived after it."""


@outcome
class MessageWaiting:
    """The message waits in its buffer, and so is in no batch yet."""

    lane: LaneName = "valkey"
    batch_id: None = None


@outcome
class MessageDeleted:
    """The waiting message was removed. Nothing has to be published."""


@outcome
class MessageFrozen:
    """The message is in a batch that is being emitted, so it was not changed. Publish the change."""

    batch_id: str
    lane: LaneName = "valkey"


@outcome
class MessageAbsent:
    """The message was not found among the waiting messages that the lane searched, or there is no room for its edit.

    Publish the change.

    `known` says that the message was buffered once, so it has most likely been emitted or deleted. `batch_id` is the
    batch that probably contains it, or None if the lane does not remember one.
    """

    known: bool
    batch_id: str | None
    lane: LaneName = "valkey"


Found = MessageWaiting | MessageFrozen | MessageAbsent
Edited = MessageEdited | MessageFrozen | MessageAbsent
Deleted = MessageDeleted | MessageFrozen | MessageAbsent


@outcome
class ConversationPage:
    """A page of conversations, which may be empty or repeat a conversation. `next_cursor` asks for the next page."""

    next_cursor: str | None
    conversations: list[str]


@outcome
class Conversation:
    """A conversation as an operator sees it."""

    state: str  # IDLE | PENDING | INFLIGHT
    due_at_ms: int | None
    flush_reason: str | None
    rule: str | None
    applied_wait_ms: int | None  # as in BatchTaken
    count: int
    first_at_ms: int | None
    last_at_ms: int | None
    generation: int
    holds: Holds  # those that have not ended
    batch_id: str | None
    attempt: int
    frozen: int
    payloads: list[bytes]

    @property
    def held_until_ms(self) -> int | None:
        return end_of(self.holds) or None
