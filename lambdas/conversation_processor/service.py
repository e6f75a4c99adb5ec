"""The conversation processor: takes the batch of one conversation, emits it and completes it."""

from collections.abc import Callable
from random import SystemRandom
from uuid import uuid4

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import StoreError
from message_buffer.events.emission import Emission, TimeLeft, back_off_ms
from message_buffer.heartbeat import Heartbeat
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken, RunStale
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.lanes.valkey.store import Store
from message_buffer.limits import LATE_MS, LATE_PARTS
from message_buffer.telemetry import Telemetry

# A conversation processor renews its token four times in the token's lifetime. A renewal on an open connection fails
# within 1.6 seconds. So after one failed renewal, the next one still comes in time.
TOKEN_RENEWALS = 4
_random = SystemRandom().random


class TokenEnded(Exception):
    """Raised if the token has expired. Another run may take the batch, so this run must put it back, not emit it."""


class Token(TimeLeft):
    """Gives a run the right to emit the batch that it has taken. A heartbeat renews the token.

    No call may begin after the token has expired, or with too little `time` left until Lambda ends the run.
    """

    def __init__(
        self,
        store: Store,
        conversation: str,
        name: str,
        *,
        until_ms: int,
        time: TimeLeft,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._time = time
        self._name = name
        self._store = store
        self._conversation = conversation
        self._until_ms = until_ms
        self._telemetry = telemetry
        self._clock = clock

    def kept(self) -> Heartbeat:
        """Return a context manager that renews the token while its block runs."""
        return Heartbeat(self._renew, every_seconds=self._store.settings.token_ms / TOKEN_RENEWALS / 1_000)

    def require_a_call(self) -> None:
        if self._clock() >= self._until_ms:
            raise TokenEnded
        self._time.require_a_call()

    def _renew(self) -> None:
        try:
            renewed = self._store.renew_token(self._conversation, self._name)
        except StoreError as error:
            if not error.retryable:
                raise
            self._telemetry.count("StoreFailures")
            return
        if isinstance(renewed, RunStale):
            self._until_ms = 0
            raise TokenEnded
        self._until_ms = renewed.expires_at_ms


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

    def process(self, conversation: str, time: TimeLeft, *, claim: Json | None = None) -> None:
        """Emit and complete the conversation's batch, or put it back for another attempt. `claim`: see the handler."""
        token = uuid4().hex
        taken = self._lane.take_batch(conversation, token)
        if not isinstance(taken, BatchTaken):
            # Another run has the batch or has completed it, because Lambda may deliver one event twice.
            self._telemetry.info("nothing to take", conversation=conversation, outcome=type(taken).__name__)
            return
        self._report_late(conversation, taken, claim or {})
        held = Token(
            self._lane, conversation, token,
            until_ms=taken.until_ms, time=time, telemetry=self._telemetry, clock=self._clock,
        )  # fmt: skip
        try:
            with held.kept():
                tail = self._emission.send(conversation, taken, held)
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
        completed = self._lane.complete_batch(conversation, token, tail=tail)
        if isinstance(completed, RunStale):
            self._telemetry.warn("completed too late", conversation=conversation, batch=taken.batch_id)
        self._emission.write_counts(time)

    def _report_late(self, conversation: str, taken: BatchTaken, claim: Json) -> None:
        late_ms = self._clock() - taken.due_at_ms
        if "claimedAt" in claim and late_ms >= LATE_MS / LATE_PARTS:
            claimed_late_ms = max(claim["claimedAt"] - taken.due_at_ms, 0)
            self._telemetry.info(
                "taken late",
                conversation=conversation, batch=taken.batch_id, attempt=taken.attempt, late_ms=late_ms,
                claimed_late_ms=claimed_late_ms, waited_for_slot=claim["waitedForSlot"],
            )  # fmt: skip

    def _try_later(self, conversation: str, token: str, taken: BatchTaken, error: Exception) -> None:
        wait_ms = back_off_ms(taken.attempt, self._random)
        self._telemetry.failed(
            "emit failed", error,
            conversation=conversation, batch=taken.batch_id, attempt=taken.attempt, retry_in_ms=wait_ms,
        )  # fmt: skip
        self._telemetry.count("Retries")
        self._put_back(conversation, token, wait_ms=wait_ms)

    def _put_back(self, conversation: str, token: str, *, wait_ms: int) -> None:
        self._lane.retry_batch(conversation, token, retry_at_ms=self._clock() + wait_ms)
