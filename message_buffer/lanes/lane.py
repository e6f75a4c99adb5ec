"""A lane as ingest uses it: the Valkey lane, the DynamoDB lane, or the Valkey lane with its fallback."""

from typing import Protocol

from message_buffer.lanes import outcomes as o
from message_buffer.lanes.holds import Holder
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import Timing


class Lane(Protocol):
    """Keeps messages until they are due.

    When a call returns, the lane has also started the processor, or sent the trigger, that the call requires. After a
    retryable error, the call may or may not have taken effect. The caller can repeat it without harm.
    """

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.MessageBuffered | o.MessageDuplicate | o.MessageRefused:
        """Store a message and count it against the quotas in `charge`, unless the lane already knows the message.
        Without `charge`, no quota applies."""

    def charge(self, conversation: str, charge: Charge, *, messages: int, others: int) -> o.Charged | o.MessageRefused:
        """Charge what a webhook asks for, in this conversation and in others: all of it, or nothing if a quota is used
        up. A lane that charges each message when it buffers it leaves the messages out."""

    def cancel_buffer(
        self, conversation: str, *, cancel_id: str | None = None
    ) -> o.BufferCancelled | o.AlreadyCancelled:
        """Drop the waiting messages. A repeat with the same `cancel_id`, the stop word's message id, drops nothing."""

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.BufferRetimed | o.BufferUnmoved | o.BufferEmpty:
        """Compute an open buffer's due time again, with the rules in `timing`."""

    def hold_buffer(self, conversation: str, *, holder: Holder, cause: str, hold_ms: int) -> o.OnHold:
        """Keep the conversation's messages back, unless the same holder already has a longer hold."""

    def resume_buffer(
        self, conversation: str, *, holder: Holder | None = None, cause: str | None = None
    ) -> o.ResumeOutcome:
        """End the holds of both holders, or only this holder's hold with this cause."""

    def extend_wait(
        self, conversation: str, *, extend_ms: int, max_wait_ms: int
    ) -> o.BufferExtended | o.BufferUnmoved | o.BufferEmpty: ...

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.MessageEdited | o.MessageFrozen | o.MessageAbsent:
        """Replace a waiting message. If it is the newest message of its buffer, the buffer waits as `timing` says."""

    def delete_message(
        self, conversation: str, message_id: str
    ) -> o.MessageDeleted | o.MessageFrozen | o.MessageAbsent: ...

    def find_message(
        self, conversation: str, message_id: str
    ) -> o.MessageWaiting | o.MessageFrozen | o.MessageAbsent: ...
