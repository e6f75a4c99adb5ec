"""A TCP proxy that can lose answers, delay new connections, and speak TLS for a server that cannot."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any


class Proxy:
    """Forwards bytes to a server. A new connection begins to do so after `delay_seconds`. After `lose_answers(n)`, the
    answers of the next n script calls do not reach the client.
    """

    def __init__(self, server_port: int, tls: ssl.SSLContext | None = None, *, delay_seconds: float = 0.0) -> None:
        self._server_port = server_port
        self._tls = tls
        self.delay_seconds = delay_seconds
        self._lock = threading.Lock()
        self._to_lose = 0
        self.lost = 0
        self.connections = 0
        self._silent = threading.Event()
        self._open: set[socket.socket] = set()
        self._forgotten: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self, count: int) -> None:
        with self._lock:
            self._to_lose, self.lost = count, 0

    def fall_silent(self) -> None:
        """Let nothing reach the server from now on, on old connections and on new ones."""
        self._silent.set()

    def forget_connections(self) -> None:
        """Lose whatever is sent on the open connections from now on, and tell neither side, as a NAT gateway does."""
        with self._lock:
            self._forgotten |= self._open

    def drop_connections(self) -> None:
        for sock in list(self._open):
            _hang_up(sock)

    def close(self) -> None:
        # Only a shutdown wakes the thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        time.sleep(self.delay_seconds)
        try:
            if self._tls:
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(("127.0.0.1", self._server_port))
        except OSError:  # a client that does not trust the certificate hangs up
            client.close()
            return
        self._open |= {client, server}
        losing = threading.Event()
        back = threading.Thread(target=self._answers, args=(server, client, losing), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while (data := client.recv(1 << 16)) and self._admits(client, data):
                if b"\r\nEVAL" in data and self._shall_lose():
                    losing.set()
                if not self._silent.is_set() and client not in self._forgotten:
                    server.sendall(data)
        _hang_up(server)
        back.join()
        self._open -= {client, server}
        client.close()
        server.close()

    def _admits(self, client: socket.socket, data: bytes) -> bool:
        """Return whether the client may continue after these bytes."""
        return True

    def _shall_lose(self) -> bool:
        with self._lock:
            if not self._to_lose:
                return False
            self._to_lose -= 1
            return True

    def _answers(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if losing.is_set():
                    self.lost += 1
                    break
                client.sendall(data)
        _hang_up(client)


def _hang_up(sock: socket.socket) -> None:
    """End a connection, and wake the thread that reads from it. Only that thread closes the socket.

    If another thread closed it, the system could give its number to a new connection, from which the reader would then
    steal the first bytes.
    """
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class PublicEndpoint(Proxy):
    """Admits clients as the public endpoint of a serverless cache does: by TLS 1.3, and with AUTH as first command.

    After `cannot_check_sign_ins(n)`, the next n sign-ins get the one answer that the endpoint has for all of its own
    faults, and for too many sign-ins.
    """

    def __init__(self, server_port: int, tls: ssl.SSLContext) -> None:
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        self.first_commands: list[bytes] = []
        self._signed_in: set[socket.socket] = set()
        self._unavailable = 0
        super().__init__(server_port, tls)

    def cannot_check_sign_ins(self, count: int) -> None:
        with self._lock:
            self._unavailable = count

    def _admits(self, client: socket.socket, data: bytes) -> bool:
        with self._lock:
            if client in self._signed_in:
                return True
            # A command of RESP reads `*<parts>`, then for each part `$<length>` and the part.
            command = data.split(b"\r\n")[2].upper()
            self.first_commands.append(command)
            unavailable = self._unavailable > 0
            self._unavailable -= unavailable
            if command == b"AUTH" and not unavailable:
                self._signed_in.add(client)
                return True
        client.sendall(
            b"-ERR service is not available\r\n" if command == b"AUTH" else b"-NOAUTH Authentication required.\r\n"
        )
        return False


@contextlib.contextmanager
def behind_proxy(
    server_port: int, admin: Any, tls: ssl.SSLContext | None = None, *, kind: type[Proxy] = Proxy
) -> Iterator[Proxy]:
    """Yield a proxy before a cluster node, which announces the proxy's port to its clients."""
    assert tls or kind is Proxy, "a public endpoint speaks TLS only"
    proxy = kind(server_port, tls)
    admin.config_set("cluster-announce-port", proxy.port)
    try:
        yield proxy
    finally:
        admin.config_set("cluster-announce-port", 0)
        proxy.close()
