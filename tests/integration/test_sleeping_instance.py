"""An instance is suspended between two calls. Meanwhile the network drops its connections, with or without a reset."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from message_buffer.aws import clients as aws
from message_buffer.aws import json_client
from message_buffer.lanes.outcomes import MessageBuffered
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.store import Store
from message_buffer.limits import MAX_IDLE_MS
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import ConnectionSettings
from tests.support.bad_servers import hanging_up, losing_the_first_packet
from tests.support.engine import SETTINGS, Engine, payload
from tests.support.proxy import Proxy
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyServer
from tests.support.web_server import web_server

# A call that reuses a forgotten connection ends only after this time.
ANSWER_MS = 20_000
MUCH_LESS_SECONDS = 10.0
NOW_MS = 1_700_000_000_000

Call = Callable[[], object]


@pytest.fixture(params=["aws", "valkey"])
def service(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, unwatched: Engine, valkey: ValkeyServer
) -> Iterator[tuple[Proxy, Call, list[int]]]:
    """Yield a proxy, a call that has one attempt and goes through it, and the wall time of the caller."""
    now = [NOW_MS]
    with web_server() as web:
        proxy = Proxy(valkey.port if request.param == "valkey" else int(web.url.rpartition(":")[2]))
        if request.param == "valkey":
            settings = ConnectionSettings(f"valkey://127.0.0.1:{proxy.port}", 5_000, ANSWER_MS)
            connection = Connection(lambda: connect(settings), attempts=1, clock=lambda: now[0])
            store, sent = Store(connection, SETTINGS, shebang=STRICT_SHEBANG), iter(range(100))

            def call() -> None:
                message = str(next(sent))
                added = store.buffer_message("c", message, payload=payload(message), timing=Rules().timing)
                assert isinstance(added, MessageBuffered)

            yield proxy, call, now
            connection.close()
        else:
            for name, value in aws_environment(proxy.port).items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr(json_client, "system_clock", lambda: now[0])
            client = client_with_one_attempt()
            yield proxy, lambda: client.put_events(Entries=[]), now
            client._drop_idle()
        proxy.close()


def aws_environment(port: int) -> dict[str, str]:
    return {
        "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }  # fmt: skip


def client_with_one_attempt() -> Any:
    return json_client.JsonClient(
        "events", connect_seconds=aws.AWS_CONNECT_SECONDS, response_seconds=ANSWER_MS / 1_000, attempts=1, kept=1
    )


def test_a_forgotten_connection_is_not_waited_for(service: tuple[Proxy, Call, list[int]]) -> None:
    proxy, call, now = service
    call()
    now[0] += MAX_IDLE_MS
    call()
    assert proxy.connections == 1
    proxy.forget_connections()
    now[0] += MAX_IDLE_MS + 1
    began = time.monotonic()
    call()
    assert time.monotonic() - began < MUCH_LESS_SECONDS
    assert proxy.connections == 2


def test_a_reset_at_reuse_is_no_attempt(service: tuple[Proxy, Call, list[int]]) -> None:
    proxy, call, _ = service
    call()
    for _ in range(3):
        proxy.drop_connections()
        call()
    assert proxy.connections == 4


def test_a_lost_packet_while_connecting_is_waited_for() -> None:
    with losing_the_first_packet() as port:
        began = time.monotonic()
        json_client._connected("127.0.0.1", port, ends_at=began + 20).close()
        assert time.monotonic() - began > 0.9, "no packet was lost"


def test_a_new_connection_that_is_lost_is_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging_up() as server:
        for name, value in aws_environment(server.port).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConnectionError):
            client_with_one_attempt().put_events(Entries=[])
        assert server.connections == 1
