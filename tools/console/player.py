"""Plays scenarios step by step, and records the steps and the events that followed."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, Protocol

from bufferctl.errors import Failed
from message_buffer.json_object import Json
from tools.console.accidents import KILLED, OUTAGE, ChangeFailed
from tools.console.bus import BATCH_READY, SHUT_DOWN_SECONDS
from tools.console.customers import CannotDo, Customer
from tools.console.hub import Hub
from tools.console.scenarios import Scenario, ScenarioStep

# After a crash, a batch may have to wait for the watchdog's next pass, a lease, and the starts of two functions.
MAX_WAIT_FOR_BATCH_SECONDS = 60.0
# The types of events, besides batches, that a scenario may expect. It cannot expect replies of a responder.
EVENTS = ("messages.amended", "messages.buffer.cancelled", "messages.conversation.taken_over")
NO_BATCH = f"No batch has come for {MAX_WAIT_FOR_BATCH_SECONDS:g} s. The scenario goes on."
TAKEN_BACK = {
    "stop_valkey": "Valkey is running again.",
    "set_rules": "The rules that the scenario set are removed.",
}


class Sends(Protocol):
    """The part of the simulator that the player uses."""

    @property
    def kinds(self) -> Mapping[str, Any]: ...

    def act(self, customer: Customer, kind: str, *, text: str = "") -> Json: ...

    def resume(self, conversation: str) -> None: ...


class ChangesTheStage(Protocol):
    """The part of the temporary changes that the player uses."""

    def __enter__(self) -> "ChangesTheStage": ...

    def __exit__(self, *error: Any) -> None: ...

    def order(self, **order: Any) -> None: ...


class CausesAccidents(Protocol):
    """The part of the accidents that the player uses."""

    @property
    def possible(self) -> set[str]: ...

    def kill(self, name: str) -> None: ...

    def temporary_changes(self) -> ChangesTheStage: ...


class _Stopped(Exception):
    """Raised between two steps of a play that a person has stopped."""


class _PlayRecord:
    """Records one play. Publishes the whole record after each change, so that a page opened later shows all of it."""

    def __init__(self, name: str, scenario: Scenario, run: str, hub: Hub) -> None:
        self.scenario = scenario
        self.customers = [
            Customer(each.platform, each.account, each.user + run, each.tenant) for each in scenario.customers
        ]
        self.conversations = {each.conversation: who for who, each in enumerate(self.customers)}
        """The customer's number, by conversation id. The stage may answer with another id than the console assumed."""
        self.batches_came_at: list[float] = []
        self.is_over = False
        """True if later events no longer belong to the play."""
        self._hub = hub
        self._batch_ids: set[str] = set()
        self.progress: Json = {
            "name": name,
            "title": scenario.title,
            "about": scenario.about,
            "warning": scenario.warning,
            "run": run,
            "customers": [each._asdict() for each in self.customers],
            "state": "playing",
            "of": len(scenario.steps),
            "steps": [],
            "takenBack": [],
            "batches": [],
            "events": [],
            "result": scenario.result,
            "expected": [each.model_dump() for each in scenario.batches],
        }

    def conversation_of(self, who: int) -> str:
        """Return the id of the customer's conversation. The stage's response may have corrected it."""
        return next(name for name, whose in reversed(self.conversations.items()) if whose == who)

    def take(self, kind: str, detail: Json) -> bool:
        """Record the event if it belongs to the play and is not a repetition. Return whether it belongs to the play."""
        who = self.conversations.get(str(detail.get("conversationId")))
        if who is None or kind not in (BATCH_READY, *EVENTS) or self.is_over:
            return False
        if kind != BATCH_READY:
            self.progress["events"].append(kind)
        elif (batch_id := str(detail.get("batchId"))) not in self._batch_ids:
            self._batch_ids.add(batch_id)
            self.batches_came_at.append(time.monotonic())
            seen = {"messages": detail.get("messageCount", 0), "reason": detail.get("flushReason")}
            self.progress["batches"].append({"who": who, **seen, "lane": detail.get("lane"), "batchId": batch_id})
        self.publish()
        return True

    @property
    def is_complete(self) -> bool:
        """Return whether as many batches, messages and other events came as the scenario expects."""
        came, expected = self.progress["batches"], self.progress["expected"]
        return (
            len(came) >= len(expected)
            and sum(each["messages"] for each in came) >= sum(each["messages"] for each in expected)
            and len(self.progress["events"]) >= len(self.scenario.events)
        )

    @property
    def is_as_expected(self) -> bool:
        """Return whether each customer's batches, and the other events, are those that the scenario expects."""
        came = [{name: value for name, value in each.items() if name != "batchId"} for each in self.progress["batches"]]
        expected = self.progress["expected"]
        return self.progress["events"] == self.scenario.events and all(
            [each for each in came if each["who"] == who] == [each for each in expected if each["who"] == who]
            for who in range(len(self.customers))
        )

    def publish(self) -> None:
        self.progress["asExpected"] = self.is_as_expected
        self._hub.publish("scenario", self.progress)


