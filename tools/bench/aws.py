"""A server on this machine that answers in place of AWS, over TLS. It does not check the requests' signatures."""

import json
import socketserver
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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
    "SendMessage": {"MessageId": "m", "MD5OfMessageBody": "0" * 32},
}


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline():
            length, operation = 0, ""
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
                operation = value.rpartition(".")[2].strip() if name.lower() == "x-amz-target" else operation
            self.rfile.read(length)
            status, body = ("200 OK", json.dumps(ANSWERS[operation])) if operation else ("202 Accepted", "")
            head = f"HTTP/1.1 {status}\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(f"{head}{body}".encode())


class _AwsServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64


def _serve(shown: Connection, certificate: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with _AwsServer(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        shown.send(server.server_address[1])
        server.serve_forever()


@contextmanager
def answering_as_aws() -> Iterator[dict[str, str]]:
    """Run the server in a process of its own. Yield the variables that direct a function's AWS requests to it."""
    authority = trustme.CA()
    with tempfile.TemporaryDirectory(prefix="bench-aws-") as folder:
        certificate, trusted = Path(folder, "server.pem"), Path(folder, "trusted.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        # Also trust the usual public certificates, because a real function spends CPU time on loading them.
        trusted.write_bytes(Path(botocore.__file__).with_name("cacert.pem").read_bytes() + authority.cert_pem.bytes())
        heard, shown = get_context("spawn").Pipe()
        process = get_context("spawn").Process(target=_serve, args=(shown, str(certificate)), daemon=True)
        process.start()
        try:
            yield {
                "AWS_ENDPOINT_URL": f"https://127.0.0.1:{heard.recv()}",
                # Python reads SSL_CERT_FILE, and the AWS SDK reads AWS_CA_BUNDLE.
                "SSL_CERT_FILE": str(trusted),
                "AWS_CA_BUNDLE": str(trusted),
            }
        finally:
            process.terminate()
