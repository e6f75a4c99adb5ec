"""Plays scenarios step by step: what customers do, and accidents of the local stage."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from bufferctl.errors import Failed
from console.customers import CannotDo, Customer
from console.hub import Hub
from console.limits import MAX_STEP_PAUSE_SECONDS, MAX_STEPS, MAX_TEXT_CHARACTERS
from console.simulator import Simulator

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "scenarios"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Actor(_Strict):
    platform: str
    account: str
    user: str
    tenant: str | None = None


class Step(_Strict):
    after: float = Field(
        ge=0, le=MAX_STEP_PAUSE_SECONDS, description="seconds since the beginning of the previous step"
    )
    who: int = Field(default=0, ge=0, description="which customer")
    do: str = Field(description="a kind of customers.KINDS, or an accident")
    text: str = Field(default="", max_length=MAX_TEXT_CHARACTERS)
    note: str = Field(default="", description="what the page says meanwhile")


class Scenario(_Strict):
    title: str
    about: str
    customers: list[Actor] = Field(min_length=1, max_length=2)
    steps: list[Step] = Field(min_length=1, max_length=MAX_STEPS)


def read_scenarios(folder: Path = FOLDER) -> dict[str, Scenario]:
    return {path.stem: Scenario.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))}


class Player:
    """Plays one scenario at a time."""

    def __init__(
        self,
        scenarios: Mapping[str, Scenario],
        simulator: Simulator,
        hub: Hub,
        *,
        accidents: Mapping[str, Callable[[], None]],
    ) -> None:
        self._scenarios = scenarios
        self._simulator = simulator
        self._hub = hub
        self._accidents = accidents
        self._stopped = threading.Event()
        self._playing: threading.Thread | None = None

    def offered(self) -> list[Json]:
        """Return the scenarios that this stage can play."""
        can_send = self._simulator.kinds
        return [
            {"name": name, "title": each.title, "about": each.about}
            for name, each in self._scenarios.items()
            if all(customer.platform in can_send for customer in each.customers)
            and all(step.do in self._accidents or _can_send(each, step, can_send) for step in each.steps)
        ]

    def play(self, name: str, *, run: str) -> None:
        """Start the scenario. `run` becomes a part of its customers' names, so that each run has new customers."""
        if name not in {each["name"] for each in self.offered()}:
            raise CannotDo(f"This stage cannot play a scenario '{name}'.")
        if self._playing and self._playing.is_alive():
            raise CannotDo("A scenario is playing. Stop it first.")
        self._stopped.clear()
        self._playing = threading.Thread(target=self._run, args=(name, run), daemon=True)
        self._playing.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self, name: str, run: str) -> None:
        scenario = self._scenarios[name]
        customers = [Customer(each.platform, each.account, each.user + run, each.tenant) for each in scenario.customers]
        self._tell(name, "began", customers=[each._asdict() for each in customers])
        began = time.monotonic()
        for number, step in enumerate(scenario.steps, start=1):
            # Count from the beginning of the previous step, because a person does not wait for the webhook's answer.
            if self._stopped.wait(max(began + step.after - time.monotonic(), 0)):
                self._tell(name, "stopped")
                return
            began = time.monotonic()
            self._tell(name, "step", step=number, of=len(scenario.steps), note=step.note)
            try:
                if step.do in self._accidents:
                    self._accidents[step.do]()
                else:
                    self._simulator.act(customers[step.who], step.do, text=step.text)
            except (CannotDo, Failed) as error:
                self._tell(name, "problem", note=str(error))
        self._tell(name, "ended")

    def _tell(self, name: str, what: str, **facts: Any) -> None:
        self._hub.publish("scenario", {"name": name, "what": what, **facts})


def _can_send(scenario: Scenario, step: Step, kinds: Mapping[str, list[str]]) -> bool:
    return step.do in kinds.get(scenario.customers[step.who].platform, ())
