"""`python -m local up|down|status|logs|demo`: the local stage from the command line."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from local import demo, logs
from local.errors import LocalError
from local.outputs import Outputs
from local.progress import Progress
from local.stage import ROOT, Stage

# A closed terminal or a `kill` ends like Ctrl-C: whatever was started is stopped on the way out.
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

LANES = ("valkey", "dynamodb")


def main() -> int:
    arguments = _parse()
    for number in ENDINGS:
        signal.signal(number, _interrupt)
    stage = Stage(arguments.home.resolve())
    try:
        if arguments.command == "up":
            _up(stage, overrides=_lane(arguments.lane) | arguments.overrides)
        elif arguments.command == "down":
            print(f"Stopped {stage.down(Progress())} processes.")
        elif arguments.command == "status":
            return _status(stage)
        elif arguments.command == "demo":
            return 0 if demo.run(stage, overrides=_lane(arguments.lane), reply=arguments.reply) else 1
        else:
            _follow(stage)
    except LocalError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m local", description=__doc__)
    parser.add_argument("--home", type=Path, default=ROOT / ".local", help="folder of the stage; default: .local")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start and deploy; deploy again if it runs already")
    up.add_argument("--overrides", type=_json_object, default={}, help="JSON laid over the stage in cdk.json")
    up.add_argument("--lane", choices=LANES, help="as the stage's `lane` in cdk.json")
    commands.add_parser("down", help="stop everything that `up` started")
    commands.add_parser("status", help="is it up, and where")
    commands.add_parser("logs", help="follow the functions' logs")
    shown = commands.add_parser(
        "demo", help="five WhatsApp fragments go in, one event comes out; up and down around it if need be"
    )
    shown.add_argument("--reply", action="store_true", help="and the responder's answer to the customer")
    shown.add_argument("--lane", choices=LANES, help="of the stage that is brought up for it")
    return parser.parse_args()


def _lane(chosen: str | None) -> dict[str, Any]:
    return {"lane": chosen} if chosen else {}


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _up(stage: Stage, *, overrides: dict[str, Any]) -> None:
    progress = Progress()
    outputs = stage.up(progress, overrides=overrides)
    print(f"Up after {progress.elapsed_seconds:.1f} s; everything about it is in {_shown(stage.outputs_file)}.")
    print(_how_to_send(outputs))


def _how_to_send(outputs: Outputs) -> str:
    return f"""Send a message:

  body='{{"account": "shop", "conversation": "c1", "id": "m1", "text": "Hey"}}'
  secret={outputs.WebhookSecrets["generic"]}
  signature=$(printf %s "$body" | openssl dgst -sha256 -hmac "$secret" | sed 's/.* //')
  curl -d "$body" -H 'Content-Type: application/json' -H "X-Signature-256: sha256=$signature" \\
    '{outputs.ApiEndpoint}/webhook/generic'
"""


def _status(stage: Stage) -> int:
    try:
        outputs = stage.outputs()
    except LocalError as error:
        print(f"{error} ({stage.processes()} processes are left of an earlier one.)")
        return 1
    print(f"Up, {stage.processes()} processes. {outputs.ApiEndpoint}/webhook/generic")
    return 0


def _follow(stage: Stage) -> None:
    for line in logs.follow(stage.outputs(), since_ms=int(time.time() * 1_000) - 60_000):
        print(line, flush=True)


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # Once is enough: a second Ctrl-C must not cut short what the first one set off.
    for each in ENDINGS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
