"""A scenario's changes of the stage are taken back, whatever ends the scenario."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bufferctl.errors import Failed, NotFound, Unreachable
from message_buffer.json_object import Json
from tools.console.accidents import KILLED, NOT_TAKEN_BACK, OUTAGE, Accidents, ChangeFailed, TemporaryChanges
from tools.console.place import Options, ShownStage
from tools.console.temporary_changes import StageChanges
from tools.local.errors import LocalError
from tools.local.outputs import Outputs
from tools.local.stage import Stage as LocalStage

SCOPE = "conversation:default/generic/shop/ada"
SET: Json = {"do": "set_rules", "scope": SCOPE, "rules": {"stopWords": ["stop"]}}


class Recorded:
    """A stage that records each request, and what happens to its Valkey."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.faults: dict[str, Failed] = {}
        self.rules: dict[str, tuple[int, Json]] = {}
        """The version and the rules of each scope."""
        self.has_ended = False

    def ask(self, operation: str, **fields: Any) -> Json:
        scope = fields["scope"]
        if operation != "rules.get":
            self.seen.append(f"{operation} {scope}")
        fault = self.faults.get(operation)
        version, rules = self.rules.get(scope, (0, {}))
        if fields.get("expectedVersion") not in (None, version):
            raise Failed(f"the rules of {scope} have changed since they were read")
        if operation == "rules.set":
            self.rules[scope] = (version + 1, fields["rules"])
        elif not version:
            raise NotFound(f"There are no rules under {scope}.")
        elif operation == "rules.delete" and not fault:
            del self.rules[scope]
        if fault:
            raise fault
        return {"version": version, "rules": rules}

    @contextmanager
    def without_valkey(self) -> Iterator[None]:
        self.seen.append("stopped")
        try:
            yield
        finally:
            self.seen.append("started")


class RecordedLocalStage(LocalStage):
    def __init__(self, recorded: Recorded) -> None:
        super().__init__(Path("nowhere"))
        self.outputs_file = Path("nowhere" if recorded.has_ended else __file__)
        self._recorded_stage = recorded

    def without_valkey(self) -> Any:
        return self._recorded_stage.without_valkey()


def carried_out(recorded: Recorded, *orders: Json) -> None:
    with ExitStack() as stack:
        changes = StageChanges(recorded, RecordedLocalStage(recorded), stack)
        for order in orders:
            changes.carry_out(order)


def test_at_the_end_rules_are_removed_and_valkey_is_started() -> None:
    recorded = Recorded()
    carried_out(recorded, SET, {"do": "stop_valkey"})
    assert recorded.seen == [f"rules.set {SCOPE}", "stopped", "started", f"rules.delete {SCOPE}"]


def test_an_outage_that_the_scenario_ends_is_not_ended_again() -> None:
    recorded = Recorded()
    carried_out(recorded, {"do": "stop_valkey"}, {"do": "start_valkey"}, {"do": "start_valkey"})
    assert recorded.seen == ["stopped", "started"]


@pytest.mark.parametrize("orders", [[{"do": "stop_valkey"}, {"do": "start_valkey"}], [{"do": "stop_valkey"}]])
def test_valkey_is_not_said_to_run_again_in_a_stage_that_has_ended(orders: list[Json]) -> None:
    """Reproduce a defect: after `make down`, the scenario went on, and then said that Valkey was running again."""
    recorded = Recorded()
    recorded.has_ended = True
    with pytest.raises(LocalError, match="has ended"):
        carried_out(recorded, *orders)


def test_rules_whose_setting_got_no_answer_are_removed() -> None:
    recorded = Recorded()
    recorded.faults["rules.set"] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        carried_out(recorded, SET)
    assert recorded.seen[-1] == f"rules.delete {SCOPE}"
    assert recorded.rules == {}


def test_rules_that_are_there_already_are_neither_replaced_nor_removed() -> None:
    """Reproduce a defect: a scenario replaced an operator's rules, and then deleted them."""
    recorded = Recorded()
    recorded.rules[SCOPE] = (3, {"silenceMs": 500})
    with pytest.raises(Failed, match="have changed"):
        carried_out(recorded, SET)
    assert recorded.rules == {SCOPE: (3, {"silenceMs": 500})}


