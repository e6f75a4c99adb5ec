"""The Valkey lane with the DynamoDB lane as its fallback."""

from collections.abc import Callable
from typing import TypeVar

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import StoreError, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.circuit_breaker import CircuitBreaker
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.holds import Holder
from message_buffer.lanes.lane import Lane
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.messages.conversation_id import TRIAL_OF_FALLBACK
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import Timing
from message_buffer.telemetry import Telemetry

T = TypeVar("T")


class LaneWithFallback:
    """Uses the Valkey lane, or the DynamoDB lane while Valkey cannot be reached.

    After a failed call the circuit breaker skips Valkey for a while, so that one webhook waits for Valkey only once.
    After that, only a read checks whether Valkey answers again. Otherwise, more than once per instance and outage,
    Valkey might store a message without answering, and both lanes would emit it.
    """

    def __init__(
        self, valkey_lane: ValkeyLane, dynamodb_lane: DynamoDbLane, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> None:
        self._valkey_lane = valkey_lane
        self._dynamodb_lane = dynamodb_lane
        self._telemetry = telemetry
        self._breaker = CircuitBreaker(clock=clock)

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.Buffered:
        # `bufferctl verify` tries the fallback while Valkey is available.
        is_trial = conversation.startswith(TRIAL_OF_FALLBACK)
        outcome = None if is_trial else self._tried(
            conversation,
            lambda: self._valkey_lane.buffer_message(
                conversation, message_id, payload=payload, timing=timing, charge=charge
            ),
        )  # fmt: skip
        if outcome is not None:
            return outcome
        taken = self._dynamodb_lane.buffer_message(conversation, message_id, payload=payload, timing=timing)
        if not is_trial:
            self._telemetry.count("FallbackMessages")
        return taken

    def charge(self, conversation: str, charge: Charge, *, messages: int, others: int) -> o.Charged | o.MessageRefused:
        """Charge in Valkey, or in the table if Valkey cannot be reached."""
        # The Valkey lane charges messages when it stores them. So if Valkey fails only then, at the webhook's first
        # message, the webhook's messages are not charged.
        if others or self._breaker.is_open:
            outcome = self._tried(
                conversation, lambda: self._valkey_lane.charge(conversation, charge, messages=messages, others=others)
            )
            return outcome or self._dynamodb_lane.charge(conversation, charge, messages=messages, others=others)
        return o.Charged()

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled:
        """Cancel in both lanes. Raise StoreUnavailable, and drop nothing, if the Valkey lane cannot be reached. The
        repeated stop word then cancels in both."""
        was_used = self._dynamodb_lane.generation_and_holds(conversation).generation > 0
        outcome = self._tried(conversation, lambda: self._valkey_lane.cancel_buffer(conversation, cancel_id=cancel_id))
        if outcome is None:
            raise StoreUnavailable("cancel: Valkey, where messages may wait, cannot be reached")
        if not was_used:
            return outcome
        return o.cancelled_in_both(outcome, self._dynamodb_lane.cancel_buffer(conversation, cancel_id=cancel_id))

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed:
        outcome = self._tried(conversation, lambda: self._valkey_lane.retime_buffer(conversation, timing=timing))
        in_valkey = None if isinstance(outcome, o.BufferEmpty) else outcome
        read = self._dynamodb_lane.generation_and_holds
        if (in_valkey is None or timing.flush_reason) and read(conversation).generation:
            in_dynamodb = self._dynamodb_lane.retime_buffer(conversation, timing=timing)
            return in_valkey or in_dynamodb
        return in_valkey or o.BufferEmpty()

    def hold_buffer(self, conversation: str, *, holder: Holder, cause: str, hold_ms: int | None) -> o.OnHold:
        """Hold the conversation in both lanes, since its messages may be stored in either. Raise StoreUnavailable if
        the Valkey lane cannot be reached. The conversation is then on hold only in the DynamoDB lane."""
        self._dynamodb_lane.hold_buffer(conversation, holder=holder, cause=cause, hold_ms=hold_ms)
        held = self._tried(
            conversation,
            lambda: self._valkey_lane.hold_buffer(conversation, holder=holder, cause=cause, hold_ms=hold_ms),
        )
        if held is None:
            raise StoreUnavailable("hold: Valkey, where messages may wait, cannot be reached")
        return held

    def resume_buffer(
        self, conversation: str, *, holder: Holder | None = None, cause: str | None = None
    ) -> o.ResumeOutcome:
        """Resume the conversation in both lanes. Raise StoreUnavailable if the Valkey lane cannot be reached."""
        in_dynamodb = self._dynamodb_lane.resume_buffer(conversation, holder=holder, cause=cause)
        resumed = self._tried(
            conversation, lambda: self._valkey_lane.resume_buffer(conversation, holder=holder, cause=cause)
        )
        if resumed is None:
            raise StoreUnavailable("resume: Valkey, where messages may wait, cannot be reached")
        both = (resumed, in_dynamodb)
        return next(each for kind in (o.OnHold, o.HoldEnded, o.NotOnHold) for each in both if isinstance(each, kind))

    def note_reply(self, conversation: str, *, at_ms: int) -> bool:
        """Note the reply in the DynamoDB lane only if the Valkey lane does not know the conversation."""
        noted = self._tried(conversation, lambda: self._valkey_lane.note_reply(conversation, at_ms=at_ms))
        return noted or self._dynamodb_lane.note_reply(conversation, at_ms=at_ms)

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended:
        outcome = self._tried(
            conversation,
            lambda: self._valkey_lane.extend_wait(conversation, extend_ms=extend_ms, max_wait_ms=max_wait_ms),
        )
        return outcome or self._dynamodb_lane.extend_wait(conversation, extend_ms=extend_ms, max_wait_ms=max_wait_ms)

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.Edited:
        return self._changed(
            conversation, lambda lane: lane.edit_message(conversation, message_id, payload=payload, timing=timing)
        )

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted:
        return self._changed(conversation, lambda lane: lane.delete_message(conversation, message_id))

    def find_message(self, conversation: str, message_id: str) -> o.Found:
        return self._where_it_is(conversation, lambda lane: lane.find_message(conversation, message_id))[1]

    def _changed(self, conversation: str, change: Callable[[Lane], T]) -> T:
        """Change the message in the lane that has it. Raise StoreUnavailable if Valkey cannot be reached and the
        DynamoDB lane does not know the message, because it may wait in Valkey."""
        was_in_valkey, found = self._where_it_is(conversation, change)
        if not was_in_valkey and _never_seen(found):
            raise StoreUnavailable("change message: Valkey, where the message may wait, cannot be reached")
        return found

    def _where_it_is(self, conversation: str, read: Callable[[Lane], T]) -> tuple[bool, T]:
        """Return whether Valkey could be reached, and the outcome of the lane that has the message or knows more about
        it."""
        in_valkey = self._tried(conversation, lambda: read(self._valkey_lane))
        if in_valkey is None:
            return False, read(self._dynamodb_lane)
        if not self._dynamodb_lane.generation_and_holds(conversation).generation:
            return True, in_valkey
        in_dynamodb = read(self._dynamodb_lane)
        # Return the DynamoDB lane's outcome if that lane has the message, knows its batch, or is the only lane that
        # knows the message. Otherwise return the Valkey lane's outcome.
        is_silent = isinstance(in_dynamodb, o.MessageAbsent) and in_dynamodb.batch_id is None
        if is_silent and (_never_seen(in_dynamodb) or not _never_seen(in_valkey)):
            return True, in_valkey
        return True, in_dynamodb

    def _tried(self, conversation: str, call: Callable[[], T]) -> T | None:
        """Return the result of a call to the Valkey lane, or None if Valkey cannot be reached."""
        if self._breaker.should_skip:
            return None
        try:
            if self._breaker.is_open:
                self._valkey_lane.peek_conversation(conversation)
                self._breaker.succeeded()
            return call()
        except StoreError as error:
            if not error.retryable:
                raise
            self._telemetry.count("StoreFailures")
            if self._breaker.failed():
                self._telemetry.warn("the DynamoDB lane stands in", reason=str(error))
            return None


def _never_seen(found: object) -> bool:
    return isinstance(found, o.MessageAbsent) and not found.known
