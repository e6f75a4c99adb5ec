"""The processor's sleep on a real server: woken at once, on time otherwise, quiet, and no wake is lost."""

import threading
from collections.abc import Callable, Iterator
from statistics import quantiles
from time import monotonic
from typing import Any

import pytest

from message_buffer.lanes.valkey import wake as wake_module
from message_buffer.lanes.valkey.connection import Client, connect
from message_buffer.lanes.valkey.keys import wake_key
from message_buffer.lanes.valkey.wake import Wake
from message_buffer.settings import ConnectionSettings
from tests.support.engine import open_line
from tests.support.valkey_server import ValkeyServer

KEY = wake_key(0)


@pytest.fixture
def url(valkey: ValkeyServer) -> str:
    return valkey.url


@pytest.fixture
def open_client(url: str) -> Callable[[], Client]:
    return lambda: connect(ConnectionSettings(url))


@pytest.fixture
def wake(open_client: Callable[[], Client], admin: Any) -> Iterator[Wake]:
    line = Wake(open_client, 0)
    yield line
    line.close()


@pytest.fixture
def admin(valkey: ValkeyServer) -> Iterator[Any]:
    client = valkey.admin()
    client.flushall()
    yield client
    client.close()


def timed(wait: Callable[[], bool]) -> tuple[bool, float]:
    began = monotonic()
    return wait(), (monotonic() - began) * 1_000


def pops(admin: Any) -> int:
    found = admin.info("commandstats").get("cmdstat_blpop", {})
    return int(found.get("calls", 0))


def blocked(admin: Any) -> int:
    return int(admin.info("clients")["blocked_clients"])


def test_a_wake_that_is_there_already_ends_the_sleep_at_once(wake: Wake, admin: Any) -> None:
    open_line(wake)
    admin.lpush(KEY, 1)
    woken, took_ms = timed(lambda: wake.wait(5))
    assert woken
    assert took_ms < 100


def test_a_wake_in_the_middle_of_a_sleep_ends_it(wake: Wake, admin: Any) -> None:
    open_line(wake)
    timer = threading.Timer(0.1, lambda: admin.lpush(KEY, 1))
    timer.start()
    woken, took_ms = timed(lambda: wake.wait(5))
    timer.join()
    assert woken
    assert took_ms < 1_000


@pytest.mark.promise("P5")
def test_without_a_wake_the_sleep_ends_on_time(wake: Wake) -> None:
    open_line(wake)
    late_ms = []
    for n in range(100):
        woken, took_ms = timed(lambda wait_ms=1 + n % 7: wake.wait(wait_ms / 1_000))  # type: ignore[misc]
        assert not woken
        late_ms.append(took_ms - (1 + n % 7))
    assert min(late_ms) > -1
    # The machine may be busy with other tests; the median shows which timer ended the sleep.
    assert quantiles(late_ms, n=2)[0] < 5


def test_one_pop_stays_outstanding_through_many_sleeps(wake: Wake, admin: Any) -> None:
    before = pops(admin)
    for _ in range(50):
        wake.wait(0.001)
    assert pops(admin) - before == 0, "a pop that blocks is counted when it ends"
    assert blocked(admin) == 1
    admin.lpush(KEY, 1)
    assert wake.wait(1)
    assert pops(admin) - before == 1


def test_the_time_out_of_the_pop_is_not_the_timer(wake: Wake, admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_module, "POP_SECONDS", 0.1)
    before = pops(admin)
    woken, took_ms = timed(lambda: wake.wait(0.5))
    assert not woken
    assert 499 < took_ms < 900
    # A busy server ends a pop late, and counts it only then.
    for _ in range(20):
        if pops(admin) - before >= 2:
            break
        assert not wake.wait(0.5)
    assert pops(admin) - before >= 2, "it was sent again"
    admin.lpush(KEY, 1)
    assert wake.wait(1)


def test_who_hangs_up_takes_nobody_elses_wake(wake: Wake, open_client: Callable[[], Client], admin: Any) -> None:
    predecessor = Wake(open_client, 0)
    open_line(predecessor)
    assert blocked(admin) == 1
    predecessor.close()
    assert not wake.wait(0.05)
    admin.lpush(KEY, 1)
    assert wake.wait(1)


def test_a_lost_line_costs_one_sleep_and_is_made_anew(wake: Wake, admin: Any) -> None:
    open_line(wake)
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    woken, took_ms = timed(lambda: wake.wait(0.1))
    assert not woken
    assert took_ms >= 99, "the sleep lasts all the same"
    admin.lpush(KEY, 1)
    assert wake.wait(1)


def test_without_a_server_it_only_sleeps() -> None:
    slept: list[float] = []
    wake = Wake(
        lambda: connect(ConnectionSettings("valkey://127.0.0.1:1", connect_timeout_ms=50)),
        0,
        sleep=slept.append,
    )
    assert not wake.wait(0.2)
    assert not wake.wait(0.3)
    assert len(slept) == 2
    wake.close()