def test_rules_that_an_operator_has_changed_meanwhile_stay() -> None:
    """Reproduce a defect: a scenario deleted an operator's rules at its end."""
    recorded = Recorded()
    with ExitStack() as made:
        StageChanges(recorded, RecordedLocalStage(recorded), made).carry_out(SET)
        recorded.rules[SCOPE] = (2, {"silenceMs": 500})
    assert recorded.rules == {SCOPE: (2, {"silenceMs": 500})}


def test_rules_that_cannot_be_removed_are_named() -> None:
    recorded = Recorded()
    recorded.faults["rules.delete"] = Unreachable("AWS cannot be reached.")
    with pytest.raises(Failed, match=f"bufferctl rules delete {SCOPE}"):
        carried_out(recorded, SET)


# -- the process that carries them out -----------------------------------------------------------------------


def process(script: str) -> TemporaryChanges:
    return TemporaryChanges([sys.executable, "-c", f"import sys\nsay = lambda text: print(text, flush=True)\n{script}"])


READY = """say('{"ready": true}')\n"""
DONE = """sys.stdin.readline()\nsay('{"done": true}')\n"""
PROBLEM = """say('{"problem": "No."}')\nsys.exit(1)"""


def test_an_order_returns_when_the_process_has_done_it() -> None:
    with process(READY + DONE + "sys.stdin.read()") as changes:
        changes.order(do="stop_valkey")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (PROBLEM, "^No.$"),
        ("", "may not be as it was"),
        (READY + "sys.stdin.readline()\n" + PROBLEM, "^No.$"),
        (READY + "sys.stdin.readline()", "may not be as it was"),
        (READY + DONE + "sys.stdin.read()\n" + PROBLEM, f"^{NOT_TAKEN_BACK} No.$"),
        (READY + DONE + "sys.stdin.read()\nsys.exit(1)", f"^{NOT_TAKEN_BACK}$"),
    ],
    ids=["no start", "start dies", "order refused", "order dies", "not taken back", "dies in the end"],
)
def test_every_failure_is_raised_with_its_problem(script: str, problem: str) -> None:
    with pytest.raises(ChangeFailed, match=problem), process(script) as changes:
        changes.order(do="stop_valkey")


def test_a_scenario_that_is_stopped_still_learns_that_its_changes_were_not_taken_back() -> None:
    with pytest.raises(ChangeFailed, match=r"No\."), process(READY + "sys.stdin.read()\n" + PROBLEM):
        raise KeyError


def test_a_stage_that_does_not_exist_is_a_problem_of_the_real_process() -> None:
    place = ShownStage(Options(outputs=Path("/nowhere/outputs.json")))
    with pytest.raises(ChangeFailed, match="not up"), Accidents(place).temporary_changes():
        pass


# -- what is possible ----------------------------------------------------------------------------------------


def outputs(tmp_path: Path, *, valkey_url: str | None, functions: tuple[str, ...]) -> Path:
    path = tmp_path / "outputs.json"
    Outputs(
        ApiEndpoint="", EventBusName="", AwsEndpointUrl="", Region="", ValkeyUrl=valkey_url, WebhookSecrets={},
        Functions=dict.fromkeys(functions, "f"), LogGroups={}, DeadLetterQueueUrl="", OversizeBucketName="",
        RulesTableName="",
    ).write(path)  # fmt: skip
    return path


def test_a_stage_of_the_valkey_lane_can_be_broken(tmp_path: Path) -> None:
    path = outputs(tmp_path, valkey_url="valkey://127.0.0.1:1", functions=tuple(KILLED.values()))
    assert Accidents(ShownStage(Options(outputs=path))).possible == {"set_rules", *KILLED, *OUTAGE}


def test_a_stage_without_valkey_has_no_outage_of_it(tmp_path: Path) -> None:
    path = outputs(tmp_path, valkey_url=None, functions=("ingest",))
    assert Accidents(ShownStage(Options(outputs=path))).possible == {"set_rules"}
