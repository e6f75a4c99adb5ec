"""The conversation processor: takes the batch of one conversation, emits it and completes it."""

from collections.abc import Callable
from random import SystemRandom

from lambdas.conversation_processor.token import TimeOfToken, Token, TokenEnded
from lambdas.run_ids import new_run_id
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreError
from message_buffer.events.emission import Emission, TimeLeft, back_off_ms, is_failure
from message_buffer.lanes.outcomes import Stale, Taken
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.telemetry import Telemetry

_random = SystemRandom().random


class ConversationProcessor:
    def __init__(
        self,
        *,
        lane: ValkeyLane,
        emission: Emission,
        telemetry: Telemetry,
        clock: Clock = system_clock,
        random: Callable[[], float] = _random,
    ) -> None:
        self._lane = lane
        self._emission = emission
        self._telemetry = telemetry
        self._clock = clock
        self._random = random

    def warm_up(self) -> None:
        """Open the connections that the first batch needs."""
        self._lane.store.prepare()
        self._emission.connect()
        self._lane.store.warm_up("take_batch", "complete_batch")

    def process(self, conversation: str, time: TimeLeft, *, deadline_ms: int) -> None:
        """Emit and complete the conversation's batch, or put it back for another attempt.

        `deadline_ms` is that of the claim for which this run was started. If this run raises an error, it first gives
        its claim up, so that the next run need not wait for the claim's end.
        """
        try:
            self._process(conversation, time, deadline_ms)
        except Exception:
            self._give_up(conversation, time, deadline_ms)
            raise

    def _process(self, conversation: str, time: TimeLeft, deadline_ms: int) -> None:
        token = new_run_id(deadline_ms)
        taken = self._lane.store.take_batch(conversation, token)
        if not isinstance(taken, Taken):
            # Another run has the batch or has completed it, because Lambda may deliver one event twice.
            self._telemetry.sampled("nothing to take", conversation=conversation, outcome=type(taken).__name__)
            return
        rest_ms = self._rest_ms(taken)
        if rest_ms > 0:
            self._telemetry.warn(
                "batch rests", conversation=conversation, batch=taken.batch_id, deaths=taken.deaths, retry_in_ms=rest_ms
            )
            self._put_back(conversation, token, wait_ms=rest_ms)
            return
        held = Token(
            self._lane.store, conversation, token,
            until_ms=taken.until_ms, telemetry=self._telemetry, clock=self._clock,
        )  # fmt: skip
        try:
            with held.kept():
                self._emission.send(conversation, taken, TimeOfToken(time, held))
        except TokenEnded:
            # This run was paused, or could not reach Valkey. Put the batch back, unless another run has taken it.
            self._telemetry.warn("token ended", conversation=conversation, batch=taken.batch_id)
            self._put_back(conversation, token, wait_ms=0)
            return
        except Exception as error:  # noqa: BLE001 - the batch is tried again after any error, and becomes a dead letter in the end
            self._try_later(conversation, token, taken, error)
            return
        completed = self._lane.complete_batch(conversation, token)
        if isinstance(completed, Stale):
            self._telemetry.warn("completed too late", conversation=conversation, batch=taken.batch_id)
        elif completed.ids_forgotten:
            self._telemetry.count("IdsForgotten", completed.ids_forgotten)

    def _give_up(self, conversation: str, time: TimeLeft, deadline_ms: int) -> None:
        try:
            time.require_a_call()
            self._lane.end_claim(conversation, deadline_ms=deadline_ms)
        except (SendFailed, StoreError) as error:
            self._telemetry.warn("claim not given up", conversation=conversation, reason=str(error))

    def _rest_ms(self, taken: Taken) -> int:
        """Return how much longer the batch must wait after a death: 0 after the first one, then up to 1, 2, 4 … s."""
        if taken.died_at_ms is None or taken.deaths == 1:
            return 0
        pause_ms = back_off_ms(taken.deaths - 1, self._random)
        # Wait no longer than the pause, because the clock of the dead run's host may have been ahead.
        return min(taken.died_at_ms + pause_ms - self._clock(), pause_ms)

    def _try_later(self, conversation: str, token: str, taken: Taken, error: Exception) -> None:
        failures = 1 if is_failure(error) else 0
        wait_ms = back_off_ms(taken.failures + 1 if failures else taken.attempt, self._random)
        fields: dict[str, str | int] = {"conversation": conversation, "batch": taken.batch_id, "attempt": taken.attempt}
        if isinstance(error, SendFailed) or (isinstance(error, StoreError) and error.retryable):
            self._telemetry.warn("emit failed", **fields, reason=str(error), retry_in_ms=wait_ms)
        else:
            self._telemetry.crash("emit failed", error, **fields, retry_in_ms=wait_ms)
        self._telemetry.count("Retries")
        self._put_back(conversation, token, wait_ms=wait_ms, failures=failures)

    def _put_back(self, conversation: str, token: str, *, wait_ms: int, failures: int = 0) -> None:
        self._lane.retry_batch(conversation, token, retry_at_ms=self._clock() + wait_ms, failures=failures)
