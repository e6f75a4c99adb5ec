"""Makes each HTTP request once, and turns each failure into one of the responder's errors."""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from lambdas.responder import trace
from lambdas.responder.errors import CallBusy, CallRefused, CallUnconfirmed, PlaceNotFound
from message_buffer.json_object import Json, to_json

# This limits only the time to connect. Responses of the AI and the channels take longer, and have limits of their own.
MAX_CONNECT_SECONDS = 2.0
# Responses have a few kilobytes. A larger one than this is an error, and must not fill the memory.
MAX_HTTP_ANSWER_BYTES = 4_194_304
MAX_HTTP_CHUNK_BYTES = 65_536
# Statuses from this one on are errors. A redirect (300 to 399) counts as an error, because credentials must not be sent
# to its target.
REDIRECTS = 300
NOT_FOUND = 404
SERVER_ERRORS = 500
# By definition these statuses mean that the service did not carry out the request, so it may be repeated.
NOT_CARRIED_OUT = frozenset({408, 425, 429, 503})


class Http:
    def __init__(self) -> None:
        import urllib3  # noqa: PLC0415 - imported when first used

        # The library's debug lines contain URLs, and the URL of a Telegram bot contains its token.
        logging.getLogger("urllib3").setLevel(logging.WARNING)
        self._errors = urllib3.exceptions
        self._timeout = urllib3.Timeout
        self._pool_manager = urllib3.PoolManager

    def post(self, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float) -> Json:
        """Return the JSON object of a 2xx response, or an empty object if its body is something else."""
        deadline = time.monotonic() + seconds
        try:
            # Use no old connection: it may have died unnoticed while Lambda suspended the process, and a request that
            # fails on it may not be repeated. Other threads make requests at the same time.
            with self._pool_manager(retries=False) as connections:
                response = connections.request(
                    "POST",
                    url,
                    body=body,
                    headers={**trace.next_header(), **headers},
                    timeout=self._timeout(connect=min(MAX_CONNECT_SECONDS, seconds), read=seconds),
                    redirect=False,
                    preload_content=False,
                )
                content = self._read(response, deadline)
        # `from None`, because the texts of urllib3's errors contain the URL or a header.
        except self._errors.LocationValueError as error:
            raise CallRefused(f"no such place: {type(error).__name__}") from None
        except (self._errors.NewConnectionError, self._errors.ConnectTimeoutError) as error:
            raise CallBusy(f"no connection: {type(error).__name__}") from None
        except self._errors.HTTPError as error:
            raise CallUnconfirmed(f"no answer: {type(error).__name__}") from None
        except ValueError as error:
            # A header has an impossible value, for example a key with a line end. urllib3 has not begun the request.
            raise CallRefused(f"no request: {type(error).__name__}") from None
        return _object_of(response.status, content)

    def post_json(self, url: str, value: Json, *, headers: Mapping[str, str], seconds: float) -> Json:
        headers = {"Content-Type": "application/json", **headers}
        return self.post(url, to_json(value), headers=headers, seconds=seconds)

    def _read(self, response: Any, deadline: float) -> bytes:
        """Return the whole body. It has a deadline, because the socket's time-out bounds only pauses between chunks."""
        content = b""
        try:
            for chunk in response.stream(MAX_HTTP_CHUNK_BYTES):
                content += chunk
                if time.monotonic() > deadline or len(content) > MAX_HTTP_ANSWER_BYTES:
                    raise CallUnconfirmed("no response: too slow, or too long")
        finally:
            response.close()
        return content


def _object_of(status: int, content: bytes) -> Json:
    if status in NOT_CARRIED_OUT:
        raise CallBusy(f"status {status}")
    if status >= SERVER_ERRORS:
        raise CallUnconfirmed(f"status {status}")
    if status >= REDIRECTS:
        raise (PlaceNotFound if status == NOT_FOUND else CallRefused)(f"status {status}")
    try:
        parsed = json.loads(content)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {}
