"""Starts the console, and the local stage if it is down, and prints the page's address: `python -m tools.console`."""

import argparse
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bufferctl.errors import Failed
from bufferctl.interrupts import endings_interrupt
from bufferctl.stage import LOCAL, LOCAL_OUTPUTS
from tools.console.place import Options, ShownStage
from tools.console.running import running
from tools.local.errors import LocalError
from tools.local.progress import Progress
from tools.local.stage import Stage


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
        if is_local and (local := Stage(options.outputs.parent)).lane() is None:
            local.up(Progress())
        place = ShownStage(options)
        place.stage  # noqa: B018 - fail now if there is no such stage
    except (Failed, LocalError) as error:
        print(error, file=sys.stderr)
        return getattr(error, "code", 1)
    with endings_interrupt(), running(place, port=given.port) as address:
        print(f"The console of the stage {options.stage} is at\n\n  {address}\n\nCtrl-C ends it.", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m tools.console", description=__doc__)
    parser.add_argument("--stage", default=LOCAL, help="the stage; default: local, which is started if it is not up")
    parser.add_argument("--profile", help="a profile of your AWS configuration")
    parser.add_argument("--region", help="the stage's region; default: that in cdk.json")
    parser.add_argument("--outputs", type=Path, default=LOCAL_OUTPUTS, help="outputs.json of another local stage")
    parser.add_argument("--port", type=int, default=0, help="the port; default: a free one")
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="let the page send, hold, resume, flush and cancel on a stage in AWS, too",
    )
    parser.add_argument("--show-words", action="store_true", help="show what people wrote on a stage in AWS, too")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
