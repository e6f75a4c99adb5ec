"""If a call stops waiting for its dial, a later call uses that dial, or abandons it if it is overdue."""

from collections.abc import Iterator
from concurrent.futures import Future
from threading import Event

import pytest
from redis.exceptions import TimeoutError as NoAnswer

from message_buffer.errors import StoreUnavailable
from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.dial import Dial
from message_buffer.lanes.valkey.patience import DialPatience, WebhookPatience
from message_buffer.lanes.valkey.scripts import load_script
from message_buffer.limits import MAX_IDLE_MS
from tests.support.engine import ManualClock

CONNECT_MS = 5_000


class Client:
    def __init__(self) -> None:
        self.may_open, self.closed = Event(), Event()

    def execute_command(self, *_: object) -> list[bytes]:
        assert not self.closed.is_set()
        return [b"LOST"]

    def close(self) -> None:
        self.closed.set()


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clients = [Client(), Client()]
        self.dialled: list[Client] = []
        self.patience = WebhookPatience(connect_ms=CONNECT_MS, answer_ms=20, webhook_ms=50, clock=self.clock)
        self.connection = Connection(self._open, patience=self.patience, retry_within_ms=0, clock=self.clock)

    def _open(self) -> Client:
        client = self.clients[len(self.dialled)]
        self.dialled.append(client)
        assert client.may_open.wait(30)
        return client

    def call(self) -> list[bytes]:
        self.patience.begin()
        return self.connection.run(load_script("renew_lease"), [b"{b0}:processor"], (1, "l", 2))

    def leave_a_dial(self) -> None:
        with pytest.raises(StoreUnavailable, match="still connecting"):
            self.call()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    for client in made.clients:
        client.may_open.set()


def test_a_later_call_joins_the_dial_that_is_in_progress(scene: Scene) -> None:
    scene.leave_a_dial()
    scene.clock.advance(CONNECT_MS)
    scene.leave_a_dial()
    scene.clients[0].may_open.set()
    assert scene.call() == [b"LOST"]
    assert len(scene.dialled) == 1


def test_a_prepared_dial_continues_before_the_first_call(scene: Scene) -> None:
    scene.connection.prepare()
    scene.clients[0].may_open.set()
    dial = scene.connection._dial
    assert dial
    assert dial.wait(30)
    assert scene.call() == [b"LOST"]
    assert len(scene.dialled) == 1


@pytest.mark.parametrize(("idle_ms", "dials"), [(MAX_IDLE_MS, 1), (MAX_IDLE_MS + 1, 2)])
def test_a_connection_that_no_call_waited_for_is_used_unless_it_was_idle_for_long(
    scene: Scene, idle_ms: int, dials: int
) -> None:
    scene.leave_a_dial()
    dial = scene.connection._dial
    assert dial
    for client in scene.clients:
        client.may_open.set()
    assert dial.wait(30)
    scene.clock.advance(idle_ms)
    assert scene.call() == [b"LOST"]
    assert len(scene.dialled) == dials
    assert scene.clients[0].closed.is_set() == (dials == 2)


def test_an_overdue_dial_is_abandoned_and_closed_once_it_ends(scene: Scene) -> None:
    scene.leave_a_dial()
    scene.clock.advance(CONNECT_MS + 1)
    scene.clients[1].may_open.set()
    assert scene.call() == [b"LOST"]
    scene.clients[0].may_open.set()
    assert scene.clients[0].closed.wait(30)
    assert not scene.clients[1].closed.is_set()


class _AtTheLastMoment(Future[Client]):
    """Completes just after its waiter has timed out."""

    def result(self, timeout: float | None = None) -> Client:
        if not self.done():
            self.set_result(Client())
            raise TimeoutError
        return super().result(timeout)


def test_a_dial_that_ends_just_when_its_waiter_leaves_is_open() -> None:
    dial = Dial(Client)
    dial._opened = _AtTheLastMoment()
    assert isinstance(dial.wait(0), Client)


def test_a_call_that_dialled_twice_reports_how_long_it_waited() -> None:
    clock, dials, may_end = ManualClock(), [0], Event()

    def open_it() -> Client:
        dials[0] += 1
        if dials[0] == 1:
            clock.advance(CONNECT_MS)
            raise NoAnswer("Timeout connecting to server")
        may_end.wait(30)
        return Client()

    connection = Connection(open_it, patience=DialPatience(CONNECT_MS), clock=clock)
    with pytest.raises(StoreUnavailable, match=f"still connecting after {CONNECT_MS} ms"):
        connection.run(load_script("renew_lease"), [b"{b0}:processor"], (1, "l", 2))
    may_end.set()
    connection.close()


def test_a_call_that_read_the_clock_before_another_call_uses_the_same_client(scene: Scene) -> None:
    scene.clients[0].may_open.set()
    scene.call()
    was_ms = scene.clock()
    scene.clock.advance(1)
    scene.call()  # another thread's
    scene.clock.now_ms = was_ms
    scene.call()
    assert len(scene.dialled) == 1
    assert not scene.clients[0].closed.is_set()


def test_a_client_that_another_call_has_just_opened_is_used() -> None:
    now, dialled = ManualClock(), list[Client]()

    def open_it() -> Client:
        dialled.append(Client())
        return dialled[-1]

    def clock() -> int:
        if connection._client and not calls:
            calls.append("another thread's, after the dial and before the first use")
            connection.run(*renewal)
        return now()

    calls: list[str] = []
    renewal = load_script("renew_lease"), [b"{b0}:processor"], (1, "l", 2)
    connection = Connection(open_it, clock=clock)
    connection.run(*renewal)
    assert calls
    assert len(dialled) == 1