class Player:
    """Plays one scenario at a time."""

    def __init__(
        self, scenarios: Mapping[str, Scenario], simulator: Sends, hub: Hub, *, accidents: CausesAccidents
    ) -> None:
        self._scenarios = scenarios
        self._simulator = simulator
        self._hub = hub
        self._accidents = accidents
        self._changed = threading.Condition()
        self._is_stopped = False
        self._play: _PlayRecord | None = None
        self._playing: threading.Thread | None = None

    @property
    def progress(self) -> Json | None:
        """Return the record of the newest play, or None before the first play."""
        with self._changed:
            # Copy the record, because the play continues to change it.
            return {**self._play.progress, "steps": [*self._play.progress["steps"]]} if self._play else None

    def offered(self) -> list[Json]:
        """Return the scenarios that this stage can play."""
        can_send, possible = self._simulator.kinds, self._accidents.possible
        return [
            {"name": name, "title": each.title, "about": each.about}
            for name, each in self._scenarios.items()
            if all(customer.platform in can_send for customer in each.customers)
            and all(_can_do(each, step, can_send, possible) for step in each.steps)
        ]

    def play(self, name: str, *, run: str) -> None:
        """Start the scenario. `run` becomes a part of its customers' names, so that each run has new customers."""
        if name not in {each["name"] for each in self.offered()}:
            raise CannotDo(f"This stage cannot play a scenario '{name}'.")
        with self._changed:
            if self._playing and self._playing.is_alive():
                raise CannotDo("A scenario is playing. Stop it first.")
            self._is_stopped = False
            self._play = _PlayRecord(name, self._scenarios[name], run, self._hub)
            self._playing = threading.Thread(target=self._run, args=(self._play,), daemon=True)
            self._playing.start()

    def stop(self) -> None:
        """Stop the scenario, which then undoes its changes of the stage."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def end(self) -> None:
        """Stop the scenario, and wait a short time until its changes are undone."""
        self.stop()
        if self._playing:
            self._playing.join(SHUT_DOWN_SECONDS)

    def wait(self, *, timeout_seconds: float) -> bool:
        """Wait until no scenario plays. Return False if that takes too long."""
        if self._playing:
            self._playing.join(timeout_seconds)
        return not (self._playing and self._playing.is_alive())

    def take(self, kind: str, detail: Json) -> None:
        """Record an event of the stage, even if it comes after the end of its play."""
        with self._changed:
            if self._play and self._play.take(kind, detail):
                self._changed.notify_all()

    def note_reader(self, customer: Customer) -> None:
        """Record no more events of a finished play if the page's reader now writes as one of its customers."""
        with self._changed:
            play = self._play
            if play and customer in play.customers and play.progress["state"] in ("ended", "stopped"):
                play.is_over = True

    def _run(self, play: _PlayRecord) -> None:
        state, problem = "ended", ""
        kinds_of_changes = {step.do for step in play.scenario.steps} & TAKEN_BACK.keys()
        try:
            with ExitStack() as stack:
                changes = stack.enter_context(self._accidents.temporary_changes()) if kinds_of_changes else None
                self._record(play)
                self._do_steps(play, changes)
                self._record(play, state="waiting")
                self._wait(lambda: play.is_complete, MAX_WAIT_FOR_BATCH_SECONDS)
        except _Stopped:
            state = "stopped"
        except ChangeFailed as error:
            state, problem = "stopped", str(error)
        except Exception as error:  # noqa: BLE001 - the page says so; else it would wait for the scenario for ever
            state, problem = "stopped", f"The console failed: {type(error).__name__}"
        taken_back = [] if problem else [TAKEN_BACK[kind] for kind in TAKEN_BACK if kind in kinds_of_changes]
        self._record(play, state=state, problem=problem, takenBack=taken_back)

    def _do_steps(self, play: _PlayRecord, changes: ChangesTheStage | None) -> None:
        began = time.monotonic()
        for step in play.scenario.steps:
            problem = ""
            if step.after_batch:
                if self._wait(lambda: len(play.batches_came_at) >= step.after_batch, MAX_WAIT_FOR_BATCH_SECONDS):  # noqa: B023
                    began = play.batches_came_at[step.after_batch - 1]
                else:
                    problem = NO_BATCH
            # Count the pause from the beginning of the previous step, because a person does not wait for the webhook's
            # answer.
            self._wait(lambda: False, began + step.after - time.monotonic())
            began = time.monotonic()
            entry = {"note": step.note, "do": step.do, "at": round(time.time() * 1_000), "problem": problem}
            with self._changed:
                play.progress["steps"].append(entry)
            self._record(play)
            try:
                entry["problem"] = self._do(play, step, changes) or problem
            except ChangeFailed:
                raise
            except (CannotDo, Failed) as error:
                entry["problem"] = str(error)
            if entry["problem"]:
                self._record(play)

    def _do(self, play: _PlayRecord, step: ScenarioStep, changes: ChangesTheStage | None) -> str:
        """Do the step. Return the problem that occurred, or an empty text."""
        if step.do in KILLED:
            self._accidents.kill(step.do)
        elif step.do == "resume":
            self._simulator.resume(play.conversation_of(step.who))
        elif step.do in OUTAGE and changes:
            changes.order(do=step.do)
        elif step.do == "set_rules" and changes:
            scope = f"conversation:{play.conversation_of(step.who)}"
            changes.order(do=step.do, scope=scope, rules=step.rules)
        else:
            sent = self._simulator.act(play.customers[step.who], step.do, text=step.text)
            with self._changed:
                play.conversations[sent["conversation"]] = step.who
            if sent["status"] != HTTPStatus.OK:
                return f"The stage answered {sent['status']}."
        return ""

    def _wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition holds, and return whether it does. Raise _Stopped if a person stops the scenario."""
        with self._changed:
            holds = self._changed.wait_for(lambda: self._is_stopped or until(), max(seconds, 0))
            if self._is_stopped:
                raise _Stopped
            return holds

    def _record(self, play: _PlayRecord, **facts: Any) -> None:
        with self._changed:
            play.progress.update(facts)
            play.publish()


def _can_do(scenario: Scenario, step: ScenarioStep, kinds: Mapping[str, Any], possible: set[str]) -> bool:
    return step.do in possible or step.do == "resume" or step.do in kinds.get(scenario.customers[step.who].platform, ())
