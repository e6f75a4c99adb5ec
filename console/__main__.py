"""Starts the console and prints its address: `.venv/bin/python -m console`. Starts the local stage if it is not up."""

import argparse
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from bufferctl.errors import Failed
from bufferctl.stage import LOCAL, LOCAL_OUTPUTS
from console.access import Access
from console.accidents import Accidents
from console.batches import Batches
from console.bus import Bus, Takers
from console.hub import Hub
from console.limits import SHUT_DOWN_SECONDS, TOKEN_BYTES
from console.logs import Logs
from console.looks import Looks
from console.pace import PacedStage
from console.place import Options, Place
from console.scenarios import Player, read_scenarios
from console.server import Parts, make_app
from console.simulator import Explained, Simulator
from console.time_lines import TimeLines
from local.errors import LocalError
from local.progress import Progress
from local.stage import Stage


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    is_local = given.stage == LOCAL
    options = Options(
        stage=given.stage,
        profile=given.profile,
        region=given.region,
        outputs=given.outputs.resolve(),
        allow_changes=is_local or given.allow_changes,
        show_words=is_local or given.show_words,
    )
    try:
        if is_local:
            _start_stage(options.outputs.parent)
        place = Place(options)
        place.stage  # noqa: B018 - fail now if there is no such stage
    except (Failed, LocalError) as error:
        print(error, file=sys.stderr)
        return getattr(error, "code", 1)
    serve(place, port=given.port, open_browser=given.open)
    return 0


def serve(place: Place, *, port: int = 0, open_browser: bool = False) -> None:
    """Serve the page until the process is told to end. Then remove the rule and the queue that listen to the stage."""
    parts = make_parts(place)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        port = listening.getsockname()[1]
        app = Access(make_app(parts), token=token, port=port)
        # Without access logs, since the path contains the token.
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=SHUT_DOWN_SECONDS, lifespan="off"
        )
        threads = [threading.Thread(target=each, daemon=True) for each in (parts.looks.run, parts.bus.run)]
        for each in threads:
            each.start()
        address = f"http://127.0.0.1:{port}/{token}/"
        print(f"The console of the stage {place.options.stage} is at\n\n  {address}\n\nCtrl-C ends it.", flush=True)
        if open_browser:
            webbrowser.open(address)
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            parts.player.stop()
            parts.looks.end()
            parts.bus.end()


def make_parts(place: Place) -> Parts:
    hub, time_lines, batches, stage = Hub(), TimeLines(), Batches(), PacedStage(place)
    looks = Looks(stage, hub, time_lines)
    explained = Explained(stage)
    simulator = Simulator(place, hub, explained=explained, looks=looks, time_lines=time_lines)
    accidents = Accidents(place, place.options.outputs.parent).by_name if place.options.is_local else {}
    return Parts(
        place=place,
        stage=stage,
        hub=hub,
        looks=looks,
        bus=Bus(place.options, Takers(hub, looks, time_lines, batches)),
        time_lines=time_lines,
        batches=batches,
        explained=explained,
        simulator=simulator,
        player=Player(read_scenarios(), simulator, hub, accidents=accidents),
        logs=Logs(place),
    )


def _start_stage(home: Path) -> None:
    stage = Stage(home)
    if stage.lane() is None:
        stage.up(Progress())


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m console", description=__doc__)
    parser.add_argument("--stage", default=LOCAL, help="the stage; default: local, which is started if it is not up")
    parser.add_argument("--profile", help="a profile of your AWS configuration")
    parser.add_argument("--region", help="the stage's region; default: that in cdk.json")
    parser.add_argument("--outputs", type=Path, default=LOCAL_OUTPUTS, help="outputs.json of another local stage")
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--open", action="store_true", help="open the page in this machine's browser")
    parser.add_argument(
        "--allow-changes", action="store_true", help="let the page send, hold, flush, cancel and redrive on AWS, too"
    )
    parser.add_argument("--show-words", action="store_true", help="show what people wrote on AWS, too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
