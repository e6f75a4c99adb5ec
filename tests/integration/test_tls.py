"""The service speaks TLS only. The server of the tests cannot, so a proxy speaks it in its place."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from message_buffer.errors import StoreUnavailable
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.store import Store
from message_buffer.settings import ConnectionSettings
from tests.support.emission import Bus, run_until_idle
from tests.support.engine import SETTINGS, Engine
from tests.support.proxy import Proxy, behind_proxy
from tests.support.valkey_server import APP_PASSWORD, APP_USER, STRICT_SHEBANG, ValkeyServer


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


def secured(engine: Engine, server: ValkeyServer, authority: trustme.CA, *hosts: str) -> Iterator[Proxy]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*hosts).configure_cert(context)
    with behind_proxy(server.port, engine.admin, context) as proxy:
        yield proxy


@pytest.fixture
def tls(unwatched: Engine, valkey: ValkeyServer, authority: trustme.CA) -> Iterator[Proxy]:
    yield from secured(unwatched, valkey, authority, "127.0.0.1", "localhost")


@pytest.fixture
def tls_of_another_host(unwatched: Engine, valkey: ValkeyServer, authority: trustme.CA) -> Iterator[Proxy]:
    yield from secured(unwatched, valkey, authority, "cache.example.org")


def settings(proxy: Proxy, ca_file: Path | None, *, scheme: str = "valkeys") -> ConnectionSettings:
    url = f"{scheme}://{APP_USER}:{APP_PASSWORD}@127.0.0.1:{proxy.port}"
    return ConnectionSettings(url, ca_file=str(ca_file) if ca_file else None)


def refused(wanted: ConnectionSettings) -> str:
    store = Store(Connection(lambda: connect(wanted)), SETTINGS, shebang=STRICT_SHEBANG)
    with pytest.raises(StoreUnavailable) as refusal:
        store.peek_conversation("c")
    return str(refusal.value)


def test_a_certificate_of_the_right_authority_for_the_right_host_is_accepted(
    unwatched: Engine, tls: Proxy, ca_file: Path
) -> None:
    engine = Engine(connect(settings(tls, ca_file)), unwatched.admin, shebang=STRICT_SHEBANG)
    bus = Bus()
    for n in range(3):
        engine.send("c", f"m{n}")
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["m0", "m1", "m2"]
    engine.client.close()


def test_a_certificate_of_an_unknown_authority_is_refused(tls: Proxy) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in refused(settings(tls, None))


def test_a_certificate_for_another_host_is_refused(tls_of_another_host: Proxy, ca_file: Path) -> None:
    assert "not valid for '127.0.0.1'" in refused(settings(tls_of_another_host, ca_file))
