"""One connection to Valkey, kept across calls. Only this module turns Valkey's errors into our StoreErrors."""

from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

from redis import ConnectionPool, RedisError
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MaxConnectionsError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import (
    InvalidInput,
    ScriptInvariantBroken,
    SignInUnavailable,
    StoreError,
    StoreOutOfMemory,
    StoreSignInRefused,
    StoreThrottled,
    StoreUnavailable,
)
from message_buffer.lanes.valkey.dial import BoundedConnection, Dial, Node, TlsLine
from message_buffer.lanes.valkey.patience import DialPatience
from message_buffer.lanes.valkey.scripts import Argument, Script
from message_buffer.limits import HOUR_MS, MAX_IDLE_MS, VALKEY_ATTEMPTS
from message_buffer.settings import ConnectionSettings

# ElastiCache closes a connection 12 hours after its IAM sign-in, so a client is replaced an hour before that.
SIGN_IN_LIFE_MS = 11 * HOUR_MS

# Errors after which a second try may succeed, because they show a temporary state of a server or a cluster. A lost
# reply is such an error, because every script may be repeated, even if the server has already run it.
_TRANSIENT = (
    LostConnection, NoAnswer, BusyLoadingError, ReadOnlyError, TryAgainError, AskError, MovedError, ClusterDownError,
    MaxConnectionsError, InvalidResponse,
)  # fmt: skip


# Open a new client after these errors. LostConnection: a lost connection does not dial again by itself. NoAnswer: a
# late answer could be read as the answer to the next call. ReadOnlyError and MovedError: the server has become a
# replica, so its address must be resolved again.
_ENDS_THE_CLIENT = (LostConnection, NoAnswer, ReadOnlyError, MovedError)

# A function that counts an error which the caller does not see, because a second try follows.
Swallowed = Callable[[Exception], None]


# The server's error codes for temporary states for which redis-py has no exception.
_TRANSIENT_CODES = {"BUSY", "UNKILLABLE", "NOREPLICAS", "MISCONF"}

# ElastiCache's answers to a sign-in that it could not check. A private endpoint names the cause. A public endpoint
# gives the same text if sign-ins are throttled, if IAM cannot be reached, and if the server is overloaded.
_SIGN_IN_UNAVAILABLE = ("service is not available", "exceeded limit of iam authentication requests")

# The scheme of a URL -> whether it means TLS. The schemes of Redis are accepted, too, because Valkey uses the same
# protocol.
TLS_BY_SCHEME = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}


class Client(Protocol):
    """The part of redis-py's client that the store uses."""

    def execute_command(self, *args: Argument) -> Any: ...

    def close(self) -> None: ...


def connect(settings: ConnectionSettings, credential_provider: CredentialProvider | None = None) -> Client:
    """Return a client with an open connection."""
    # The error shows neither the URL nor the parser's message, because both may contain a password.
    refusal = InvalidInput("a Valkey URL reads valkey://host:port, or valkeys://host:port for TLS")
    try:
        url = urlsplit(settings.url)
        host, port = url.hostname, url.port or 6379
    except ValueError:
        raise refusal from None
    if host is None or url.scheme not in TLS_BY_SCHEME:
        raise refusal
    options: dict[str, Any] = {
        "socket_connect_timeout": settings.connect_timeout_ms / 1000,
        "socket_timeout": settings.answer_timeout_ms / 1000,
        "protocol": 2,
        # Turn off redis-py's retries, because Connection.run repeats calls.
        "retry": Retry(NoBackoff(), 0),
        # Otherwise redis-py sends its name to the server, which costs two more round trips for each connection.
        "driver_info": None,
    }
    if credential_provider:
        options["credential_provider"] = credential_provider
    elif url.username or url.password:
        options |= {"username": unquote(url.username or "default"), "password": unquote(url.password or "")}
    line = TlsLine if TLS_BY_SCHEME[url.scheme] else BoundedConnection
    if line is TlsLine:
        options |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        if settings.ca_file:
            options["ssl_ca_certs"] = settings.ca_file
    node = Node.from_pool(ConnectionPool(connection_class=line, host=host, port=port, **options))
    node.connection_pool.release(node.connection_pool.get_connection())
    return cast(Client, node)


