"""The scenarios say what the formula of the due time says, and the player takes back what it has changed."""

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from bufferctl.errors import Unreachable
from bufferctl.verify import RULES_IN_FORCE_SECONDS
from message_buffer.json_object import Json
from message_buffer.limits import SECOND_MS
from message_buffer.rules.control_words import compared_form
from message_buffer.rules.due_time import (
    Due,
    Facts,
    due_after_hold,
    due_after_message,
    due_after_typing,
)
from message_buffer.rules.layers import PRESETS, Rules
from tests.support.script_model import due_after_resume, due_after_retime
from tools.console.accidents import KILLED, OUTAGE, ChangeFailed
from tools.console.bus import BATCH_READY
from tools.console.customers import KINDS, CannotDo, Customer
from tools.console.hub import Hub
from tools.console.player import Player
from tools.console.scenarios import FOLDER, ExpectedBatch, Scenario, ScenarioStep, read_scenarios

SCENARIOS = read_scenarios()
# The stages of cdk.json have these rules.
RULES = Rules.model_validate(PRESETS["customers"])
# Each step is at least this far from its customer's due times, so that a busy machine still shows what the scenario
# says.
MARGIN_MS = 400
# In these two, the formula alone does not say what comes.
ACCIDENTS = {"12-crash-of-the-processor", "13-outage-of-valkey"}


# -- what the formula says ---------------------------------------------------------------------------------


@dataclass
class Waiting:
    """The open buffer of one customer, as the formula sees it."""

    facts: Facts | None = None
    last_at_ms: int | None = None
    held_until_ms: int = 0
    is_pending: bool = False
    """True if the newest message waits for a transcript."""
    rules: Json = field(default_factory=dict)

    @property
    def due(self) -> Due | None:
        return self.facts.due if self.facts else None

    def add(self, now_ms: int, *, is_media: bool = False, is_pending: bool = False) -> None:
        gap_ms = None if self.last_at_ms is None else now_ms - self.last_at_ms
        before = self.facts or Facts(now_ms, now_ms, 0)
        facts = before._replace(
            last_at_ms=now_ms, message_count=before.message_count + 1, gap_ms=gap_ms, held_until_ms=self.held_until_ms
        )
        self.is_pending = is_pending
        timing = RULES.timing_of(is_media=is_media, is_pending=is_pending)
        self.facts, self.last_at_ms = facts._replace(due=due_after_message(facts, timing, now_ms)), now_ms

    def change(self, due: Due) -> None:
        assert self.facts
        self.facts = self.facts._replace(due=due)


