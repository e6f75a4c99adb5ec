"""Opens a store from settings, and signs in with IAM tokens."""

from collections.abc import Callable

from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as LostConnection

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.lanes.valkey.connection import (
    Client,
    Connection,
    connect,
    is_sign_in_refused,
    is_sign_in_unavailable,
)
from message_buffer.lanes.valkey.patience import DialPatience
from message_buffer.lanes.valkey.store import Store
from message_buffer.settings import IamAccess, ValkeySettings

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
        if not self._token or not 0 <= self._clock() - self._made_at_ms <= SIGN_IN_TOKEN_REUSE_MS:
            self._renew()
        return self._iam.user, self._token

    def _renew(self) -> None:
        made_at_ms = self._clock()
        try:
            self._token = self._sign(self._iam)
        except SendFailed as error:
            # redis-py closes a connection only after one of its own errors. After another error it would keep a
            # connection that never signed in.
            raise LostConnection(str(error)) from error
        self._made_at_ms = made_at_ms

    def forget(self) -> None:
        """Forget a token that was refused; the next sign-in makes a new one."""
        self._token = ""


class Opener:
    """Opens clients of one Valkey. The clients share a sign-in token."""

    def __init__(
        self,
        valkey: ValkeySettings,
        sign: SignToken,
        *,
        count_swallowed: Callable[[], None],
        count_sign_in_unavailable: Callable[[], None] = lambda: None,
        warn_slow: Callable[[int], None] = lambda _: None,
        clock: Clock = system_clock,
    ) -> None:
        self._settings = valkey.connection
        self._tokens = IamTokens(valkey.iam, sign, clock=clock) if valkey.iam else None
        self._count_swallowed = count_swallowed
        self.sign_in_unavailable = count_sign_in_unavailable
        self._warn_slow = warn_slow

    def open(self) -> Client:
        return connect(self._settings, self._tokens)

    def swallowed(self, error: Exception) -> None:
        """Count an error that no caller will see. Forget the token if the server refused it."""
        if self._tokens and is_sign_in_refused(error):
            self._tokens.forget()
        if is_sign_in_unavailable(error):
            self.sign_in_unavailable()
        self._count_swallowed()

    def connected(self, took_ms: int) -> None:
        """Warn if a dial took longer than the time-out of an answer."""
        if took_ms > self._settings.answer_timeout_ms:
            self._warn_slow(took_ms)


def open_store(
    valkey: ValkeySettings, opener: Opener, *, patience: DialPatience | None = None, retry_within_ms: int | None = None
) -> Store:
    """Return a store. Its first call opens the connection."""
    connection = Connection(
        opener.open,
        patience=patience or DialPatience(valkey.connection.connect_timeout_ms),
        retry_within_ms=retry_within_ms,
        swallowed=opener.swallowed,
        connected=opener.connected,
        sign_in_unavailable=opener.sign_in_unavailable,
    )
    return Store(connection, valkey.store)
