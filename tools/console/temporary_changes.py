"""Changes the stage for a scenario, and undoes the changes at the end: `python -m tools.console.temporary_changes`.

It reads orders as lines of JSON from its standard input, which ends when the scenario or the console ends. Because it
is a process of its own, it starts Valkey again and removes the rules even if the console is killed.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from bufferctl.errors import Failed, NotFound, errors_of_aws
from bufferctl.interrupts import endings_interrupt
from bufferctl.stage import find_stage
from message_buffer.json_object import Json
from tools.local.errors import LocalError
from tools.local.stage import Stage as LocalStage

ENDED = "The local stage has ended meanwhile, or is being started again."


class Asks(Protocol):
    """A stage that carries out operators' commands."""

    def ask(self, operation: str, **fields: Any) -> Json: ...


class StageChanges:
    """Changes the stage. The changes are undone when `stack` is closed."""

    def __init__(self, stage: Asks, local_stage: LocalStage, stack: ExitStack) -> None:
        self._stage = stage
        self._local_stage = local_stage
        self._stack = stack
        self._outage = ExitStack()

    def carry_out(self, order: Mapping[str, Any]) -> None:
        match order["do"]:
            case "set_rules":
                self._stack.enter_context(_rules(self._stage, order["scope"], order["rules"]))
            case "stop_valkey":
                self._outage = self._stack.enter_context(ExitStack())
                self._outage.enter_context(_outage(self._local_stage))
            case "start_valkey":
                self._outage.close()


@contextmanager
def _outage(local_stage: LocalStage) -> Iterator[None]:
    """Stop Valkey while the block runs. Raise LocalError if Valkey cannot start again because the stage has ended."""
    with local_stage.without_valkey():
        yield
    # A command that ends or replaces the stage removes this file first.
    if not local_stage.outputs_file.exists():
        raise LocalError(ENDED)


@contextmanager
def _rules(stage: Asks, scope: str, rules: Json) -> Iterator[None]:
    """Set rules where there are none. At the end, remove them, unless an operator has changed them in the meantime."""
    try:
        stage.ask("rules.set", scope=scope, rules=rules, expectedVersion=0)
        yield
    finally:
        try:
            _remove(stage, scope, rules)
        except Failed as error:
            raise Failed(f"Rules may remain: `bufferctl rules delete {scope}` removes them. {error}") from error


def _remove(stage: Asks, scope: str, rules: Json) -> None:
    # There may be no rules, because they could not be set, or because an operator has removed them.
    with suppress(NotFound):
        found = stage.ask("rules.get", scope=scope)
        if found["rules"] == rules:
            stage.ask("rules.delete", scope=scope, expectedVersion=found["version"])


def main() -> int:
    given = json.loads(sys.argv[1])
    try:
        with endings_interrupt(), errors_of_aws(), ExitStack() as stack:
            outputs = Path(given["outputs"])
            stage = find_stage(given["stage"], profile=given["profile"], region=given["region"], outputs=outputs)
            changes = StageChanges(stage, LocalStage(outputs.parent), stack)
            _print({"ready": True})
            for line in sys.stdin:
                changes.carry_out(json.loads(line))
                _print({"done": True})
    except (Failed, LocalError) as error:
        with suppress(BrokenPipeError):
            _print({"problem": str(error)})
        return 1
    except (KeyboardInterrupt, BrokenPipeError):
        # The console has ended. Discard the output, because otherwise Python would fail to flush it at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _print(message: Json) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main())
