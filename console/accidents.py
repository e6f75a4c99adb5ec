"""Breaks the local stage on purpose, for scenarios: kills functions' processes, and stops Valkey for some seconds."""

import threading
from collections.abc import Callable
from pathlib import Path

from console.limits import VALKEY_OUTAGE_SECONDS
from console.place import Place
from local.stage import Stage
from local.workers import kill


class Accidents:
    def __init__(self, place: Place, home: Path) -> None:
        self._place = place
        self._stage = Stage(home)

    @property
    def by_name(self) -> dict[str, Callable[[], None]]:
        return {
            "kill_processor": lambda: self._kill("processor"),
            "kill_conversation_processor": lambda: self._kill("conversation_processor"),
            "stop_valkey": self._stop_valkey,
        }

    def _kill(self, role: str) -> None:
        outputs = self._place.outputs
        assert outputs, "accidents are for the local stage only"
        kill(outputs, role)

    def _stop_valkey(self) -> None:
        """Stop Valkey, and start it again after some seconds, while the scenario goes on."""

        def outage() -> None:
            with self._stage.without_valkey():
                threading.Event().wait(VALKEY_OUTAGE_SECONDS)

        threading.Thread(target=outage).start()
