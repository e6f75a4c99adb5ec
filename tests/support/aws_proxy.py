"""An HTTP proxy before the AWS endpoint of the functions. It can refuse a call, hold it, or lose its answer.

The functions know nothing of it: the setting AWS_ENDPOINT_URL, which every AWS SDK reads, points at it.
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Response = tuple[int, dict[str, str], bytes]
PUT_EVENTS = "PutEvents"
INVOKE = "Invoke"
HOLD_SECONDS = 30.0
NOT_FORWARDED = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True)
class Call:
    """One API call of a function."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    caller_port: int

    @property
    def operation(self) -> str:
        target = self.headers.get("x-amz-target", "")
        if target:
            return target.rpartition(".")[2]
        return INVOKE if self.path.endswith("/invocations") else f"{self.method} {self.path}"

    @property
    def function(self) -> str | None:
        """Return the function that the call invokes, or None if it is another call."""
        parts = self.path.split("/")
        return parts[3] if self.operation == INVOKE else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Verdict:
    """The decision about a call that a trap has caught."""

    forward: bool = True
    answer: Response | None = None  # replaces that of the emulator
    hang_up: bool = False


Judge = Callable[[Call], Verdict]
FORWARD = Verdict()
LOSE_ANSWER = Verdict(hang_up=True)
LOSE_CALL = Verdict(forward=False, hang_up=True)


def refuse_entries(call: Call) -> Verdict:
    """Return the verdict that PutEvents answers 200 and reports only in the body that it took no entry."""
    entries = [{"ErrorCode": "ThrottlingException", "ErrorMessage": "made to fail"} for _ in call.json["Entries"]]
    body = json.dumps({"FailedEntryCount": len(entries), "Entries": entries}).encode()
    return Verdict(False, (200, {"Content-Type": "application/x-amz-json-1.1"}, body))


@dataclass
class Trap:
    """Waits for calls and does something to `times` of them."""

    matches: Callable[[Call], bool]
    judge: Judge
    times: int
    caught: list[Call] = field(default_factory=list)
    _event: threading.Event = field(default_factory=threading.Event)

    def take(self, call: Call) -> bool:
        if len(self.caught) >= self.times or not self.matches(call):
            return False
        self.caught.append(call)
        self._event.set()
        return True

    def wait(self, *, timeout_seconds: float) -> Call:
        assert self._event.wait(timeout_seconds), "the call that the trap was set for never came"
        return self.caught[0]


class Hold:
    """Keeps the first matching call, or its answer, until the test releases it. The test may kill the caller first."""

    def __init__(self, trap: Trap, released: threading.Event) -> None:
        self._trap = trap
        self._released = released

    def wait(self, *, timeout_seconds: float = 20.0) -> Call:
        return self._trap.wait(timeout_seconds=timeout_seconds)

    def wait_for_release(self) -> None:
        self._released.wait(HOLD_SECONDS)

    def keeps(self, call: Call) -> bool:
        """Return whether the call repeats the kept one. A caller does so if it waits too long for the answer."""
        caught = self._trap.caught
        return (
            bool(caught) and not self._released.is_set() and (call.path, call.body) == (caught[0].path, caught[0].body)
        )

    def release(self) -> None:
        self._released.set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A connection beyond this number waits for a second, and the functions give up on it earlier.
    request_queue_size = 128


class AwsProxy:
    def __init__(self, endpoint_url: str) -> None:
        upstream = urlsplit(endpoint_url)
        assert upstream.hostname
        assert upstream.port
        self._upstream = (upstream.hostname, upstream.port)
        self._lock = threading.Lock()
        self._traps: list[Trap] = []
        self._after: list[Trap] = []
        self._holds: list[Hold] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reset(self) -> None:
        with self._lock:
            self._traps.clear()
            self._after.clear()
            self._holds.clear()

    def on(
        self,
        operation: str,
        judge: Judge | Verdict,
        *,
        times: int = 1,
        function: str | None = None,
        about: str = "",
    ) -> Trap:
        """Apply the judge to the next `times` calls of this operation, to `function`, whose body contains `about`."""
        return self._set(self._traps, operation, judge, times=times, function=function, about=about)

    def hold(self, operation: str, *, function: str | None = None, then: Verdict = LOSE_CALL, about: str = "") -> Hold:
        """Keep the next call of this kind before it reaches the emulator."""
        return self._hold(self._traps, operation, function=function, then=then, about=about)

    def hold_answer(
        self, operation: str, *, function: str | None = None, then: Verdict = LOSE_ANSWER, about: str = ""
    ) -> Hold:
        """Let the next call of this kind happen, but keep its answer."""
        return self._hold(self._after, operation, function=function, then=then, about=about)

    def _hold(self, traps: list[Trap], operation: str, *, function: str | None, then: Verdict, about: str) -> Hold:
        released = threading.Event()

        def keep(_: Call) -> Verdict:
            released.wait(HOLD_SECONDS)
            return then

        hold = Hold(self._set(traps, operation, keep, times=1, function=function, about=about), released)
        with self._lock:
            self._holds.append(hold)
        return hold

    def _set(
        self,
        traps: list[Trap],
        operation: str,
        judge: Judge | Verdict,
        *,
        times: int,
        function: str | None,
        about: str = "",
    ) -> Trap:
        def matches(call: Call) -> bool:
            return call.operation == operation and function in {None, call.function} and about.encode() in call.body

        trap = Trap(matches, judge if callable(judge) else lambda _: judge, times)
        with self._lock:
            traps.append(trap)
        return trap

    def serve(self, call: Call, connection: http.client.HTTPConnection) -> Response | None:
        """Return the answer to a call, or None if the proxy has to hang up."""
        with self._lock:
            repeated = next((each for each in self._holds if each.keeps(call)), None)
            trap = None if repeated else next((each for each in self._traps if each.take(call)), None)
        if repeated:
            # On a busy machine, the test may need longer to kill the caller than the caller waits for the answer.
            repeated.wait_for_release()
            return None
        verdict = trap.judge(call) if trap else FORWARD
        if not verdict.forward:
            return None if verdict.hang_up else verdict.answer
        answer = self._forward(call, connection)
        with self._lock:
            after = next((each for each in self._after if each.take(call)), None)
        if after:
            verdict = after.judge(call)
        return None if verdict.hang_up else verdict.answer or answer

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._upstream, timeout=60)

    def _forward(self, call: Call, connection: http.client.HTTPConnection) -> Response:
        headers = {name: value for name, value in call.headers.items() if name.lower() not in NOT_FORWARDED}
        connection.request(call.method, call.path, body=call.body, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in NOT_FORWARDED}
        return answer.status, kept, body


def headers_of(message: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in message.items()}


def _handler(proxy: AwsProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            self._upstream = proxy.connect()

        def finish(self) -> None:
            self._upstream.close()
            super().finish()

        def _any(self) -> None:
            try:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = proxy.serve(
                    Call(self.command, self.path, headers_of(self.headers), body, self.client_address[1]),
                    self._upstream,
                )
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, content = answer
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)
            except OSError:  # the caller was killed, or the emulator stopped
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815 - names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - a name of the base class
            """Say nothing."""

    return Handler


@contextmanager
def aws_proxy(endpoint_url: str) -> Iterator[AwsProxy]:
    proxy = AwsProxy(endpoint_url)
    try:
        yield proxy
    finally:
        proxy.close()
