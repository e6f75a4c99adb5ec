"""Calls an ASGI application in the test's own process."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    app: ASGIApp, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> Answer:
    """Return the whole response to one request."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    async def run() -> None:
        await app(scope, receive, send)

    asyncio.run(run())
    start = next(each for each in sent if each["type"] == "http.response.start")
    parts = [each.get("body", b"") for each in sent if each["type"] == "http.response.body"]
    return Answer(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, b"".join(parts))
