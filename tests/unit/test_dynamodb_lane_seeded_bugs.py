"""Each bug below, planted into the DynamoDB lane's code, makes a crossing of test_dynamodb_lane_model.py fail."""

from contextlib import ExitStack
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple
from unittest.mock import patch

import pytest

from lambdas.dynamodb_processor import service
from message_buffer.lanes.dynamodb import lane, messages, windows
from tests.support.actors import GO, KILL, LOSE
from tests.support.table_service import weather
from tests.support.window import dynamodb
from tests.unit.test_dynamodb_lane_model import CROSSINGS, Crossing, try_crossing

pytestmark = pytest.mark.nightly


class Bug(NamedTuple):
    title: str
    module: ModuleType
    good: str
    bad: str
    found_by: Crossing


BUGS = (
    Bug(
        "the window is closed over what came meanwhile", windows,
        "do=CLOSE, values=values, only_if=NOTHING_NEW",
        "do=CLOSE, values=values, only_if=' AND (#generation = :generation OR #owner = :me)'",
        Crossing("cross_processor", 6, "deliver", GO),
    ),
    Bug(
        "a message that was edited since it was read goes out as it was", windows,
        " AND attribute_not_exists(#frozen) AND #changes = :changes",
        " AND attribute_not_exists(#frozen) AND #changes >= :changes",
        Crossing("cross_processor", 3, "edit", GO),
    ),
    Bug(
        "a batch of which half is marked as emitted is emitted again, by half", service,
        "[bodies[name] for name in frozen.names] if bodies.keys() >= set(frozen.names) else None",
        "[bodies[name] for name in frozen.names] if stored else None",
        Crossing("cross_processor", 6, "deliver", KILL),
    ),
    Bug(
        "a retry takes what is there instead of what was named", service,
        "if window.frozen is not None:\n                # An earlier", "if False:\n                # An earlier",
        Crossing("cross_processor", 5, "deliver", KILL),
    ),
    Bug(
        "emitted messages are forgotten at once", messages,
        '{"PutRequest": {"Item": encode(item)}} for item in tombstones',
        '{"DeleteRequest": {"Key": encode({x: item[x] for x in ("conversation", "item")})}} for item in tombstones',
        Crossing("cross_processor", 6, "redeliver", GO),
    ),
    Bug(
        "a window others rely on is closed with the request that failed", messages,
        'only_if = f"{UNCHANGED} AND {UNLOCKED}"',
        'only_if = "#generation >= :generation AND #changes >= :changes"',
        Crossing("cross_ingest", 2, "deliver", LOSE),
    ),
    Bug(
        "the second delivery of a message whose window was never opened does not open it", lane,
        'if put == "finished before":', 'if put != "new":',
        Crossing("cross_ingest", 0, "nothing", LOSE),
    ),
    Bug(
        "the due time of a frozen batch stands for the messages behind it", windows,
        '            remove += ", #found"\n        if may', '            remove += ""\n        if may',
        Crossing("cross_processor", 6, "deliver", GO),
    ),
    Bug(
        "the facts of a message that came before the freeze are removed", windows,
        "only_if += NOTHING_NEW\n            values",
        "only_if += ' AND #generation >= :generation'\n            values",
        Crossing("cross_processor", 3, "deliver", LOSE),
    ),
    Bug(
        "a hold that comes after the lock does not hold", service,
        "if window.frozen is None and window.found is None:", "if False:",
        Crossing("cross_processor", 2, "hold", GO),
    ),
    Bug(
        "a hold that comes after the read does not hold", windows,
        '" REMOVE #found ADD #changes :one"', '" REMOVE #found ADD #other :one"',
        Crossing("cross_processor", 3, "hold", GO),
    ),
    Bug(
        "a hand-off mark is not handed out with a batch that was frozen before it", service,
        "handoff = handoff_of(batch.window.holds, self._clock())",
        "handoff = handoff_of(locked.window.holds, self._clock())",
        Crossing("cross_processor", 2, "mark", GO),
    ),
    Bug(
        "a consumer ends people's hold", lane,
        "if holder not in (None, one.holder) or cause not in (None, one.cause))", "if False)",
        Crossing("cross_processor", 2, "two hold, one resumes", GO),
    ),
    Bug(
        "a run that had to be repeated finds another due time", windows,
        "packed(window.due_of_batch)", "packed(window.due)",
        Crossing("cross_processor", 2, "deliver", LOSE),
    ),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.title)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    assert bug.found_by in CROSSINGS
    with ExitStack() as stack:
        client = stack.enter_context(dynamodb())
        # The steps of a crossing are counted in requests, so none may be repeated.
        stack.enter_context(patch.object(weather, "share", 0.0))
        try_crossing(client, bug.found_by)
        plant(stack, bug)
        with pytest.raises(AssertionError):
            try_crossing(client, bug.found_by)


def plant(stack: ExitStack, bug: Bug) -> None:
    """Make the module's classes and functions behave as if its source contained the bug."""
    source = Path(str(bug.module.__file__)).read_text("utf-8")
    assert source.count(bug.good) == 1, f"{bug.title}: the code has changed"
    broken: dict[str, object] = {**vars(bug.module)}
    exec(compile(source.replace(bug.good, bug.bad), str(bug.module.__file__), "exec"), broken)  # noqa: S102
    for name, thing in vars(bug.module).items():
        if isinstance(thing, FunctionType) and thing.__module__ == bug.module.__name__:
            stack.enter_context(patch.object(bug.module, name, broken[name]))
        if isinstance(thing, type) and thing.__module__ == bug.module.__name__ and not issubclass(thing, tuple):
            for method, code in vars(broken[name]).items():
                if isinstance(code, (FunctionType, staticmethod)):
                    stack.enter_context(patch.object(thing, method, code))
