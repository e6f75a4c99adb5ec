"""Breaks or changes the stage for a scenario, and undoes the changes when the scenario ends."""

import json
import subprocess
import threading
from collections.abc import Sequence
from typing import Any

from bufferctl.errors import Failed, Unreachable
from bufferctl.stage import ROOT
from tools.console.place import ShownStage
from tools.local.workers import kill

OUTAGE = ("stop_valkey", "start_valkey")
KILLED = {"kill_processor": "processor", "kill_conversation_processor": "conversation_processor"}
NOT_TAKEN_BACK = "The stage may not be as it was. For the local stage, `make up` repairs that."


class ChangeFailed(Failed):
    """Raised if a change of the stage could not be made or undone. The scenario then ends."""


class TemporaryChanges:
    """A process that changes the stage while the block runs. It undoes the changes even if the console is killed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def __enter__(self) -> "TemporaryChanges":
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        )
        try:
            self._await_answer()
        except ChangeFailed:
            self._process.communicate()
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        """Wait until the process has undone the changes. Raise ChangeFailed if it could not undo them."""
        printed, _ = self._process.communicate()
        if self._process.returncode and not isinstance(raised[1], ChangeFailed):
            problem = json.loads(printed.splitlines()[-1])["problem"] if printed else ""
            raise ChangeFailed(f"{NOT_TAKEN_BACK} {problem}".strip())

    def order(self, **order: Any) -> None:
        """Make the process carry out an order. It ends if the stage refuses the order. Then raise ChangeFailed."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ChangeFailed(NOT_TAKEN_BACK) from error
        self._await_answer()

    def _await_answer(self) -> None:
        assert self._process.stdout
        response = json.loads(self._process.stdout.readline() or "{}")
        if "problem" in response:
            raise ChangeFailed(response["problem"])
        if not response:
            raise ChangeFailed(NOT_TAKEN_BACK)


class Accidents:
    def __init__(self, place: ShownStage) -> None:
        self._place = place

    @property
    def possible(self) -> set[str]:
        """Return what scenarios may do to this stage. They may break only the local stage."""
        try:
            outputs = self._place.outputs
        except Unreachable:
            return set()
        if outputs is None:
            return {"set_rules"}
        killable = {name for name, role in KILLED.items() if role in outputs.Functions}
        return {"set_rules", *killable, *(OUTAGE if outputs.ValkeyUrl else ())}

    def kill(self, name: str) -> None:
        outputs = self._place.outputs
        assert outputs, "accidents are for the local stage only"
        # Use a thread, because the emulator may reap the dead process only seconds later, and the scenario must not
        # wait.
        threading.Thread(target=kill, args=(outputs, KILLED[name]), daemon=True).start()

    def temporary_changes(self) -> TemporaryChanges:
        return TemporaryChanges(self._place.changer)
