"""From settings to an open store."""

from collections.abc import Callable
from typing import NamedTuple

from redis.credentials import CredentialProvider

from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.store.connection import Client, Connection, ConnectionSettings, connect
from lambdas.shared.store.store import Store, StoreSettings

# A token is good for 15 minutes, and only for signing in.
TOKEN_LIFE_MS = 600_000


class IamAccess(NamedTuple):
    """Who signs in to the cache, where it takes IAM tokens."""

    user: str
    cache_name: str
    region: str


class ValkeySettings(NamedTuple):
    connection: ConnectionSettings
    iam: IamAccess | None
    store: StoreSettings


SignToken = Callable[[IamAccess], str]


class IamTokens(CredentialProvider):
    """Signs in with an IAM token; a new one is made when the last gets old."""

    def __init__(self, iam: IamAccess, sign: SignToken, *, clock: Clock = system_clock) -> None:
        self._iam = iam
        self._sign = sign
        # Wall time: a frozen function's own clock may stand still while its token grows old.
        self._clock = clock
        self._token = ""
        self._made_at_ms = 0

    def get_credentials(self) -> tuple[str, str]:
        if not self._token or self._clock() - self._made_at_ms > TOKEN_LIFE_MS:
            self._token, self._made_at_ms = self._sign(self._iam), self._clock()
        return self._iam.user, self._token


def client_opener(valkey: ValkeySettings, sign: SignToken) -> Callable[[], Client]:
    """Opens clients of this Valkey, which share their tokens."""
    credentials = IamTokens(valkey.iam, sign) if valkey.iam else None
    return lambda: connect(valkey.connection, credentials)


def open_store(valkey: ValkeySettings, open_client: Callable[[], Client]) -> Store:
    return Store(Connection(open_client), valkey.store)
