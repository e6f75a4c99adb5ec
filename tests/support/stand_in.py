"""A server that stands for what the examples call: SQS, DynamoDB, S3, Lambda, Bedrock, AgentCore, and a channel.

It checks each request by the documented bounds of the API, as far as the examples use it.
"""

import json
import re
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Event, Lock, Thread
from typing import Any

import urllib3

from message_buffer.json_object import Json
from tests.support.fifo_queue import FakeSqs, FifoQueue

REGION = "eu-west-1"
BUCKET = "oversize"
# InvokeAgentRuntime's bounds.
SESSION_CHARACTERS = range(33, 257)
MAX_PAYLOAD_BYTES = 100_000_000
SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
ANSWER_SECONDS = 30
# A process may have to import an agent's libraries first.
PATIENCE_SECONDS = 120
# SQS waits for a message; this server waits only for so long, so that a poller does not keep a core busy.
EMPTY_SECONDS = 0.05


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the reset of a connection whose process was killed."""


class StandIn:
    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000
        self.queue = FifoQueue("default", lambda: self.now_ms)
        self.sqs = FakeSqs(self.queue, clock=lambda: self.now_ms)
        self.items: dict[str, Json] = {}
        """The table of marks."""
        self.objects: dict[str, Json] = {}
        self.holds: list[Json] = []
        self.asked: list[list[str]] = []
        """For each call of the model, the texts of the conversation, oldest first."""
        self.replies: list[Json] = []
        self.sessions: set[str] = set()
        self.agent_port = 0
        self.may_answer = Event()
        """The model answers once this is set."""
        self.may_answer.set()
        self.failures = 0
        """So many of the model's next calls fail."""
        self.changed = Condition()
        """Notified after each request."""
        self._lock = Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, PATIENCE_SECONDS)

    def put(self, conversation: str, batch_id: str, *texts: str, again: bool = False, stored: bool = False) -> None:
        """Emit a batch, or emit it again. If it is `stored`, it is too large for the queue."""
        messages = [{"id": f"{batch_id}-{n}", "text": text, "attachments": []} for n, text in enumerate(texts)]
        content: Json = {"messages": messages, "text": "\n".join(texts)}
        detail = {"batchId": batch_id, "conversationId": conversation, **content}
        if stored:
            self.objects[f"/{BUCKET}/batches/{batch_id}"] = content
            reference = {"bucket": BUCKET, "key": f"batches/{batch_id}", "bytes": 1}
            detail |= {"messages": [], "text": None, "messagesRef": reference}
        body = json.dumps({"source": "message-buffer", "detail-type": "messages.batch.ready", "detail": detail})
        self.queue.put(body, group=conversation, deduplication_id=f"{batch_id}-{again}")

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Json:
        target = headers.get("x-amz-target", "")
        if target:
            with self._lock:
                response = self._of_table_or_queue(target, json.loads(body))
            if target == "AmazonSQS.ReceiveMessage" and not response:
                time.sleep(EMPTY_SECONDS)
            return response
        if path == "/replies":
            self.replies.append(json.loads(body))
            return {}
        if method == "GET":
            return self.objects[path]
        assert headers["authorization"].startswith("AWS4-HMAC-SHA256"), "the request is not signed"
        if path.startswith("/2015-03-31/functions/gate/"):
            assert json.loads(body)["operation"] == "gate"
            return {"ok": True, "result": {"holds": self.holds}}
        if path.startswith("/runtimes/"):
            return self._of_agent(headers[SESSION_HEADER], body)
        assert re.fullmatch(r"/model/[^/]+/converse", path), path
        return self._of_model(json.loads(body)["messages"])

    def _of_table_or_queue(self, target: str, request: Json) -> Json:
        operation = target.rpartition(".")[2]
        if operation == "GetItem":
            found = self.items.get(request["Key"]["id"]["S"])
            return {"Item": found} if found else {}
        if operation == "PutItem":
            self.items.setdefault(request["Item"]["id"]["S"], request["Item"])
            return {}
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
        response: Json = getattr(self.sqs, name)(**request)
        return response

    def _of_agent(self, session: str, body: bytes) -> Json:
        assert len(session) in SESSION_CHARACTERS
        assert len(body) <= MAX_PAYLOAD_BYTES
        assert "text" in json.loads(body)["content"][0]
        self.sessions.add(session)
        url = f"http://127.0.0.1:{self.agent_port}/invocations"
        headers = {"Content-Type": "application/json", SESSION_HEADER: session}
        response = urllib3.request("POST", url, body=body, headers=headers, timeout=ANSWER_SECONDS, retries=False)
        assert response.status == 200, response.data
        found: Json = response.json()
        return found

    def _of_model(self, messages: list[Json]) -> Json:
        roles = [message["role"] for message in messages]
        assert roles == [("user", "assistant")[n % 2] for n in range(len(roles))], f"roles must alternate: {roles}"
        texts = ["".join(block["text"] for block in message["content"]) for message in messages]
        assert all(map(str.strip, texts)), "Bedrock refuses a blank text"
        with self._lock:
            self.asked.append(texts)
            self.failures, fails = max(self.failures - 1, 0), self.failures > 0
        self._notify()
        assert not fails, "made to fail"
        assert self.may_answer.wait(ANSWER_SECONDS)
        message = {"role": "assistant", "content": [{"text": f"Reply to: {texts[-1]}"}]}
        usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
        return {
            "output": {"message": message},
            "stopReason": "end_turn",
            "usage": usage,
            "metrics": {"latencyMs": 1},
        }

    def _notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer: Callable[..., Json] = self.answer
        notify = self._notify

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                try:
                    status, response = 200, answer(self.command, self.path, self.headers, body)
                except Exception as error:  # noqa: BLE001 - the caller sees it as a refusal
                    status, response = 400, {"__type": "ValidationException", "message": str(error)}
                notify()
                content = json.dumps(response).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True  # the caller was killed

            do_GET = do_POST  # noqa: N815 - the base class's name

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        return Handler
