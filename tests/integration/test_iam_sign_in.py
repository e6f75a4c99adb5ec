"""Signing in as in AWS: over TLS, with tokens that live 15 minutes, as a user with the cache's own access string.

The server accepts as passwords the tokens that are valid at the moment; the test moves the time.
"""

import re
import ssl
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis import Redis
from redis.exceptions import RedisError

from infra.cache import ACCESS
from message_buffer.errors import SendFailed, SignInUnavailable, StoreSignInRefused, StoreUnavailable
from message_buffer.lanes.outcomes import MessageBuffered
from message_buffer.lanes.valkey.connection import SIGN_IN_LIFE_MS
from message_buffer.lanes.valkey.keys import wake_key
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.lanes.valkey.sign_in import Opener
from message_buffer.lanes.valkey.store import Store
from message_buffer.lanes.valkey.wake import Wake
from message_buffer.limits import MAX_IDLE_MS
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import ConnectionSettings, IamAccess, ValkeySettings
from tests.support.engine import SETTINGS, Engine, ManualClock, open_line, payload
from tests.support.fakes import RecordedTelemetry
from tests.support.proxy import Proxy, PublicEndpoint, behind_proxy
from tests.support.scenes import SCENES
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyServer

IAM = IamAccess("message-buffer-test", "message-buffer-test", "us-east-1")
VALID_MS = 900_000


class Issuer:
    """IAM and the cache together: signs tokens, and makes the server accept those that are valid now."""

    def __init__(self, admin: Any, clock: ManualClock) -> None:
        self._admin = admin
        self._clock = clock
        self._valid: dict[str, int] = {}
        self.signed: list[str] = []
        self.grants = True
        self.failure: SendFailed | None = None
        self._set_user("reset", *ACCESS.split())

    def sign(self, iam: IamAccess) -> str:
        assert iam == IAM
        if self.failure:
            raise self.failure
        token = f"cache/?X-Amz-Signature=secret-{len(self.signed)}"
        self.signed.append(token)
        if self.grants:
            self._valid[token] = self._clock.now_ms
            self._set_user(f">{token}")
        return token

    def pass_time(self, ms: int) -> None:
        self._clock.advance(ms)
        for token, made_at_ms in list(self._valid.items()):
            if self._clock.now_ms - made_at_ms >= VALID_MS:
                self._withdraw(token)

    def withdraw_all(self) -> None:
        for token in list(self._valid):
            self._withdraw(token)

    def _withdraw(self, token: str) -> None:
        del self._valid[token]
        self._set_user(f"<{token}")

    def _set_user(self, *rules: str) -> None:
        self._admin.execute_command("ACL", "SETUSER", IAM.user, *rules)


class Cache:
    """A function's view of the cache, and the server behind it."""

    def __init__(self, engine: Engine, proxy: Proxy, ca_file: Path | None) -> None:
        self.admin, self.proxy, self.clock = engine.admin, proxy, ManualClock()
        self.issuer = Issuer(engine.admin, self.clock)
        self.telemetry = RecordedTelemetry()
        connection = ConnectionSettings(f"valkeys://127.0.0.1:{proxy.port}", ca_file=str(ca_file) if ca_file else None)
        valkey = ValkeySettings(connection, IAM, SETTINGS, "p")
        self.opener = Opener(valkey, self.issuer.sign, self.telemetry, clock=self.clock)
        self.connection = self.opener.connection()
        self.store = Store(self.connection, SETTINGS, clock=self.clock, shebang=STRICT_SHEBANG)

    @property
    def swallowed(self) -> int:
        return self.telemetry.counts.get("StoreRetries", 0)

    def send(self, message_id: str) -> None:
        outcome = self.store.buffer_message("c", message_id, payload=payload(message_id), timing=Rules().timing)
        assert isinstance(outcome, MessageBuffered)

    def refused_sign_ins(self) -> int:
        return sum(
            int(entry[b"count"])
            for entry in self.admin.execute_command("ACL", "LOG")
            if entry[b"reason"] == b"auth" and entry[b"username"] == IAM.user.encode()
        )


Make = Callable[..., Cache]


