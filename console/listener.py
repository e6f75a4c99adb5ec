"""Prints the stage's events as lines of JSON, until its standard input ends: `python -m console.listener`.

It listens through a temporary rule and queue. It is a process of its own, whose standard input ends when the console
ends. Therefore it removes the rule and the queue even if the console is killed.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from bufferctl.errors import Failed, errors_of_aws
from bufferctl.events import EVERYTHING, subscribe
from bufferctl.interrupts import endings_interrupt
from bufferctl.stage import find_stage
from canary.limits import LONG_POLL_SECONDS

PREFIX = "bufferctl-console"


def main() -> int:
    given = json.loads(sys.argv[1])
    ended = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(ended,), daemon=True).start()
    try:
        with endings_interrupt(), errors_of_aws():
            stage = find_stage(
                given["stage"], profile=given["profile"], region=given["region"], outputs=Path(given["outputs"])
            )
            with subscribe(stage.client, stage.event_bus, pattern=EVERYTHING, prefix=PREFIX) as subscription:
                _say({"listening": True})
                while not ended.is_set():
                    for arrival in subscription.look(wait_seconds=LONG_POLL_SECONDS):
                        _say({"event": arrival.event, "at": arrival.at_ms})
    except Failed as error:
        _say({"problem": str(error)})
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The console has gone. Python must not fail at its exit when it flushes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _wait_for_the_end(ended: threading.Event) -> None:
    # Not `sys.stdin.buffer`: Python crashes if it ends while another thread reads from that.
    while os.read(sys.stdin.fileno(), 1024):
        continue
    ended.set()


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