class Foretold:
    """The batches and events that follow from the formula, if the steps of a scenario take no time."""

    def __init__(self, scenario: Scenario) -> None:
        self._waiting = [Waiting() for _ in scenario.customers]
        self.batches: list[tuple[int, ExpectedBatch]] = []
        """When each batch is emitted, and the batch."""
        self.events: list[str] = []
        self.narrowest_ms = 10**9
        """The shortest time between a step and the due time of its customer's buffer."""
        now_ms = 0
        for step in scenario.steps:
            now_ms = self._time_of(step, now_ms)
            self._take_due(now_ms)
            self._do(step, now_ms)
        self._take_due(None)

    def _time_of(self, step: ScenarioStep, previous_ms: int) -> int:
        after_ms = round(step.after * SECOND_MS)
        if not step.after_batch:
            return previous_ms + after_ms
        self._take_due(None, until=step.after_batch)
        return max(self.batches[step.after_batch - 1][0] + after_ms, previous_ms)

    def _take_due(self, now_ms: int | None, *, until: int | None = None) -> None:
        while open_buffers := [(each.due, who) for who, each in enumerate(self._waiting) if each.due]:
            due, who = min(open_buffers)
            assert due
            if (now_ms is not None and due.due_at_ms > now_ms) or (until and len(self.batches) >= until):
                return
            facts = self._waiting[who].facts
            assert facts
            self._waiting[who].facts = None
            self.batches.append(
                (due.due_at_ms, ExpectedBatch(who=who, messages=facts.message_count, reason=due.reason))
            )

    def _do(self, step: ScenarioStep, now_ms: int) -> None:
        waiting = self._waiting[step.who]
        if not step.after_batch:
            until_due = [waiting.due.due_at_ms - now_ms] if waiting.due else []
            since_left = [now_ms - at_ms for at_ms, batch in self.batches if batch.who == step.who]
            self.narrowest_ms = min([self.narrowest_ms, *until_due, *since_left])
        match step.do:
            case "text" if self._is_stop_word(step, waiting):
                waiting.facts = None
                self.events.append("messages.buffer.cancelled")
            case "text" | "file" | "voice":
                waiting.add(now_ms, is_media=step.do != "text", is_pending=step.do == "voice")
            case "set_rules":
                waiting.rules = step.rules
            case "human_reply":
                assert waiting.rules["onHumanReply"] == {"hold": "1h"}
                waiting.held_until_ms = now_ms + 3_600 * SECOND_MS
                if waiting.due and waiting.facts:
                    waiting.change(due_after_hold(waiting.due, waiting.held_until_ms, waiting.facts.last_at_ms))
                self.events.append("messages.conversation.taken_over")
            case _:
                self._change(step, waiting, now_ms)

    @staticmethod
    def _change(step: ScenarioStep, waiting: Waiting, now_ms: int) -> None:
        """Do a step that is about messages that wait."""
        facts, due = waiting.facts, waiting.due
        assert facts
        assert due
        match step.do:
            case "delete":
                waiting.facts = facts._replace(message_count=facts.message_count - 1)
            case "edit" if waiting.is_pending:
                # The transcript ends the wait for it.
                waiting.change(due_after_retime(facts, RULES.timing, now_ms))
            case "typing":
                waiting.change(
                    due_after_typing(
                        due,
                        first_at_ms=facts.first_at_ms,
                        last_at_ms=facts.last_at_ms,
                        extend_ms=RULES.typing_inference_ms,
                        max_wait_ms=RULES.max_wait_ms,
                        now_ms=now_ms,
                    )
                )
            case "resume":
                waiting.change(
                    due_after_resume(
                        due, held_until_ms=waiting.held_until_ms, last_at_ms=facts.last_at_ms, now_ms=now_ms
                    )
                )
                waiting.held_until_ms = 0
            case _:
                assert step.do in ("edit", "again"), step.do

    @staticmethod
    def _is_stop_word(step: ScenarioStep, waiting: Waiting) -> bool:
        return compared_form(step.text) in map(compared_form, waiting.rules.get("stopWords", ()))


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - ACCIDENTS))
def test_the_formula_gives_the_batches_that_the_scenario_promises(name: str) -> None:
    scenario, foretold = SCENARIOS[name], Foretold(SCENARIOS[name])
    assert [batch for _, batch in foretold.batches] == scenario.batches
    assert foretold.events == scenario.events


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - ACCIDENTS))
def test_no_step_is_so_near_a_due_time_that_a_busy_machine_shows_something_else(name: str) -> None:
    assert Foretold(SCENARIOS[name]).narrowest_ms >= MARGIN_MS


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_step_that_needs_a_rule_comes_when_the_rule_is_in_force(name: str) -> None:
    since_seconds, stop_words = 0.0, set[str]()
    for step in SCENARIOS[name].steps:
        since_seconds += step.after
        if step.do == "set_rules":
            since_seconds, stop_words = 0.0, set(step.rules.get("stopWords", ()))
        if step.do == "human_reply" or compared_form(step.text) in stop_words:
            assert since_seconds >= RULES_IN_FORCE_SECONDS


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_can_be_played_on_the_local_stage(name: str) -> None:
    scenario = SCENARIOS[name]
    for step in scenario.steps:
        kinds = KINDS[scenario.customers[step.who].platform]
        assert step.do in {*KILLED, *OUTAGE, "set_rules", "resume", *kinds}
        assert step.rules == {} or step.do == "set_rules"
    assert bool(scenario.warning) is any(step.do in {*KILLED, *OUTAGE} for step in scenario.steps)
    # The numbers of the files are the order of the buttons.
    assert list(SCENARIOS) == sorted(path.stem for path in FOLDER.glob("*.json"))


# -- the player --------------------------------------------------------------------------------------------


class Simulated:
    """A simulator whose stage answers everything, and emits a batch when the test says so."""

    def __init__(self) -> None:
        self.kinds = KINDS
        self.done: list[str] = []
        self.status = 200

    def act(self, customer: Customer, kind: str, *, text: str = "") -> Json:
        if text == "refuse":
            raise CannotDo("This customer has not sent that message.")
        if text == "away":
            raise Unreachable("The webhook cannot be reached.")
        if text == "nonsense":
            raise ValueError
        self.done.append(kind)
        return {"conversation": customer.conversation, "status": self.status}

    def resume(self, conversation: str) -> None:
        self.done.append(f"resume {conversation}")