@pytest.fixture
def make(unwatched: Engine, valkey: ValkeyServer, tmp_path: Path) -> Iterator[Make]:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    opened: list[Cache] = []
    contexts = []

    def made(host: str = "127.0.0.1", *, trusted: bool = True, kind: type[Proxy] = Proxy) -> Cache:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(host).configure_cert(context)
        behind = behind_proxy(valkey.port, unwatched.admin, context, kind=kind)
        opened.append(Cache(unwatched, behind.__enter__(), ca_file if trusted else None))
        contexts.append(behind)
        return opened[-1]

    unwatched.admin.execute_command("ACL", "LOG", "RESET")
    yield made
    for cache in opened:
        cache.connection.close()
    for behind in contexts:
        behind.__exit__(None, None, None)
    unwatched.admin.execute_command("ACL", "DELUSER", IAM.user)


@pytest.fixture
def cache(make: Make) -> Cache:
    return make()


# -- what the user may do --------------------------------------------------------------------------


def test_every_script_runs_in_every_state_under_the_caches_access_string(cache: Cache) -> None:
    client = cache.opener.open()
    for scene in SCENES:
        cache.admin.flushall()
        engine = Engine(client, cache.admin, shebang=STRICT_SHEBANG)
        scene.state(engine)
        assert scene.call(engine.store, engine) is not None, scene.name
    client.close()
    assert {scene.script for scene in SCENES} == {path.stem for path in LUA_DIRECTORY.glob("*.lua")}
    assert len(cache.issuer.signed) == 1


def test_the_access_string_allows_what_the_scripts_and_the_client_use_and_nothing_more() -> None:
    called = {
        name.lower()
        for path in LUA_DIRECTORY.glob("*.lua")
        for command in re.findall(r"call\(([^,]+),", load_script(path.stem).source.decode())
        for name in re.findall(r"'([A-Z]+)'", command)
    }
    allowed = set(re.findall(r"\+(\S+)", ACCESS))
    of_the_client = {"eval", "evalsha", "blpop"}
    assert allowed - called == of_the_client
    assert called <= allowed


OURS, ANOTHERS = "{b0}:processor", "session:1"


@pytest.mark.parametrize(
    "command",
    [
        ("HGET", ANOTHERS, "field"),
        ("DEL", ANOTHERS),
        ("HGET", "{bx}other", "field"),
        ("BLPOP", ANOTHERS, 1),
        ("EVAL", "return redis.call('HSET', KEYS[1], 'a', 'b')", 1, ANOTHERS),
        ("EVAL", "return redis.call('HGET', ARGV[1], 'a')", 1, OURS, "{b0}another"),
        ("EVAL", "return redis.call('FLUSHALL')", 1, OURS),
        ("EVAL", "return redis.call('GET', KEYS[1])", 1, OURS),
        ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", 0), ("RANDOMKEY",), ("DBSIZE",),
        ("CONFIG", "GET", "*"), ("INFO",), ("SCRIPT", "FLUSH"), ("SCRIPT", "LOAD", "return 1"), ("FUNCTION", "LIST"),
        ("ACL", "WHOAMI"), ("ACL", "LIST"), ("CLIENT", "LIST"), ("CLIENT", "KILL", "TYPE", "normal"), ("MONITOR",),
        ("CLUSTER", "NODES"), ("CLUSTER", "RESET"), ("SHUTDOWN",), ("SWAPDB", 0, 1),
        ("GET", OURS), ("SET", OURS, 1), ("DUMP", OURS), ("RESTORE", OURS, 0, "x"), ("OBJECT", "ENCODING", OURS),
        ("PUBLISH", "channel", "m"), ("SUBSCRIBE", "channel"), ("SORT", OURS), ("MIGRATE", "h", 1, OURS, 0, 1),
    ],
    ids=lambda command: " ".join(map(str, command)),
)  # fmt: skip
def test_what_the_product_does_not_do_is_refused(
    cache: Cache, valkey: ValkeyServer, command: tuple[str | int, ...]
) -> None:
    intruder = Redis(port=valkey.port, username=IAM.user, password=cache.issuer.sign(IAM), protocol=2, driver_info=None)
    with intruder, pytest.raises(RedisError, match=r"has no permissions to|No permissions to access a key|ACL failure"):
        intruder.execute_command(*command)


# -- tokens ----------------------------------------------------------------------------------------