class Connection:
    """Runs each script in one round trip, and repeats a call after a fault. Threads may share a connection."""

    def __init__(
        self,
        open_client: Callable[[], Client],
        attempts: int = VALKEY_ATTEMPTS,
        *,
        patience: DialPatience | None = None,
        retry_within_ms: int | None = None,
        swallowed: Swallowed = lambda _: None,
        connected: Callable[[int], None] = lambda _: None,
        clock: Clock = system_clock,
    ) -> None:
        self._open_client = open_client
        self._client: Client | None = None
        self._opened_at_ms = self._used_at_ms = 0
        self._dial: Dial[Client] | None = None
        self._dials = Lock()
        self._is_doubted = False
        self._attempts = attempts
        self._patience = patience or DialPatience()
        # If the first try took longer than this, do not try again, because the caller can use the other lane.
        self._retry_within_ms = retry_within_ms
        self._swallowed = swallowed
        self._on_connected = connected
        # Use wall time, because the monotonic clock may stop while Lambda suspends the instance, but sign-ins still
        # expire.
        self._clock = clock

    def run(self, script: Script, keys: list[bytes], args: tuple[Argument, ...]) -> list[Any]:
        attempt, signed_in_anew, redialled, called_at_ms = 1, False, False, self._clock()
        began_ms, is_reused = called_at_ms, False
        while True:
            try:
                client = self._client
                is_reused = client is not None and self._is_fresh(began_ms)
                if client is None or not is_reused:
                    client = self._connected(called_at_ms)
                    began_ms = self._clock()  # the time of the dial does not count against a second try
                self._used_at_ms = began_ms
                return self._run_once(client, script, keys, args)
            except StoreSignInRefused as error:
                if signed_in_anew:
                    raise
                signed_in_anew = True
                self._swallowed(error)
            except SignInUnavailable:
                # Do not sign in again at once, because the cache may be throttling sign-ins. The caller pauses first.
                raise
            except StoreUnavailable as error:
                if is_reused and not redialled and isinstance(error.__cause__, LostConnection):
                    redialled = True  # the connection was probably lost while it was idle: this was no attempt
                elif attempt >= self._attempts or self._is_late(began_ms):
                    raise
                else:
                    attempt += 1
                self._swallowed(error)

    def _is_fresh(self, now_ms: int) -> bool:
        """Return whether the open client's sign-in is valid and its connections were used lately."""
        # Another thread may have used the client after this one read the clock.
        is_idle = abs(now_ms - self._used_at_ms) > MAX_IDLE_MS
        return 0 <= now_ms - self._opened_at_ms < SIGN_IN_LIFE_MS and not is_idle

    def _is_late(self, began_ms: int) -> bool:
        return self._retry_within_ms is not None and self._clock() - began_ms > self._retry_within_ms

    def _run_once(self, client: Client, script: Script, keys: list[bytes], args: tuple[Argument, ...]) -> list[Any]:
        try:
            try:
                reply = client.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
            except NoScriptError:
                # The server forgets scripts at a restart or a fail-over. EVAL runs the script and stores it.
                reply = client.execute_command("EVAL", script.source, len(keys), *keys, *args)
        except RedisError as error:
            self._is_doubted = self._is_doubted or isinstance(error, NoAnswer)
            if isinstance(error, _ENDS_THE_CLIENT):
                with self._dials:
                    if self._client is client:
                        self._close()
            raise as_store_error(error, script.name) from error
        if not (isinstance(reply, list) and reply and isinstance(reply[0], bytes) and reply[0] in script.read):
            raise ScriptInvariantBroken(f"{script.name} returned a word that its header does not name")
        return reply

    def prepare(self) -> None:
        """Begin the first dial in a thread, so that the caller can do other work meanwhile."""
        with self._dials:
            if self._client is None:
                self._dial_of(self._clock())

    def _connected(self, called_at_ms: int) -> Client:
        """Return a client younger than SIGN_IN_LIFE_MS. Raise StoreUnavailable if the dial outlasts the caller's
        patience. The dial continues, and a later call uses its connection."""
        with self._dials:
            now_ms = self._clock()
            patience_ms = self._patience.left_ms(is_doubted=self._is_doubted) - max(now_ms - called_at_ms, 0)
            if self._client is not None and self._is_fresh(now_ms):
                return self._client  # another thread has opened it
            dial = self._dial_of(now_ms)
        try:
            client = dial.wait(patience_ms / 1_000)
        except Exception as error:
            with self._dials:
                self._is_doubted = self._is_doubted or not is_sign_in_refused(error)
                if self._dial is dial:
                    self._dial = None
            if isinstance(error, RedisError):
                raise as_store_error(error, "connect") from error
            raise
        if client is None:
            # Count from the beginning of the dial or of the call, whichever was earlier, because a call may wait for
            # more than one dial.
            waited_ms = self._clock() - min(dial.began_ms, called_at_ms)
            raise StoreUnavailable(
                f"connect: Valkey cannot be reached or did not answer in time (still connecting after {waited_ms} ms)"
            )
        with self._dials:
            if self._dial is dial:
                self._client, self._opened_at_ms, self._dial = client, dial.began_ms, None
                self._used_at_ms = now_ms
                self._is_doubted = False
                self._on_connected(dial.took_ms)
        return client

    def _dial_of(self, now_ms: int) -> Dial[Client]:
        """Return the dial that is in progress, or begin one."""
        self._close()
        # If a dial has exceeded its time limit, begin another. This happens only if the instance was suspended or DNS
        # is slow.
        dial = self._dial
        if dial is not None:
            is_open = dial.is_open
            if not 0 <= now_ms - dial.began_ms <= (MAX_IDLE_MS if is_open else self._patience.connect_ms):
                dial.abandon()
                self._dial, self._is_doubted = None, self._is_doubted or not is_open
        if self._dial is None:
            self._dial = Dial(self._open_client, began_ms=now_ms)
        return self._dial

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        with self._dials:
            self._close()
            if self._dial is not None:
                self._dial.abandon()
                self._dial = None


