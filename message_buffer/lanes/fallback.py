"""What ingest asks of whoever keeps the messages: Valkey, the DynamoDB lane, or one with the other behind it."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import StoreError, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.circuit_breaker import CircuitBreaker
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.rules.timing import Timing
from message_buffer.telemetry import Telemetry

# A connection that was lost says so at once, and is opened again. Who is silent for longer is left alone.
RETRY_IF_FAILED_WITHIN_MS = 300

T = TypeVar("T")


class Lane(Protocol):
    def shard_of(self, conversation: str) -> int: ...

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing
    ) -> o.Buffered | o.Duplicate: ...

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled | o.AlreadyCancelled: ...

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed | o.Unmoved | o.Empty: ...

    def extend_wait(
        self, conversation: str, *, extend_ms: int, max_wait_ms: int
    ) -> o.Extended | o.Unmoved | o.Empty: ...

    def edit_message(self, conversation: str, message_id: str, *, payload: bytes) -> o.Edited | o.Frozen | o.Absent: ...

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted | o.Frozen | o.Absent: ...

    def find_message(self, conversation: str, message_id: str) -> o.Waiting | o.Frozen | o.Absent: ...


class LaneWithFallback:
    """The Valkey lane; and the DynamoDB lane for as long as the main one cannot be reached.

    After the first call that fails, a while goes by before the next is tried, so that one webhook waits once.
    """

    def __init__(
        self,
        valkey_lane: Lane,
        dynamodb_lane: Lane,
        table: MessageTable,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._valkey_lane = valkey_lane
        self._dynamodb_lane = dynamodb_lane
        self._table = table
        self._telemetry = telemetry
        self._breaker = CircuitBreaker(clock=clock)

    def shard_of(self, conversation: str) -> int:
        return self._valkey_lane.shard_of(conversation)

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing
    ) -> o.Buffered | o.Duplicate:
        outcome = self._tried(
            lambda: self._valkey_lane.buffer_message(conversation, message_id, payload=payload, timing=timing)
        )
        if outcome is not None:
            return outcome
        taken = self._dynamodb_lane.buffer_message(conversation, message_id, payload=payload, timing=timing)
        self._telemetry.count("FallbackMessages")
        return taken

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled | o.AlreadyCancelled:
        """In both lanes. Without the main one it fails, so that the platform sends it again: what waits there comes
        out otherwise."""
        in_dynamodb = None
        if self._dynamodb_lane_was_used(conversation):
            in_dynamodb = self._dynamodb_lane.cancel_buffer(conversation, cancel_id=cancel_id)
        outcome = self._tried(lambda: self._valkey_lane.cancel_buffer(conversation, cancel_id=cancel_id))
        if outcome is None:
            raise StoreUnavailable("cancel: what waits in the Valkey lane cannot be reached")
        return outcome if in_dynamodb is None else o.cancelled_in_both(outcome, in_dynamodb)

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed | o.Unmoved | o.Empty:
        outcome = self._tried(lambda: self._valkey_lane.retime_buffer(conversation, timing=timing))
        if timing.flush_reason and self._dynamodb_lane_was_used(conversation):
            in_dynamodb = self._dynamodb_lane.retime_buffer(conversation, timing=timing)
            return in_dynamodb if outcome is None or isinstance(outcome, o.Empty) else outcome
        return outcome or o.Empty()

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended | o.Unmoved | o.Empty:
        outcome = self._tried(
            lambda: self._valkey_lane.extend_wait(conversation, extend_ms=extend_ms, max_wait_ms=max_wait_ms)
        )
        return outcome or self._dynamodb_lane.extend_wait(conversation, extend_ms=extend_ms, max_wait_ms=max_wait_ms)

    def edit_message(self, conversation: str, message_id: str, *, payload: bytes) -> o.Edited | o.Frozen | o.Absent:
        def edit(lane: Lane) -> o.Edited | o.Frozen | o.Absent:
            return lane.edit_message(conversation, message_id, payload=payload)

        return self._changed(conversation, edit)

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted | o.Frozen | o.Absent:
        def delete(lane: Lane) -> o.Deleted | o.Frozen | o.Absent:
            return lane.delete_message(conversation, message_id)

        return self._changed(conversation, delete)

    def find_message(self, conversation: str, message_id: str) -> o.Waiting | o.Frozen | o.Absent:
        def find(lane: Lane) -> o.Waiting | o.Frozen | o.Absent:
            return lane.find_message(conversation, message_id)

        _, found = self._where_it_is(conversation, find)
        return found

    def _changed(self, conversation: str, change: Callable[[Lane], T]) -> T:
        """Without the Valkey lane it fails if the message may be there, so that the platform sends it again."""
        was_in_valkey, found = self._where_it_is(conversation, change)
        if not was_in_valkey and _never_seen(found):
            raise StoreUnavailable("change message: the Valkey lane, where it may wait, cannot be reached")
        return found

    def _where_it_is(self, conversation: str, look: Callable[[Lane], T]) -> tuple[bool, T]:
        """(was the Valkey lane asked?, what was found)

        In the DynamoDB lane too, if the conversation was there: a message may be in both.
        """
        in_valkey = self._tried(lambda: look(self._valkey_lane))
        if in_valkey is None:
            return False, look(self._dynamodb_lane)
        if not self._dynamodb_lane_was_used(conversation):
            return True, in_valkey
        in_dynamodb = look(self._dynamodb_lane)
        # The Valkey lane answers for both, unless the DynamoDB lane has the message, or knows its batch, or alone
        # knows the message at all.
        is_silent = isinstance(in_dynamodb, o.Absent) and in_dynamodb.batch_id is None
        if is_silent and (_never_seen(in_dynamodb) or not _never_seen(in_valkey)):
            return True, in_valkey
        return True, in_dynamodb

    def _tried(self, call: Callable[[], T]) -> T | None:
        """None: the Valkey lane cannot be reached."""
        if self._breaker.should_skip:
            return None
        try:
            result = call()
        except StoreError as error:
            if not error.retryable:
                raise
            self._telemetry.count("StoreFailures")
            if self._breaker.failed():
                self._telemetry.count("FallbackOpened")
                self._telemetry.warn("the DynamoDB lane stands in", reason=str(error))
            return None
        self._breaker.succeeded()
        return result

    def _dynamodb_lane_was_used(self, conversation: str) -> bool:
        """Within the last day, or not long before that."""
        return self._table.window(conversation).generation > 0


def _never_seen(found: object) -> bool:
    return isinstance(found, o.Absent) and not found.known
