"""The one place that speaks HTTP, and where its failures become ours.

A request is made once. What may be asked again goes back to the queue, which waits longer each time.
"""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from responder.errors import Busy, Refused, Unconfirmed

Json = dict[str, Any]

CONNECT_SECONDS = 2.0
MAX_ANSWER_BYTES = 4_194_304
CHUNK_BYTES = 65_536
# A redirect is one, too: it is not followed with the credentials.
FIRST_ERROR = 300
FIRST_SERVER_ERROR = 500
# By their definition the request was not carried out, and may be made again.
NOT_DONE = frozenset({408, 425, 429, 503})


class Http:
    def __init__(self) -> None:
        import urllib3  # noqa: PLC0415 - imported when first used

        # Its debug lines have URLs in them, and a bot's URL has its token.
        logging.getLogger("urllib3").setLevel(logging.WARNING)
        self._errors = urllib3.exceptions
        self._timeout = urllib3.Timeout
        self._pool = urllib3.PoolManager(retries=False)

    def post(self, url: str, body: bytes, *, headers: Mapping[str, str], seconds: float) -> Json:
        """The JSON object of a 2xx, which is empty if the body is something else."""
        deadline = time.monotonic() + seconds
        try:
            answer = self._pool.request(
                "POST",
                url,
                body=body,
                headers=dict(headers),
                timeout=self._timeout(connect=min(CONNECT_SECONDS, seconds), read=seconds),
                redirect=False,
                preload_content=False,
            )
            content = self._read(answer, deadline)
        # Not `from error`: its words have the URL in them, or a header.
        except self._errors.LocationValueError as error:
            raise Refused(f"no such place: {type(error).__name__}") from None
        except (self._errors.NewConnectionError, self._errors.ConnectTimeoutError) as error:
            raise Busy(f"no connection: {type(error).__name__}") from None
        except self._errors.HTTPError as error:
            raise Unconfirmed(f"no answer: {type(error).__name__}") from None
        except ValueError as error:
            # A key with a line end, for one, which no header can have: the request was never begun.
            raise Refused(f"no request: {type(error).__name__}") from None
        finally:
            # One that idles while Lambda lets us sleep may die unnoticed, and what is sent on it may not be repeated.
            self._pool.clear()
        return _judged(answer.status, content)

    def post_json(self, url: str, value: Json, *, headers: Mapping[str, str], seconds: float) -> Json:
        body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        return self.post(url, body, headers={"Content-Type": "application/json", **headers}, seconds=seconds)

    def _read(self, answer: Any, deadline: float) -> bytes:
        """A time-out of the socket is one between two pieces; this one is of the whole."""
        content = b""
        try:
            for piece in answer.stream(CHUNK_BYTES):
                content += piece
                if time.monotonic() > deadline or len(content) > MAX_ANSWER_BYTES:
                    raise Unconfirmed("no answer: too slow, or too long")
        finally:
            answer.close()
        return content


def _judged(status: int, content: bytes) -> Json:
    if status in NOT_DONE:
        raise Busy(f"status {status}")
    if status >= FIRST_SERVER_ERROR:
        raise Unconfirmed(f"status {status}")
    if status >= FIRST_ERROR:
        raise Refused(f"status {status}")
    try:
        parsed = json.loads(content)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {}
