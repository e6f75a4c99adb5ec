"""One connection to Valkey, kept across calls, and the one place where its errors become ours."""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    MaxConnectionsError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from lambdas.shared.errors import (
    InvalidInput,
    ScriptInvariantBroken,
    StoreError,
    StoreOutOfMemory,
    StoreThrottled,
    StoreUnavailable,
)
from lambdas.shared.scripts import Script

Client = Redis | RedisCluster

# Passing states of a server or a cluster; a second try may find it well. A lost answer is one of them:
# every script may be repeated, so nobody needs to know whether the first try arrived.
_TRANSIENT = (
    LostConnection, NoAnswer, BusyLoadingError, ReadOnlyError, TryAgainError, AskError,
    ClusterDownError, ClusterError, RedisClusterException, MaxConnectionsError,
)  # fmt: skip


class ConnectionSettings(NamedTuple):
    """Where Valkey is and how long to wait for it: the product of the last three bounds a call."""

    url: str  # valkey://[user:password@]host:port[?cluster=true], valkeys:// for TLS
    connect_timeout_ms: int = 400
    answer_timeout_ms: int = 800
    attempts: int = 2
    ca_file: str | None = None


def connect(settings: ConnectionSettings, credential_provider: Any = None) -> Client:
    """A client that has not connected yet when standalone; a cluster client has asked for the topology."""
    url = urlsplit(settings.url)
    if url.scheme not in ("valkey", "valkeys") or not url.hostname:
        raise InvalidInput(
            f"a Valkey URL reads valkey://host:port or valkeys://host:port (TLS), not {url.scheme}://{url.hostname}"
        )
    options: dict[str, Any] = {
        "host": url.hostname,
        "port": url.port or 6379,
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "socket_timeout": settings.answer_timeout_ms / 1000,
        "protocol": 2,
        # Tries are counted in one place: Connection.run.
        "retry": Retry(NoBackoff(), 0),
    }
    if credential_provider:
        options["credential_provider"] = credential_provider
    elif url.username or url.password:
        options |= {"username": unquote(url.username or "default"), "password": unquote(url.password or "")}
    if url.scheme == "valkeys":
        options |= {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
        if settings.ca_file:
            options["ssl_ca_certs"] = settings.ca_file
    try:
        if parse_qs(url.query).get("cluster") == ["true"]:
            return RedisCluster(**options)
        return Redis(**options)
    except RedisError as error:
        raise as_store_error(error, "connect") from error


class Connection:
    """Runs scripts: one round trip each, the server's script cache healed, transient faults tried again."""

    def __init__(self, open_client: Callable[[], Client], attempts: int = 2) -> None:
        self._open_client = open_client
        self._client: Client | None = None
        self._attempts = attempts

    def run(self, script: Script, keys: list[bytes], args: tuple[str | bytes | int | float, ...]) -> list[Any]:
        for attempt in range(1, self._attempts + 1):
            try:
                return self._run_once(script, keys, args)
            except RedisError as error:
                failure = as_store_error(error, script.name)
                if attempt == self._attempts or not isinstance(failure, StoreUnavailable):
                    raise failure from error
            except StoreUnavailable:  # a cluster client could not be made
                if attempt == self._attempts:
                    raise
        raise AssertionError("attempts must be at least 1")

    def _run_once(self, script: Script, keys: list[bytes], args: tuple[str | bytes | int | float, ...]) -> list[Any]:
        if self._client is None:
            self._client = self._open_client()
        try:
            reply = self._client.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            # The server forgot its scripts: a restart, a fail-over, SCRIPT FLUSH. EVAL teaches it again.
            reply = self._client.execute_command("EVAL", script.source, len(keys), *keys, *args)
        if not isinstance(reply, list) or not reply or reply[0].decode() not in script.words:
            raise ScriptInvariantBroken(f"{script.name} answered something its header does not name")
        return reply

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def as_store_error(error: RedisError, doing: str) -> StoreError:
    text = str(error)
    if isinstance(error, OutOfMemoryError) or "OOM " in text:
        return StoreOutOfMemory(
            f"{doing}: Valkey is at its storage limit; raise the cache's maximum or let it drain ({text})"
        )
    # The service's wording at its request limit is not documented; both known forms hold this word.
    if "throttl" in text.lower():
        return StoreThrottled(f"{doing}: Valkey is at its request limit; raise the cache's ECPU maximum ({text})")
    if isinstance(error, _TRANSIENT):
        return StoreUnavailable(f"{doing}: Valkey cannot be reached or did not answer in time ({text})")
    return ScriptInvariantBroken(f"{doing}: {text}")
