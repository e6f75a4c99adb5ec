"""A lane as ingest uses it: the Valkey lane, the DynamoDB lane, or the Valkey lane with its fallback."""

from typing import Protocol

from message_buffer.lanes import outcomes as o
from message_buffer.lanes.holds import Holder
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import Timing


class Lane(Protocol):
    """Keeps messages until they are due, and starts the processor or sends the trigger that a call requires. After a
    retryable error, the call may or may not have taken effect. The caller can repeat it without harm."""

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.Buffered:
        """Store a message and count it against the quotas in `charge`, unless the lane already knows the message.
        Without `charge`, no quota applies."""

    def charge(self, conversation: str, charge: Charge, *, messages: int, others: int) -> o.Charged | o.MessageRefused:
        """Charge a webhook's items, `messages` and `others` (how many of each), or none if a quota is used up. A lane
        that charges a message when it buffers the message charges only the others here."""

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled:
        """Drop the waiting messages. `cancel_id` is the id of the stop word's message. A second call with the same id
        drops nothing."""

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed:
        """Compute an open buffer's due time again, with the rules in `timing`."""

    def hold_buffer(self, conversation: str, *, holder: Holder, cause: str, hold_ms: int | None) -> o.OnHold:
        """Keep the conversation's messages back, unless the same holder already has a longer hold. Only a hand-off mark
        may be without a limit, which `hold_ms` None says."""

    def resume_buffer(
        self, conversation: str, *, holder: Holder | None = None, cause: str | None = None
    ) -> o.ResumeOutcome:
        """End all holds and the hand-off mark, or only what has this holder and this cause."""

    def note_reply(self, conversation: str, *, at_ms: int) -> bool:
        """Note when a reply was sent, if it is the first one since the conversation's last batch. Return whether the
        lane knows the conversation."""

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended: ...

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.Edited:
        """Replace a waiting message. If it is the newest message of its buffer, compute the due time again, with the
        rules in `timing`."""

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted: ...

    def find_message(self, conversation: str, message_id: str) -> o.Found: ...