def conversation_of(user: str) -> str:
    return f"default/generic/shop/{user}"


class Changed:
    """The accidents of a stage, and its temporary changes."""

    def __init__(self, possible: set[str]) -> None:
        self.possible = possible
        self.killed: list[str] = []
        self.orders: list[Json] = []
        self.is_changed = threading.Event()
        self.fault: ChangeFailed | None = None
        self.fault_of_taking_back: ChangeFailed | None = None

    def kill(self, name: str) -> None:
        self.killed.append(name)

    def temporary_changes(self) -> "Changed":
        return self

    def __enter__(self) -> "Changed":
        return self

    def order(self, **order: Any) -> None:
        if self.fault:
            raise self.fault
        self.orders.append(order)
        self.is_changed.set()

    def __exit__(self, *_error: object) -> None:
        self.orders.append({"do": "taken back"})
        if self.fault_of_taking_back:
            raise self.fault_of_taking_back


def step(do: str, after: float = 0, **given: Any) -> Json:
    return {"after": after, "do": do, "note": f"note of {do}", **given}


def scenario(*steps: Json, batches: int = 0, **given: Any) -> Scenario:
    whole = {
        "title": "T", "about": "A", "customers": [{"platform": "generic", "account": "shop", "user": "ada"}],
        "steps": list(steps), "batches": [{"messages": 1}] * batches, "result": "R", **given,
    }  # fmt: skip
    return Scenario.model_validate(whole)


class Scene:
    def __init__(self, possible: set[str], found: Scenario) -> None:
        self.simulated, self.changed = Simulated(), Changed(possible)
        self.player = Player({"s": found}, self.simulated, Hub(), accidents=self.changed)

    def emit(self, batch_id: str, *, user: str = "ada7", count: int = 1) -> None:
        detail = {"conversationId": conversation_of(user), "batchId": batch_id, "messageCount": count}
        self.player.take(BATCH_READY, detail | {"flushReason": "silence", "lane": "valkey"})

    def play(self) -> Json:
        self.player.play("s", run="7")
        return self.result()

    def result(self) -> Json:
        assert self.player.wait(timeout_seconds=20)
        progress = self.player.progress
        assert progress
        return progress


