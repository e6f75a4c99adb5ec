"""What ingest asks of whoever keeps the messages: Valkey, the window lane, or one with the other behind it."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import StoreError, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.circuit_breaker import Breaker
from message_buffer.lanes.dynamodb.table import HoldingTable
from message_buffer.rules.timing import Timing
from message_buffer.telemetry import Telemetry

# A connection that was lost says so at once, and is opened again. Who is silent for longer is left alone.
FAST_MS = 300

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
    """The main lane; and the window lane for as long as the main one cannot be reached.

    After the first call that fails, a while goes by before the next is tried, so that one webhook waits once.
    """

    def __init__(
        self, main: Lane, window: Lane, table: HoldingTable, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> None:
        self._main = main
        self._window = window
        self._table = table
        self._telemetry = telemetry
        self._breaker = Breaker(clock=clock)

    def shard_of(self, conversation: str) -> int:
        return self._main.shard_of(conversation)

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing
    ) -> o.Buffered | o.Duplicate:
        outcome = self._tried(
            lambda: self._main.buffer_message(conversation, message_id, payload=payload, timing=timing)
        )
        if outcome is not None:
            return outcome
        taken = self._window.buffer_message(conversation, message_id, payload=payload, timing=timing)
        self._telemetry.count("WindowMessages")
        return taken

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled | o.AlreadyCancelled:
        """In both lanes. Without the main one it fails, so that the platform sends it again: what waits there comes
        out otherwise."""
        in_window = None
        if self._window_was_used(conversation):
            in_window = self._window.cancel_buffer(conversation, cancel_id=cancel_id)
        outcome = self._tried(lambda: self._main.cancel_buffer(conversation, cancel_id=cancel_id))
        if outcome is None:
            raise StoreUnavailable("cancel: what waits in the main lane cannot be reached")
        return outcome if in_window is None else o.cancelled_in_both(outcome, in_window)

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed | o.Unmoved | o.Empty:
        outcome = self._tried(lambda: self._main.retime_buffer(conversation, timing=timing))
        if timing.flush_reason and self._window_was_used(conversation):
            in_window = self._window.retime_buffer(conversation, timing=timing)
            return in_window if outcome is None or isinstance(outcome, o.Empty) else outcome
        return outcome or o.Empty()

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended | o.Unmoved | o.Empty:
        outcome = self._tried(
            lambda: self._main.extend_wait(conversation, extend_ms=extend_ms, max_wait_ms=max_wait_ms)
        )
        return outcome or self._window.extend_wait(conversation, extend_ms=extend_ms, max_wait_ms=max_wait_ms)

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
        """Without the main lane it fails if the message may be there, so that the platform sends it again."""
        was_in_main, found = self._where_it_is(conversation, change)
        if not was_in_main and _is_unheard(found):
            raise StoreUnavailable("change message: the main lane, where it may wait, cannot be reached")
        return found

    def _where_it_is(self, conversation: str, look: Callable[[Lane], T]) -> tuple[bool, T]:
        """(was the main lane asked?, what was found)

        In the window lane too, if the conversation was there: a message may be in both.
        """
        in_main = self._tried(lambda: look(self._main))
        if in_main is None:
            return False, look(self._window)
        if not self._window_was_used(conversation):
            return True, in_main
        in_window = look(self._window)
        # Whichever says more: of what the main lane emitted, this one knows no batch.
        says_little = isinstance(in_window, o.Absent) and in_window.batch_id is None
        return True, in_main if says_little and not _is_unheard(in_main) else in_window

    def _tried(self, call: Callable[[], T]) -> T | None:
        """None: the main lane cannot be reached."""
        if self._breaker.is_open:
            return None
        try:
            result = call()
        except StoreError as error:
            if not error.retryable:
                raise
            self._telemetry.count("StoreFailures")
            if self._breaker.failed():
                self._telemetry.count("FallbackOpened")
                self._telemetry.warn("the window lane stands in", reason=str(error))
            return None
        self._breaker.succeeded()
        return result

    def _window_was_used(self, conversation: str) -> bool:
        """Within the last day, or not long before that."""
        return self._table.window(conversation).generation > 0


def _is_unheard(found: object) -> bool:
    return isinstance(found, o.Absent) and not found.known
