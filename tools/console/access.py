"""Refuses requests that do not come from the console's own page, and limits what that page may load.

Any web page that is open in the same browser can send requests to a server on this machine. Therefore the path must
begin with a random token. The Host header must name this server, because the domain of a foreign page may resolve to
this machine. The Origin header, if the browser sends one, must also name this server.
"""

import hmac
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024
POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
))  # fmt: skip
_LENGTH = re.compile("[0-9]{1,9}")
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access:
    """Wraps the application. Passes allowed requests on, without the token in their path."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        path = scope["path"].removeprefix(f"/{self._token}")
        inner = {**scope, "path": path, "raw_path": path.encode()}
        await self._app(inner, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return PlainTextResponse(
                "The Host header does not name this server. Open the address that the console printed.", 421
            )
        given, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(given.encode(), self._token.encode()):
            return PlainTextResponse("Open the address that the console printed: it ends with a token.", 404)
        is_ours = origin == f"http://{host}"
        is_foreign = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        only_reads = scope["method"] in ("GET", "HEAD")
        # Only reads may come without an Origin header, because browsers send one with all other requests.
        if is_foreign or not (is_ours or (only_reads and origin is None)):
            return PlainTextResponse("Only the console's own page may call this.", 403)
        return None if only_reads else _refusal_of_body(headers)


def _refusal_of_body(headers: Headers) -> PlainTextResponse | None:
    if "transfer-encoding" in headers:
        return PlainTextResponse("The body must have a length.", 411)
    if headers.get("content-type") != "application/json":
        return PlainTextResponse("The body must be JSON.", 415)
    if not _LENGTH.fullmatch(length := headers.get("content-length", "")) or int(length) > MAX_BODY_BYTES:
        return PlainTextResponse(f"The body must have at most {MAX_BODY_BYTES} bytes.", 413)
    return None
