"""Opens connections to Valkey from settings, and signs in with IAM tokens."""

from collections.abc import Callable

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as LostConnection

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.lanes.valkey.connection import Client, Connection, connect, is_sign_in_refused
from message_buffer.lanes.valkey.patience import DialPatience
from message_buffer.settings import IamAccess, ValkeySettings
from message_buffer.telemetry import Telemetry

# A token is valid for 15 minutes.
SIGN_IN_TOKEN_REUSE_MS = 10 * 60_000
SignToken = Callable[[IamAccess], str]


class IamTokens(CredentialProvider):
    """Signs in with an IAM token, and makes a new token when the last one is older than SIGN_IN_TOKEN_REUSE_MS."""

    def __init__(self, iam: IamAccess, sign: SignToken, *, clock: Clock = system_clock) -> None:
        self._iam = iam
        self._sign = sign
        # Use wall time, because the monotonic clock may stop while Lambda suspends the instance, but tokens still age.
        self._clock = clock
        self._token = ""
        self._made_at_ms = 0

    def get_credentials(self) -> tuple[str, str]:
        now_ms = self._clock()
        if not self._token or not 0 <= now_ms - self._made_at_ms <= SIGN_IN_TOKEN_REUSE_MS:
            try:
                self._token = self._sign(self._iam)
            except SendFailed as error:
                # redis-py closes a connection only after one of its own errors. After another error it would keep a
                # connection that never signed in.
                raise LostConnection(str(error)) from error
            self._made_at_ms = now_ms
        return self._iam.user, self._token

    def forget(self) -> None:
        """Forget a token that was refused; the next sign-in makes a new one."""
        self._token = ""


class Opener:
    """Opens clients and connections of one Valkey. They share a sign-in token."""

    def __init__(
        self, valkey: ValkeySettings, sign: SignToken, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> None:
        self._settings = valkey.connection
        self._tokens = IamTokens(valkey.iam, sign, clock=clock) if valkey.iam else None
        self._telemetry = telemetry
        self._clock = clock

    def connection(self, *, patience: DialPatience | None = None, retry_within_ms: int | None = None) -> Connection:
        """Return a connection that the first call opens."""
        return Connection(
            self.open,
            patience=patience or DialPatience(self._settings.connect_timeout_ms),
            retry_within_ms=retry_within_ms,
            swallowed=self.swallowed,
            connected=self._connected,
            clock=self._clock,
        )

    def open(self) -> Client:
        return connect(self._settings, self._tokens)

    def swallowed(self, error: Exception) -> None:
        """Count an error that no caller will see. Forget the token if the server refused it."""
        if self._tokens and is_sign_in_refused(error):
            self._tokens.forget()
        self._telemetry.count("StoreRetries")

    def _connected(self, took_ms: int) -> None:
        if took_ms > self._settings.answer_timeout_ms:
            self._telemetry.warn("slow connection to Valkey", took_ms=took_ms)
