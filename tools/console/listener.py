"""Prints the stage's events as lines of JSON, until its standard input ends: `python -m tools.console.listener`.

It listens through a temporary rule and queue. It is a process of its own, whose standard input ends when the console
ends. Therefore it removes the rule and the queue even if the console is killed.

If AWS cannot be reached, the queue keeps the events, and the listener tries again. When a local stage ends, its rules
and queues are gone. The listener then waits for the next start, and creates new ones.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from bufferctl.errors import Failed, Unreachable
from bufferctl.events import EVERYTHING, subscribe
from bufferctl.interrupts import endings_interrupt
from lambdas.canary.listening import LONG_POLL_SECONDS
from tools.console.pace import PAUSE_AFTER_A_PROBLEM_SECONDS
from tools.console.place import Options, ShownStage

# After the end of a local stage, the listener checks this often whether the stage has started again, so that it listens
# before the first batch is due.
LOCAL_STAGE_POLL_SECONDS = 0.25
PREFIX = "bufferctl-console"


def main() -> int:
    given = json.loads(sys.argv[1])
    ended = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(ended,), daemon=True).start()
    place = ShownStage(Options(**given | {"outputs": Path(given["outputs"])}))
    try:
        with endings_interrupt():
            while not ended.is_set():
                try:
                    _listen(place, ended)
                except Unreachable as error:
                    _print_problem(str(error))
                    ended.wait(LOCAL_STAGE_POLL_SECONDS if place.options.is_local else PAUSE_AFTER_A_PROBLEM_SECONDS)
    except Failed as error:
        _print_problem(str(error))
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The console has ended. Discard the output, because otherwise Python would fail to flush it at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _listen(place: ShownStage, ended: threading.Event) -> None:
    """Listen until the input ends. Raise Unreachable if the stage cannot be reached before that."""
    with place.errors():
        stage = place.find()
        with subscribe(stage.client, stage.event_bus, pattern=EVERYTHING, prefix=PREFIX) as subscription:
            _print_problem(None)
            while not ended.is_set():
                try:
                    with place.errors():
                        arrived = subscription.poll(wait_seconds=LONG_POLL_SECONDS)
                except Unreachable as error:
                    if place.options.is_local:
                        raise
                    _print_problem(str(error))
                    ended.wait(PAUSE_AFTER_A_PROBLEM_SECONDS)
                    continue
                _print_problem(None)
                for arrival in arrived:
                    _print({"event": arrival.event, "at": arrival.at_ms})


def _wait_for_the_end(ended: threading.Event) -> None:
    # Do not read from `sys.stdin.buffer`, because Python crashes if it ends while another thread reads from that.
    while os.read(sys.stdin.fileno(), 1024):
        continue
    ended.set()


def _print_problem(problem: str | None) -> None:
    """Print the problem or, if there is none, that the listener receives events."""
    _print({"problem": problem})


def _print(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
