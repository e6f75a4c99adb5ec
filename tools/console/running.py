"""Creates and connects the parts of the console, and serves its page while a block runs."""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tools.console.access import Access
from tools.console.bus import SHUT_DOWN_SECONDS, Bus
from tools.console.history import History
from tools.console.hub import Hub
from tools.console.pace import PacedStage
from tools.console.place import ShownStage
from tools.console.polls import Polls
from tools.console.server import ConsoleParts, make_app

TOKEN_BYTES = 24


@contextmanager
def running(place: ShownStage, *, port: int = 0) -> Iterator[str]:
    """Serve the page, and yield its address. At the end, remove the rule and queue that receive the stage's events."""
    parts = make_parts(place)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        # Listen now, because the address may be used before the server's thread accepts. Until then connections wait.
        listening.listen()
        port = listening.getsockname()[1]
        # Access logs would contain the path, and thereby the token.
        config = uvicorn.Config(
            Access(make_app(parts), token=token, port=port),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=SHUT_DOWN_SECONDS,
            lifespan="off",
        )
        server = uvicorn.Server(config)
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        watching = [threading.Thread(target=each, daemon=True) for each in (parts.polls.run, parts.bus.run)]
        for each in (serving, *watching):
            each.start()
        try:
            yield f"http://127.0.0.1:{port}/{token}/"
        finally:
            parts.polls.end()
            parts.bus.end()
            server.should_exit = True
            parts.hub.end()
            serving.join(2 * SHUT_DOWN_SECONDS)


def make_parts(place: ShownStage) -> ConsoleParts:
    """Return the parts of a console of this stage. None of them runs yet."""
    hub, history, stage = Hub(), History(), PacedStage(place)
    polls = Polls(stage, hub, history)
    bus = Bus(place.listener, hub=hub, polls=polls, history=history, words=place.options.show_words)
    return ConsoleParts(place=place, stage=stage, hub=hub, polls=polls, bus=bus, history=history)
