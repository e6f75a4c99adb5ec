"""Calls wait for a slow new connection, but not for a silent old one. A dial continues when its call has given up."""

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from message_buffer.errors import StoreUnavailable
from message_buffer.lanes.outcomes import MessageBuffered
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.patience import DialPatience, WebhookPatience
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import ConnectionSettings
from tests.support.bad_servers import black_hole
from tests.support.engine import SETTINGS, Engine, ManualClock, payload
from tests.support.proxy import Proxy
from tests.support.valkey_server import APP_PASSWORD, APP_USER, STRICT_SHEBANG, ValkeyServer

ANSWER_MS = 200
SLOW_SECONDS = 0.6
CONNECT_MS = 5_000
# A call that must give up early ends within this time, which is far less than a dial's limit, `CONNECT_MS`.
MUCH_LESS_SECONDS = 3.0


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["plain", "tls"])
def slow(
    request: pytest.FixtureRequest, unwatched: Engine, valkey: ValkeyServer, authority: trustme.CA
) -> Iterator[Proxy]:
    """Yield a proxy that delays each new connection; the TLS handshake comes after the delay."""
    context = None
    if request.param == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
    proxy = Proxy(valkey.port, context, delay_seconds=SLOW_SECONDS)
    proxy.scheme = "valkeys" if context else "valkey"  # type: ignore[attr-defined]
    yield proxy
    proxy.close()


@pytest.fixture
def settings(authority: trustme.CA, tmp_path: Path) -> Callable[..., ConnectionSettings]:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))

    def made(
        port: int, *, scheme: str = "valkey", connect_ms: int = CONNECT_MS, user: bool = True
    ) -> ConnectionSettings:
        sign_in = f"{APP_USER}:{APP_PASSWORD}@" if user else ""
        url = f"{scheme}://{sign_in}127.0.0.1:{port}"
        return ConnectionSettings(url, connect_ms, ANSWER_MS, str(ca_file))

    return made


def store_on(connection: Connection) -> Store:
    return Store(connection, SETTINGS, shebang=STRICT_SHEBANG)


def send(connection: Connection, message_id: str = "m1") -> object:
    store = store_on(connection)
    return store.buffer_message("c", message_id, payload=payload(message_id), timing=Rules().timing)


@pytest.mark.parametrize("signs_in", [True, False])
def test_a_dial_may_take_longer_than_an_answer(
    slow: Proxy, settings: Callable[..., ConnectionSettings], signs_in: bool
) -> None:
    at = settings(slow.port, scheme=slow.scheme, user=signs_in)  # type: ignore[attr-defined]
    connection = Connection(lambda: connect(at), attempts=1)
    assert isinstance(send(connection), MessageBuffered)
    assert slow.connections == 1, "one dial is enough, for a cluster too"
    connection.close()


def test_a_server_that_falls_silent_is_left_after_the_time_of_an_answer(
    slow: Proxy, settings: Callable[..., ConnectionSettings]
) -> None:
    at = settings(slow.port, scheme=slow.scheme)  # type: ignore[attr-defined]
    patience = WebhookPatience(connect_ms=CONNECT_MS, answer_ms=ANSWER_MS, webhook_ms=CONNECT_MS)
    connection = Connection(lambda: connect(at), patience=patience, retry_within_ms=0)
    patience.begin()
    send(connection)
    slow.fall_silent()
    for _ in range(3):
        patience.begin()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            send(connection)
        assert time.monotonic() - began < MUCH_LESS_SECONDS
    connection.close()


def test_a_dial_continues_when_its_webhook_cannot_wait(
    slow: Proxy, settings: Callable[..., ConnectionSettings]
) -> None:
    at = settings(slow.port, scheme=slow.scheme)  # type: ignore[attr-defined]
    patience = WebhookPatience(connect_ms=CONNECT_MS, answer_ms=ANSWER_MS, webhook_ms=100)
    connection = Connection(lambda: connect(at), patience=patience, retry_within_ms=300)
    patience.begin()
    with pytest.raises(StoreUnavailable, match="still connecting"):
        send(connection)
    while not isinstance(_tried(connection, patience), MessageBuffered):
        pass
    assert slow.connections == 1
    connection.close()


def _tried(connection: Connection, patience: WebhookPatience) -> object:
    patience.begin()
    try:
        return send(connection)
    except StoreUnavailable:
        return None


def test_the_calls_of_one_webhook_wait_only_once() -> None:
    clock = ManualClock()
    patience = WebhookPatience(connect_ms=5_000, answer_ms=800, webhook_ms=4_000, clock=clock)
    assert patience.left_ms(is_doubted=False) == 0, "no webhook has begun"
    patience.begin()
    assert (patience.left_ms(is_doubted=False), patience.left_ms(is_doubted=True)) == (4_000, 800)
    clock.advance(3_500)
    assert (patience.left_ms(is_doubted=False), patience.left_ms(is_doubted=True)) == (500, 500)
    clock.advance(1_000)
    assert patience.left_ms(is_doubted=False) == 0
    patience.begin()
    assert patience.left_ms(is_doubted=False) == 4_000


def test_the_limit_of_a_dial_covers_the_handshake_of_tls(settings: Callable[..., ConnectionSettings]) -> None:
    with black_hole() as server:
        began = time.monotonic()
        at = settings(server.port, scheme="valkeys", connect_ms=300)
        connection = Connection(lambda: connect(at), attempts=1, patience=DialPatience(CONNECT_MS))
        with pytest.raises(StoreUnavailable, match="Timeout"):
            send(connection)
        assert 0.3 <= time.monotonic() - began < MUCH_LESS_SECONDS
