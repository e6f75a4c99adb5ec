"""A server on this machine that answers in place of AWS, over TLS. It does not check the requests' signatures."""

import json
import socketserver
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import botocore
import trustme

from tests.support.ingest_scene import SECRETS

JSON = "application/x-amz-json-1.1"

# The responses to a message and its batch, by AWS operation. All tables are empty.
ANSWERS: dict[str, Any] = {
    "GetSecretValue": {"SecretString": json.dumps(SECRETS)},
    "GetItem": {},
    "PutItem": {},
    "Scan": {"Items": [], "Count": 0},
    "PutEvents": {"FailedEntryCount": 0, "Entries": []},
}


class Aws(NamedTuple):
    addresses: Mapping[str, str]
    """Environment variables that direct a function's AWS requests to this server."""
    events: Connection
    """For each PutEvents, the server sends the time of its answer (`time.monotonic()`) through this connection."""


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline():
            length, operation = 0, ""
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
                operation = value.rpartition(".")[2].strip() if name.lower() == "x-amz-target" else operation
            self.rfile.read(length)
            assert isinstance(self.server, _AwsServer)
            time.sleep(self.server.delay_ms / 1_000)
            if operation == "PutEvents":
                self.server.shown.send(time.monotonic())
            status, body = ("200 OK", json.dumps(ANSWERS[operation])) if operation else ("202 Accepted", "")
            head = f"HTTP/1.1 {status}\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(f"{head}{body}".encode())


class _AwsServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64
    shown: Connection
    delay_ms: float


def _serve(shown: Connection, certificate: str, delay_ms: float) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with _AwsServer(("127.0.0.1", 0), _Handler) as server:
        server.shown, server.delay_ms = shown, delay_ms
        server.socket = context.wrap_socket(server.socket, server_side=True)
        shown.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def answering_as_aws(*, delay_ms: float = 0) -> Iterator[Aws]:
    """Run the server in a process of its own. It answers each request after `delay_ms`."""
    authority = trustme.CA()
    with tempfile.TemporaryDirectory(prefix="bench-aws-") as folder:
        certificate, trusted = Path(folder, "server.pem"), Path(folder, "trusted.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        # Also trust the usual public certificates, because a real function spends CPU time on loading them.
        trusted.write_bytes(Path(botocore.__file__).with_name("cacert.pem").read_bytes() + authority.cert_pem.bytes())
        heard, shown = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=_serve, args=(shown, str(certificate), delay_ms), daemon=True)
        process.start()
        try:
            yield Aws(
                {
                    "AWS_ENDPOINT_URL": f"https://127.0.0.1:{heard.recv()}",
                    # Python reads SSL_CERT_FILE, and the AWS SDK reads AWS_CA_BUNDLE.
                    "SSL_CERT_FILE": str(trusted),
                    "AWS_CA_BUNDLE": str(trusted),
                },
                heard,
            )
        finally:
            process.terminate()