ALL = {*KILLED, *OUTAGE, "set_rules"}


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the player wait for no batch."""
    monkeypatch.setattr("tools.console.player.MAX_WAIT_FOR_BATCH_SECONDS", 0.01)


def test_what_was_played_is_kept_step_by_step_with_what_came_of_it() -> None:
    scene = Scene(ALL, scenario(step("text"), step("typing", after_batch=1), batches=1))
    scene.player.play("s", run="7")
    scene.emit("b1")
    progress = scene.result()
    assert [each["note"] for each in progress["steps"]] == ["note of text", "note of typing"]
    came = {"who": 0, "messages": 1, "reason": "silence", "lane": "valkey", "batchId": "b1"}
    assert progress["batches"] == [came]
    assert (progress["state"], progress["asExpected"], progress["result"]) == ("ended", True, "R")


@pytest.mark.usefixtures("impatience")
def test_a_batch_counts_once_and_one_of_another_conversation_not_at_all() -> None:
    scene = Scene(ALL, scenario(step("text"), batches=1))
    assert not scene.play()["asExpected"]
    scene.emit("b0", user="other")
    assert scene.result()["batches"] == []
    scene.emit("b1")
    scene.emit("b1")
    assert len(scene.result()["batches"]) == 1
    assert scene.result()["asExpected"]
    scene.emit("b2")
    assert not scene.result()["asExpected"], "a batch too many, even after the end, is not as expected"


def test_what_the_reader_writes_as_its_customer_after_the_end_is_not_of_the_play() -> None:
    """Reproduce a defect: the page then said that something else came than what should have been seen."""
    scene = Scene(ALL, scenario(step("text"), step("text", after_batch=1), batches=1))
    ada = Customer("generic", "shop", "ada7")
    scene.player.play("s", run="7")
    scene.player.note_reader(ada)
    scene.emit("b1")
    assert scene.result()["asExpected"]
    scene.player.note_reader(ada._replace(user="ben"))
    scene.player.note_reader(ada)
    scene.emit("b2")
    assert scene.result()["asExpected"]
    assert len(scene.result()["batches"]) == 1


@pytest.mark.parametrize("text", ["refuse", "away"])
def test_a_step_that_fails_says_so_and_the_next_one_follows(text: str) -> None:
    progress = Scene(ALL, scenario(step("text", text=text), step("text"))).play()
    assert [bool(each["problem"]) for each in progress["steps"]] == [True, False]
    assert progress["state"] == "ended"


def test_a_refused_webhook_is_a_problem_of_its_step() -> None:
    scene = Scene(ALL, scenario(step("text")))
    scene.simulated.status = 503
    assert scene.play()["steps"][0]["problem"] == "The stage answered 503."


@pytest.mark.usefixtures("impatience")
def test_if_no_batch_comes_the_step_that_waits_for_it_says_so_and_goes_on() -> None:
    progress = Scene(ALL, scenario(step("text"), step("text", after_batch=1))).play()
    assert progress["steps"][1]["problem"].startswith("No batch has come")


def test_the_rules_of_a_scenario_are_those_of_its_own_conversation_and_are_taken_back() -> None:
    scene = Scene(ALL, scenario(step("text"), step("set_rules", rules={"stopWords": ["stop"]}), step("resume")))
    progress = scene.play()
    assert scene.changed.orders == [
        {"do": "set_rules", "scope": "conversation:default/generic/shop/ada7", "rules": {"stopWords": ["stop"]}},
        {"do": "taken back"},
    ]
    assert scene.simulated.done == ["text", "resume default/generic/shop/ada7"]
    assert progress["takenBack"] == ["The rules that the scenario set are removed."]


def test_a_stopped_scenario_takes_its_changes_back_before_it_says_so() -> None:
    scene = Scene(ALL, scenario(step("stop_valkey"), step("text", after=60)))
    scene.player.play("s", run="7")
    assert scene.changed.is_changed.wait(20)
    with pytest.raises(CannotDo, match="Stop it first"):
        scene.player.play("s", run="8")
    scene.player.stop()
    progress = scene.result()
    assert scene.changed.orders[-1] == {"do": "taken back"}
    assert (progress["state"], progress["takenBack"]) == ("stopped", ["Valkey is running again."])
    assert scene.simulated.done == []


@pytest.mark.parametrize("fails", ["fault", "fault_of_taking_back"])
def test_a_change_that_fails_ends_the_scenario_which_does_not_claim_to_have_taken_it_back(fails: str) -> None:
    scene = Scene(ALL, scenario(step("stop_valkey"), step("text", after=0.01)))
    setattr(scene.changed, fails, ChangeFailed("Valkey did not start."))
    progress = scene.play()
    assert (progress["state"], progress["takenBack"]) == ("stopped", [])
    assert progress["problem"] == "Valkey did not start."
    assert scene.changed.orders[-1] == {"do": "taken back"}


def test_a_scenario_that_fails_in_an_unforeseen_way_takes_its_changes_back_and_ends() -> None:
    """Reproduce a defect: the page said that the scenario plays, and let nobody play another one."""
    scene = Scene(ALL, scenario(step("stop_valkey"), step("text", text="nonsense")))
    progress = scene.play()
    assert scene.changed.orders[-1] == {"do": "taken back"}
    assert (progress["state"], progress["problem"]) == ("stopped", "The console failed: ValueError")


def test_a_scenario_that_changes_nothing_starts_no_process() -> None:
    scene = Scene(ALL, scenario(step("text"), step("kill_processor")))
    scene.play()
    assert scene.changed.killed == ["kill_processor"]
    assert scene.changed.orders == []


@pytest.mark.parametrize(
    ("do", "possible", "is_offered"),
    [
        ("stop_valkey", {"set_rules"}, False),
        ("stop_valkey", ALL, True),
        ("set_rules", {"set_rules"}, True),
        ("set_rules", set(), False),
        ("human_reply", ALL, False),
        ("resume", set(), True),
    ],
)
def test_only_what_the_stage_can_do_is_offered(do: str, possible: set[str], is_offered: bool) -> None:
    scene = Scene(possible, scenario(step("text"), step(do)))
    assert bool(scene.player.offered()) is is_offered
    if not is_offered:
        with pytest.raises(CannotDo, match="cannot play"):
            scene.player.play("s", run="7")


def test_a_scenario_that_promises_nothing_cannot_be_read() -> None:
    with pytest.raises(ValidationError, match="batches"):
        Scenario.model_validate({**scenario(step("text")).model_dump(exclude={"batches"})})
