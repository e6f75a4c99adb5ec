"""A scenario's changes of the stage are taken back, whatever ends the scenario."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bufferctl.errors import Failed, NotFound, Unreachable
from console.accidents import KILLED, NOT_TAKEN_BACK, OUTAGE, Accidents, ChangeFailed, TemporaryChanges
from console.place import Options, Place
from console.temporary_changes import Changes
from local.outputs import Outputs
from local.stage import Stage as LocalStage
from tests.support.console import ImitatedPlace, ImitatedStage

Json = dict[str, Any]
SCOPE = "conversation:default/generic/shop/ada"
SET: Json = {"do": "set_rules", "scope": SCOPE, "rules": {"stopWords": ["stop"]}}


class Recorded:
    """A stage that records each request, and what happens to its Valkey."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.faults: dict[str, Failed] = {}

    def ask(self, operation: str, **fields: Any) -> Json:
        self.seen.append(f"{operation} {fields['scope']}")
        if operation in self.faults:
            raise self.faults[operation]
        return {}

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
        self._recorded_stage = recorded

    def without_valkey(self) -> Any:
        return self._recorded_stage.without_valkey()


def carried_out(recorded: Recorded, *orders: Json) -> None:
    with ExitStack() as stack:
        changes = Changes(recorded, RecordedLocalStage(recorded), stack)
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


def test_a_second_outage_follows_the_first() -> None:
    recorded = Recorded()
    carried_out(recorded, {"do": "stop_valkey"}, {"do": "start_valkey"}, {"do": "stop_valkey"})
    assert recorded.seen == ["stopped", "started"] * 2


def test_rules_whose_setting_got_no_answer_are_removed() -> None:
    recorded = Recorded()
    recorded.faults["rules.set"] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        carried_out(recorded, SET)
    assert recorded.seen[-1] == f"rules.delete {SCOPE}"


def test_rules_that_an_operator_has_removed_already_are_no_fault() -> None:
    recorded = Recorded()
    recorded.faults["rules.delete"] = NotFound("There are no rules.")
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
    place = Place(Options(outputs=Path("/nowhere/outputs.json")))
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
    assert Accidents(Place(Options(outputs=path))).possible == {"set_rules", *KILLED, *OUTAGE}


def test_a_stage_without_valkey_has_no_outage_of_it(tmp_path: Path) -> None:
    path = outputs(tmp_path, valkey_url=None, functions=("ingest",))
    assert Accidents(Place(Options(outputs=path))).possible == {"set_rules"}


def test_a_stage_in_aws_is_not_broken() -> None:
    assert Accidents(ImitatedPlace(ImitatedStage(), allow_changes=True)).possible == {"set_rules"}


def test_a_stage_that_is_not_up_offers_nothing(tmp_path: Path) -> None:
    assert Accidents(Place(Options(outputs=tmp_path / "outputs.json"))).possible == set()
