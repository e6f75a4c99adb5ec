"""Measure the processor's CPU time for the start of a conversation processor: `python -m tools.bench.starts [--quick]`.

It measures the processor's own `ConversationProcessors` and the AWS SDK. A server on this machine accepts all requests.
The connection has no TLS, which would cost more. A processor has 256 MB and therefore a seventh of a CPU. This share
and the CPU time of a start determine how many batches a second one shard can start.
"""

import argparse
import os
import socketserver
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from lambdas.processor.service import MAX_STARTS_AT_ONCE, ConversationProcessors
from message_buffer.aws.functions import Functions
from tools.bench.measure import figure
from tools.bench.report import save

ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nX-Amzn-RequestId: 0\r\n\r\n"


class _Accepts(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while self.rfile.readline():
            length = 0
            while (line := self.rfile.readline().strip()) != b"":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            self.rfile.read(length)
            self.wfile.write(ACCEPTED)


class _StartServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64


# A deadline in the far future, so that no start is dropped because it is too late.
FAR = 9_999_999_999_999


def serve(shown: Connection) -> None:
    with _StartServer(("127.0.0.1", 0), _Accepts) as server:
        shown.send(server.server_address[1])
        server.serve_forever()


def start_all(conversation_processors: ConversationProcessors, count: int) -> tuple[float, float]:
    """Return the number of starts a second, and the CPU time of each in ms."""
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        conversation_processors.send(f"default/generic/a/{number}", start_until_ms=FAR)
    while conversation_processors.any_under_way:
        conversation_processors.wait(10, for_all=True)
        for _, error in conversation_processors.ended():
            if error:
                raise error
    return count / (time.perf_counter() - began), (time.process_time() - cpu) / count * 1_000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.starts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look: fewer rounds")
    quick = parser.parse_args().quick
    heard, shown = get_context("spawn").Pipe()
    stub = get_context("spawn").Process(target=serve, args=(shown,), daemon=True)
    stub.start()
    address = f"http://127.0.0.1:{heard.recv()}"
    os.environ |= {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1",
                   "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}  # fmt: skip
    conversation_processors = ConversationProcessors(
        Functions(connections=MAX_STARTS_AT_ONCE), "conversation_processor"
    )
    try:
        start_all(conversation_processors, 200)
        found = [start_all(conversation_processors, 300) for _ in range(5 if quick else 15)]
    finally:
        conversation_processors.close()
        stub.terminate()
    result: dict[str, Any] = {
        "starts_per_second": figure([rate for rate, _ in found]).as_json(),
        "cpu_ms": figure([cpu for _, cpu in found]).as_json(),
    }
    print(f"CPU of a start, ms: {figure([cpu for _, cpu in found])}; a second: {figure([rate for rate, _ in found])}")
    save("starts", result, quick=quick)


if __name__ == "__main__":
    main()
