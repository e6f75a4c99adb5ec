"""The console's server leaves nothing behind of a page that could not be opened."""

import asyncio
from contextlib import suppress
from typing import Any

from tests.support.console import ImitatedPlace, ImitatedStage
from tools.console.running import make_parts
from tools.console.server import make_app


class Nonsense(ValueError):
    """The stage's answer cannot be understood."""


class PlaceOfNonsense(ImitatedPlace):
    @property
    def sender(self) -> Any:
        raise Nonsense


def test_a_page_that_cannot_be_opened_is_not_taken_for_an_open_one() -> None:
    """Reproduce a defect: the console went on to ask the stage for days, although no page was open."""
    parts = make_parts(PlaceOfNonsense(ImitatedStage()))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_message: Any) -> None:
        return

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "path": "/stream", "raw_path": b"/stream", "root_path": "", "query_string": b"", "headers": [],
    }  # fmt: skip
    with suppress(Nonsense):
        asyncio.run(make_app(parts)(scope, receive, send))
    assert not parts.hub.wait_for_a_reader(timeout_seconds=0)