def is_sign_in_refused(error: BaseException | None) -> bool:
    """Return whether a refused sign-in is the error or its cause."""
    while error and not isinstance(error, AuthenticationError):
        error = error.__cause__
    return error is not None


def is_sign_in_unavailable(error: BaseException | None) -> bool:
    """Return whether the error or its cause is that the cache could not check a sign-in."""
    while error and not (isinstance(error, ResponseError) and str(error).lower().endswith(_SIGN_IN_UNAVAILABLE)):
        error = error.__cause__
    return error is not None


def as_store_error(error: Exception, doing: str) -> StoreError:
    """Return our StoreError for an error of redis-py or the server; `doing` names the call that failed."""
    if is_sign_in_refused(error):
        return StoreSignInRefused(
            f"{doing}: Valkey refused the sign-in; check that the function's role may elasticache:Connect to this "
            "cache and this user, that the user is in the cache's user group, and that both names are right and in "
            "lower case; or, where the URL has them, that its user and password are right"
        )
    if is_sign_in_unavailable(error):
        return SignInUnavailable(
            f"{doing}: Valkey cannot check sign-ins for now: too many clients sign in at once, or IAM or the cache is"
            " overloaded"
        )
    # A server that does not know a command quotes the arguments. Remove them, as they may contain a message or a token.
    text = str(error).partition(", with args beginning with")[0]
    if isinstance(error, OutOfMemoryError) or "OOM " in text:
        return StoreOutOfMemory(
            f"{doing}: Valkey is at its storage limit; raise the cache's maximum or let it drain ({text})"
        )
    # ElastiCache does not document its error at the request limit. Both known texts of the error contain this word.
    if "throttl" in text.lower():
        return StoreThrottled(f"{doing}: Valkey is at its request limit; raise the cache's ECPU maximum ({text})")
    if isinstance(error, _TRANSIENT) or text.split(" ", 1)[0] in _TRANSIENT_CODES:
        return StoreUnavailable(f"{doing}: Valkey cannot be reached or did not answer in time ({text})")
    return ScriptInvariantBroken(f"{doing}: {text}")
