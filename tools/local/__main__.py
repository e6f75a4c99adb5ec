"""`.venv/bin/python -m tools.local up|down|status|running|logs|demo`: the local stage from the command line."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from infra import cli
from tools.local.errors import LocalError

try:
    from bufferctl.errors import Failed, errors_of_aws
    from bufferctl.formatting import counted
    from bufferctl.stage import LOCAL, find_stage
    from tools.local import demo, logs
    from tools.local.progress import Progress
    from tools.local.stage import LANES, ROOT, Stage
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

# `make logs` begins this far in the past, because developers often look only after something has happened.
MAX_PAST_LOGS_MS = 60_000
# What a developer needs after `make up`.
NEXT = """
  make console                             write as a customer, and see what waits
  .venv/bin/bufferctl tail                 follow the events; in another terminal: .venv/bin/bufferctl send Hey
  docs/consumer.md, docs/sending.md        consume the batches, and send messages, with programs of your own"""
# A closed terminal or a `kill` ends the command as Ctrl-C does, so that the command still stops everything it started.
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    arguments = _parse()
    for number in ENDINGS:
        signal.signal(number, _interrupt)
    stage = Stage(arguments.home.resolve())
    try:
        if arguments.command == "up":
            overrides = _lane(arguments.lane) | arguments.overrides
            if not arguments.yes:
                _agree_to_replace(stage, overrides)
            _up(stage, overrides=overrides, address=arguments.address, with_rules=arguments.with_rules)
        elif arguments.command == "down":
            _down(stage)
        elif arguments.command == "status":
            return _status(stage)
        elif arguments.command == "running":
            return 0 if stage.processes() else 1
        elif arguments.command == "demo":
            return 0 if demo.run(stage, overrides=_lane(arguments.lane), reply=arguments.reply) else 1
        else:
            _follow(stage, arguments.id)
    except LocalError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m tools.local", description=__doc__)
    parser.add_argument("--home", type=Path, default=ROOT / ".local", help="the stage's folder; default: .local")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start and deploy; deploy again if it runs already")
    up.add_argument(
        "--overrides", type=_json_object, default={}, help="settings as JSON, which replace those of cdk.json"
    )
    up.add_argument("--lane", choices=LANES, help="default: the running stage's lane, or `lane` in cdk.json")
    up.add_argument(
        "--address", help="the address of a tunnel through which platforms call the stage, such as https://shop.example"
    )
    up.add_argument("--yes", action="store_true", help="do not ask before replacing a stage of the other lane")
    up.add_argument("--with-rules", action="store_true", help="set the rules again that the stage before had at `down`")
    commands.add_parser("down", help="stop everything that `up` started")
    commands.add_parser("status", help="say whether the stage is up, and at which URL")
    commands.add_parser("running", help="exit with 0 if any process of the stage is running")
    followed = commands.add_parser("logs", help="follow the logs of the functions")
    followed.add_argument("id", nargs="?", help="show only lines about this conversation or batch, from the beginning")
    shown = commands.add_parser(
        "demo", help="send five WhatsApp fragments and show the one event; start and stop a stage if none is up"
    )
    shown.add_argument("--reply", action="store_true", help="show the responder's answer to the customer, too")
    shown.add_argument("--lane", choices=LANES, help="the lane of the stage, if the demo starts one")
    return parser.parse_args()


def _lane(chosen: str | None) -> dict[str, Any]:
    return {"lane": chosen} if chosen else {}


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _agree_to_replace(stage: Stage, overrides: dict[str, Any]) -> None:
    """Ask before `up` replaces the running stage. Raise LocalError if the answer is no, or if there is no terminal."""
    lane = stage.lane()
    if lane is None or overrides.get("lane", lane) == lane:
        return
    print(
        f"The running stage has the {lane} lane and would be replaced. This would delete {_waiting(stage)} and the "
        f"logs, and without --with-rules the rules."
    )
    if not sys.stdin.isatty():
        raise LocalError("Nothing was done. Run `make down` first, or add ARGS=--yes; `make up` alone keeps the lane.")
    if input("Replace it? [y/N] ").strip().lower() not in ("y", "yes"):
        raise LocalError("Nothing was done.")


def _waiting(stage: Stage) -> str:
    """Return a sentence about the number of waiting conversations, as `bufferctl status` counts them."""
    try:
        seen = _ask(stage, "status")
    except LocalError as error:
        return f"all waiting conversations (they could not be counted: {error})"
    waiting = seen["pending"] + seen["inflight"] + seen.get("windows", {}).get("open", 0)
    return counted(waiting, "waiting conversation")


def _ask(stage: Stage, operation: str, **fields: str) -> dict[str, Any]:
    try:
        with errors_of_aws():
            running = find_stage(LOCAL, profile=None, region=None, outputs=stage.outputs_file)
            return running.ask(operation, **fields)
    except Failed as error:
        raise LocalError(str(error)) from error


def _up(stage: Stage, *, overrides: dict[str, Any], address: str | None, with_rules: bool) -> None:
    progress = Progress()
    stage.up(progress, overrides=overrides, address=address, with_rules=with_rules)
    print(
        f"Up after {progress.elapsed_seconds:.1f} s. Addresses, names and secrets are in {_shown(stage.outputs_file)}."
    )
    print(NEXT)


def _down(stage: Stage) -> None:
    waiting = _waiting(stage) if stage.lane() else None
    try:
        rules = stage.keep()
    finally:
        stopped = stage.down(Progress())
    back = f", and {counted(rules, 'rule')}, which `make up ARGS=--with-rules` sets again" if rules else ""
    dropped = f" Dropped {waiting}{back}. The next `make up` has the same port and webhook secrets." if waiting else ""
    print(f"Stopped {counted(stopped, 'process')}.{dropped}")


def _status(stage: Stage) -> int:
    try:
        outputs = stage.outputs()
    except LocalError as error:
        left = stage.processes()
        print(f"{error} {_left(left)}" if left else error)
        return 1
    print(f"Up, {counted(stage.processes(), 'process')}. {outputs.ApiEndpoint}/webhook/generic")
    return 0


def _left(count: int) -> str:
    are, them = ("is", "it") if count == 1 else ("are", "them")
    return f"({counted(count, 'process')} of an earlier stage {are} left: `make down` stops {them}.)"


def _follow(stage: Stage, name: str | None) -> None:
    outputs, since_ms, logged = stage.outputs(), int(time.time() * 1_000) - MAX_PAST_LOGS_MS, None
    if name:
        since_ms, logged = 0, str(_ask(stage, "id.look_up", id=name)["logged"])
    for line in logs.follow(outputs, since_ms=since_ms, about=logged):
        print(line, flush=True)


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # A second Ctrl-C must not interrupt the clean-up that the first one began.
    for each in ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
