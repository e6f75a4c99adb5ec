"""The token, which gives a run the right to emit the batch that it has taken. A heartbeat renews the token."""

from message_buffer.clock import Clock
from message_buffer.errors import StoreError
from message_buffer.events.emission import TimeLeft
from message_buffer.heartbeat import Heartbeat
from message_buffer.lanes.outcomes import RunStale
from message_buffer.lanes.valkey.store import Store
from message_buffer.telemetry import Telemetry

# A conversation processor renews its token four times in the token's lifetime. A renewal on an open connection fails
# within 1.6 seconds. So after one failed renewal, the next one still comes in time.
TOKEN_RENEWALS = 4


class TokenEnded(Exception):
    """Raised if the token has expired. Another run may take the batch, so this run must put it back, not emit it."""


class Token:
    def __init__(
        self, store: Store, conversation: str, name: str, *, until_ms: int, telemetry: Telemetry, clock: Clock
    ) -> None:
        self._name = name
        self._store = store
        self._conversation = conversation
        self._until_ms = until_ms
        self._telemetry = telemetry
        self._clock = clock

    def kept(self) -> Heartbeat:
        """Return a context manager that renews the token while its block runs."""
        return Heartbeat(self._renew, every_seconds=self._store.settings.token_ms / TOKEN_RENEWALS / 1_000)

    def require(self) -> None:
        """Raise TokenEnded if the token has expired."""
        if self._clock() >= self._until_ms:
            raise TokenEnded

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


class TimeOfToken(TimeLeft):
    """The time left until Lambda ends the run. No call may begin after the run's token has expired."""

    def __init__(self, time: TimeLeft, token: Token) -> None:
        self._time = time
        self._token = token

    def require_a_call(self) -> None:
        self._token.require()
        self._time.require_a_call()
