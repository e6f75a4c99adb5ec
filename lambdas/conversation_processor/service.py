"""The conversation processor: takes the batch of one conversation, emits it and completes it."""

from collections.abc import Callable
from random import SystemRandom
from uuid import uuid4

from lambdas.conversation_processor.token import TimeOfToken, Token, TokenEnded
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreError
from message_buffer.events.emission import Emission, TimeLeft, back_off_ms
from message_buffer.lanes.outcomes import BatchTaken, RunStale
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
        self._lane.prepare()
        self._emission.connect()
        self._lane.warm_up("take_batch", "complete_batch")

    def process(self, conversation: str, time: TimeLeft) -> None:
        """Emit and complete the conversation's batch, or put it back for another attempt."""
        token = uuid4().hex
        taken = self._lane.take_batch(conversation, token)
        if not isinstance(taken, BatchTaken):
            # Another run has the batch or has completed it, because Lambda may deliver one event twice.
            self._telemetry.info("nothing to take", conversation=conversation, outcome=type(taken).__name__)
            return
        held = Token(
            self._lane, conversation, token,
            until_ms=taken.until_ms, telemetry=self._telemetry, clock=self._clock,
        )  # fmt: skip
        try:
            with held.kept():
                self._emission.send(conversation, taken, TimeOfToken(time, held))
        except TokenEnded:
            # The token has expired, because this run was paused or could not reach Valkey. Put the batch back, unless
            # another run has taken it.
            wait_ms = back_off_ms(taken.attempt, self._random)
            self._telemetry.warn("token ended", conversation=conversation, batch=taken.batch_id, retry_in_ms=wait_ms)
            self._put_back(conversation, token, wait_ms=wait_ms)
            return
        except Exception as error:  # noqa: BLE001 - the batch is tried again after any error, and becomes a dead letter in the end
            self._try_later(conversation, token, taken, error)
            return
        completed = self._lane.complete_batch(conversation, token)
        if isinstance(completed, RunStale):
            self._telemetry.warn("completed too late", conversation=conversation, batch=taken.batch_id)
        elif completed.ids_forgotten:
            self._telemetry.count("IdsForgotten", completed.ids_forgotten)

    def _try_later(self, conversation: str, token: str, taken: BatchTaken, error: Exception) -> None:
        wait_ms = back_off_ms(taken.attempt, self._random)
        fields: dict[str, str | int] = {"conversation": conversation, "batch": taken.batch_id, "attempt": taken.attempt}
        if isinstance(error, SendFailed) or (isinstance(error, StoreError) and error.retryable):
            self._telemetry.warn("emit failed", **fields, reason=str(error), retry_in_ms=wait_ms)
        else:
            self._telemetry.crash("emit failed", error, **fields, retry_in_ms=wait_ms)
        self._telemetry.count("Retries")
        self._put_back(conversation, token, wait_ms=wait_ms)

    def _put_back(self, conversation: str, token: str, *, wait_ms: int) -> None:
        self._lane.retry_batch(conversation, token, retry_at_ms=self._clock() + wait_ms)
