"""An HTTP server on loopback that gives the answers of a test, bad ones too, and records the requests."""

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

# Three bad answers: none within a test, one byte at a time without end, and a reset connection.
SLOW, DRIPPING, RESET = "slow", "dripping", "reset"
PATIENCE_SECONDS = 20.0
DROP_SECONDS = 0.1

Answer = tuple[int, Any] | tuple[int, Any, Mapping[str, str]] | str


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes
    port: int
    """The client's port, which differs between connections."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: in these tests clients hang up, and so does this server."""


class WebServer:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.answer: Answer | Callable[[Request], Answer] = (200, {})
        self._over = threading.Event()
        self._was_asked = threading.Event()
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def wait_until_asked(self) -> None:
        """Wait for the first request: a client may give up before this server's thread has read what it sent."""
        assert self._was_asked.wait(PATIENCE_SECONDS), "nothing was asked"

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                request = Request(self.path, dict(self.headers), body, self.client_address[1])
                web.requests.append(request)
                web._was_asked.set()
                answer = web.answer(request) if callable(web.answer) else web.answer
                if answer == RESET:
                    # With a linger time of zero, closing sends RST.
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    self.close_connection = True
                elif answer == SLOW:
                    web._over.wait(PATIENCE_SECONDS)
                    self.close_connection = True
                elif answer == DRIPPING:
                    self._drip()
                else:
                    _say(self, *answer)

            def _drip(self) -> None:
                """Send a byte within every time-out of the socket, but never end."""
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                try:
                    while not web._over.wait(DROP_SECONDS):
                        self.wfile.write(b"1\r\n \r\n")
                except OSError:
                    return

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _say(handler: BaseHTTPRequestHandler, status: Any, value: Any, headers: Any = ()) -> None:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    handler.send_response(status)
    for name, text in {"Content-Type": "application/json", "Content-Length": str(len(body)), **dict(headers)}.items():
        handler.send_header(name, text)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def web_server(tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    server = WebServer(tls)
    try:
        yield server
    finally:
        server.close()