def test_a_refused_token_is_forgotten_and_one_try_made_with_a_new_one(cache: Cache) -> None:
    cache.send("m1")
    cache.issuer.withdraw_all()
    cache.proxy.drop_connections()
    cache.send("m2")
    assert len(cache.issuer.signed) == 2
    assert cache.swallowed >= 1


def test_a_first_sign_in_that_is_refused_gets_one_more_try_then_says_what_to_check(cache: Cache) -> None:
    cache.issuer.grants = False
    with pytest.raises(StoreSignInRefused, match="elasticache:Connect to this cache and this user") as refusal:
        cache.send("m1")
    assert refusal.value.retryable
    assert len(cache.issuer.signed) == 2
    assert "secret" not in "".join(traceback.format_exception(refusal.value))
    cache.issuer.grants = True
    cache.send("m1")
    assert len(cache.issuer.signed) == 3


def test_a_token_that_cannot_be_signed_is_an_unavailable_store_and_leaves_no_line_without_a_sign_in(
    cache: Cache,
) -> None:
    cache.send("m1")
    cache.issuer.pass_time(VALID_MS)
    cache.issuer.failure = SendFailed("sign cache token: NoCredentialsError")
    cache.proxy.drop_connections()
    with pytest.raises(StoreUnavailable, match="NoCredentialsError"):
        cache.send("m2")
    cache.issuer.failure = None
    cache.send("m2")
    assert len(cache.issuer.signed) == 2


# -- connections -----------------------------------------------------------------------------------


def test_a_connection_is_renewed_before_the_cache_would_cut_it(cache: Cache) -> None:
    cache.send("m1")
    before = cache.proxy.connections
    # The connection is in use all the time, because one that is idle for long is renewed in any case.
    times, rest = divmod(SIGN_IN_LIFE_MS - 1, MAX_IDLE_MS)
    for number, passed_ms in enumerate((*[MAX_IDLE_MS] * times, rest)):
        cache.issuer.pass_time(passed_ms)
        cache.send(f"used-{number}")
    assert cache.proxy.connections == before
    cache.issuer.pass_time(1)
    cache.send("m3")
    assert cache.proxy.connections > before
    assert (len(cache.issuer.signed), cache.refused_sign_ins(), cache.swallowed) == (2, 0, 0)


@pytest.mark.parametrize(
    ("host", "trusted", "why"),
    [("cache.example.org", True, "not valid for '127.0.0.1'"), ("127.0.0.1", False, "CERTIFICATE_VERIFY_FAILED")],
    ids=["another host", "unknown authority"],
)
def test_to_a_server_that_cannot_say_who_it_is_no_token_is_sent(make: Make, host: str, trusted: bool, why: str) -> None:
    cache = make(host, trusted=trusted)
    with pytest.raises(StoreUnavailable, match=why):
        cache.send("m1")
    assert cache.issuer.signed == []


# -- a public endpoint -----------------------------------------------------------------------------


@pytest.fixture
def public(make: Make) -> Cache:
    return make(kind=PublicEndpoint)


def endpoint_of(cache: Cache) -> PublicEndpoint:
    assert isinstance(cache.proxy, PublicEndpoint)
    return cache.proxy


def test_at_a_public_endpoint_every_connection_begins_with_its_sign_in(public: Cache) -> None:
    public.send("m1")
    public.proxy.drop_connections()
    public.send("m2")
    wake = Wake(public.opener.open, 0, swallowed=public.opener.swallowed, sleep=lambda _: None)
    open_line(wake)
    public.admin.lpush(wake_key(0), 1)
    assert wake.wait(5)
    wake.close()
    assert endpoint_of(public).first_commands == [b"AUTH"] * 3
    assert len(public.issuer.signed) == 1


def test_a_sign_in_that_a_public_endpoint_cannot_check_is_made_again_by_the_next_call(public: Cache) -> None:
    endpoint_of(public).cannot_check_sign_ins(1)
    with pytest.raises(SignInUnavailable) as refusal:
        public.send("m1")
    assert refusal.value.retryable
    assert endpoint_of(public).first_commands == [b"AUTH"], "another sign-in at once would be throttled, too"
    public.send("m1")
    assert len(public.issuer.signed) == 1, "the token is still good"
