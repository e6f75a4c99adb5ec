"""Creates and connects the parts of the console, and serves its page while a block runs."""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tools.console.access import Access
from tools.console.accidents import Accidents
from tools.console.batches import Batches
from tools.console.bus import SHUT_DOWN_SECONDS, BusListener, Takers
from tools.console.hub import Hub
from tools.console.logs import Logs
from tools.console.pace import PacedStage
from tools.console.place import ShownStage
from tools.console.player import Player
from tools.console.polls import Polls
from tools.console.scenarios import read_scenarios
from tools.console.server import ConsoleParts, make_app
from tools.console.simulator import Simulator
from tools.console.time_lines import TimeLines

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
            parts.player.end()
            parts.polls.end()
            parts.bus.end()
            server.should_exit = True
            parts.hub.end()
            serving.join(2 * SHUT_DOWN_SECONDS)


def make_parts(place: ShownStage) -> ConsoleParts:
    """Return the parts of a console of this stage. None of them runs yet."""
    hub, time_lines, batches, stage = Hub(), TimeLines(), Batches(), PacedStage(place)
    polls = Polls(stage, hub, time_lines)
    simulator = Simulator(place, hub, stage=stage, polls=polls, time_lines=time_lines)
    player = Player(read_scenarios(), simulator, hub, accidents=Accidents(place))
    takers = Takers(hub, polls, time_lines, batches, player.take)
    return ConsoleParts(
        place=place,
        stage=stage,
        hub=hub,
        polls=polls,
        bus=BusListener(place.listener, takers, words=place.options.show_words),
        time_lines=time_lines,
        batches=batches,
        simulator=simulator,
        player=player,
        logs=Logs(place),
    )
