"""Errors and retries if Valkey cannot be reached, is slow, has lost its scripts and data, or refuses the sign-in."""

import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import ConnectionPool, Redis, SSLConnection

from message_buffer.errors import InvalidInput, StoreSignInRefused, StoreUnavailable
from message_buffer.lanes.outcomes import MessageBuffered, MessageDuplicate
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.patience import DialPatience
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import ConnectionSettings
from tests.support.bad_servers import black_hole
from tests.support.engine import SETTINGS, Engine, accepted, payload
from tests.support.proxy import behind_proxy
from tests.support.valkey_server import APP_PASSWORD, STRICT_SHEBANG, ValkeyServer, free_port

TIMING = Rules().timing


def store_at(port: int, *, attempts: int = 2, user: str = "", timeout_ms: int = 5_000) -> Store:
    url = f"valkey://{user}127.0.0.1:{port}"
    settings = ConnectionSettings(url, connect_timeout_ms=timeout_ms, answer_timeout_ms=timeout_ms)
    connection = Connection(lambda: connect(settings), attempts, patience=DialPatience(settings.connect_timeout_ms))
    return Store(connection, SETTINGS, shebang=STRICT_SHEBANG)


def send(store: Store, message_id: str = "m1") -> MessageBuffered | MessageDuplicate:
    return accepted(store.buffer_message("c", message_id, payload=payload(message_id), timing=TIMING))


def within(seconds: float, act: Callable[[], object]) -> None:
    began = time.monotonic()
    act()
    assert time.monotonic() - began < seconds


def refused(store: Store) -> Callable[[], object]:
    def call() -> None:
        with pytest.raises(StoreUnavailable, match="cannot be reached or did not answer in time") as refusal:
            send(store)
        assert refusal.value.retryable

    return call


# -- away ------------------------------------------------------------------------------------------


def test_a_refused_connection_is_an_unavailable_store() -> None:
    within(5, refused(store_at(free_port())))


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_server_that_never_answers_is_left_after_the_time_of_one_dial(attempts: int) -> None:
    with black_hole() as server:
        within(0.15 + 2, refused(store_at(server.port, attempts=attempts, timeout_ms=150)))
        assert 1 <= server.connections <= 2, "the call has no time left for another dial"


def test_one_connection_serves_all_calls(unwatched: Engine, valkey: ValkeyServer) -> None:
    with behind_proxy(valkey.port, unwatched.admin) as proxy:
        store = store_at(proxy.port, user=f"app:{APP_PASSWORD}@")
        send(store, "m0")
        before = proxy.connections
        for n in range(1, 100):
            assert send(store, f"m{n}").count == n + 1
        assert proxy.connections == before == 1
        store._connection.close()


@pytest.fixture
def mortal() -> Iterator[ValkeyServer]:
    server = ValkeyServer().start()
    yield server
    server.stop()


@pytest.mark.slow
def test_a_thread_that_drops_a_client_does_not_end_the_call_of_another(unwatched: Engine, valkey: ValkeyServer) -> None:
    settings = ConnectionSettings(f"valkey://127.0.0.1:{valkey.port}", 5_000, 30_000)
    client = connect(settings)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.execute_command, "BLPOP", "{b0}:list", 30)
        while not unwatched.admin.info("clients")["blocked_clients"]:
            assert not answer.done()
        client.close()
        unwatched.admin.rpush("{b0}:list", "x")
        assert list(answer.result()) == [b"{b0}:list", b"x"]
    client.close()


def test_a_killed_server_is_unavailable_and_used_again_once_it_is_back(
    valkey: ValkeyServer, mortal: ValkeyServer
) -> None:
    store = store_at(mortal.port, user=f"app:{APP_PASSWORD}@")
    assert isinstance(send(store), MessageBuffered)
    mortal.kill()
    within(5, refused(store))
    mortal.start()
    assert isinstance(send(store), MessageBuffered), "no connection, no script, no data: it begins again"
    assert isinstance(send(store), MessageDuplicate)
    store._connection.close()


# -- not ours --------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["app:wrong-password@", "nobody:app-password@"])
def test_a_wrong_password_is_a_refused_sign_in_and_is_not_repeated_in_the_error(
    valkey: ValkeyServer, user: str
) -> None:
    with pytest.raises(StoreSignInRefused, match="user and password") as refusal:
        send(store_at(valkey.port, user=user))
    assert "-password" not in str(refusal.value)


def test_user_and_password_may_hold_any_character(unwatched: Engine, valkey: ValkeyServer) -> None:
    unwatched.admin.execute_command("ACL", "SETUSER", "a:b", "reset", "on", ">p@ss/w?rd#%", "~*", "+@all")
    assert isinstance(send(store_at(valkey.port, user="a%3Ab:p%40ss%2Fw%3Frd%23%25@")), MessageBuffered)
    unwatched.admin.execute_command("ACL", "DELUSER", "a:b")


@pytest.mark.parametrize(
    "url",
    [
        "redis+unix://127.0.0.1:6379",
        "valkey://",
        "valkey:///0",
        "",
        "valkey://127.0.0.1:port",
        "valkey://[::1",
    ],
)
def test_a_url_that_leads_nowhere_is_refused_and_shown_without_its_password(url: str) -> None:
    secret = url.replace("://", "://app:s3cret@")
    with pytest.raises(InvalidInput, match="a Valkey URL reads valkey://host:port") as refusal:
        connect(ConnectionSettings(secret))
    assert "s3cret" not in str(refusal.value)


def test_a_password_with_an_unescaped_slash_is_not_shown_as_a_bad_port() -> None:
    url = "valkey://app:s3cret/word@127.0.0.1:6379"
    with pytest.raises(InvalidInput, match="a Valkey URL reads valkey://host:port") as refusal:
        connect(ConnectionSettings(url))
    assert "s3cret" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    ("scheme", "has_tls"), [("redis", False), ("valkey", False), ("rediss", True), ("valkeys", True)]
)
def test_a_url_that_ends_in_s_means_tls_with_a_checked_certificate(
    scheme: str, has_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionPool, "get_connection", lambda _: None)
    monkeypatch.setattr(ConnectionPool, "release", lambda *_: None)
    client = connect(ConnectionSettings(f"{scheme}://127.0.0.1"))
    assert isinstance(client, Redis)
    pool = client.connection_pool
    assert issubclass(pool.connection_class, SSLConnection) == has_tls
    assert (pool.connection_kwargs.get("ssl_cert_reqs") == "required") == has_tls
    assert (pool.connection_kwargs.get("ssl_check_hostname") is True) == has_tls
    client.close()
