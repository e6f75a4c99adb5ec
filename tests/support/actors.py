"""Functions that run at the same time, and whose requests a test orders one by one."""

from collections.abc import Callable
from threading import Event, Thread, current_thread
from typing import Any

from message_buffer.errors import SendFailed
from tests.support.window import Killed, Wire

# A request is made; or it is made and its answer is lost; or it is refused; or the function that makes it is killed.
GO, LOSE, REFUSE, KILL = "go", "lose", "refuse", "kill"
FATES = (GO, LOSE, REFUSE, KILL)
PATIENCE_SECONDS = 30


class Actor:
    """A function in a thread of its own. It stops before each request, until the test says what happens to it."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name, self._work = name, work
        self.request: str | None = None
        self.done, self.outcome = False, None
        self.error: BaseException | None = None
        self._fate = GO
        self._may_go, self._has_stopped = Event(), Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._wait()

    def step(self, fate: str = GO) -> None:
        """Let the function run to its next request, or to its end. `fate` happens to the request that it waits with."""
        self._fate = fate
        self._has_stopped.clear()
        self._may_go.set()
        self._wait()

    def finish(self) -> None:
        while not self.done:
            self.step()

    def _wait(self) -> None:
        assert self._has_stopped.wait(PATIENCE_SECONDS), f"{self.name} hangs at {self.request}"

    def _run(self) -> None:
        current_thread().actor = self  # type: ignore[attr-defined]
        try:
            self.outcome = self._work()
        except Killed as killed:
            self.error = killed
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        self.done = True
        self._has_stopped.set()

    def stop_at(self, request: str) -> str:
        self.request = request
        self._may_go.clear()
        self._has_stopped.set()
        assert self._may_go.wait(PATIENCE_SECONDS)
        if self._fate == KILL:
            raise Killed
        if self._fate == REFUSE:
            raise SendFailed("ThrottlingException")
        return self._fate


def take_turns(wire: Wire) -> None:
    """Stop every actor before each request from now on."""
    lost: set[int] = set()

    def before(request: str) -> None:
        actor = getattr(current_thread(), "actor", None)
        if actor is not None and actor.stop_at(request) == LOSE:
            lost.add(id(actor))

    def after(_request: str) -> None:
        actor = getattr(current_thread(), "actor", None)
        if id(actor) in lost:
            lost.discard(id(actor))
            raise SendFailed("ReadTimeoutError")

    wire.before, wire.after = before, after
