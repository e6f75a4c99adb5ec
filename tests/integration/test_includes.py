"""The server reports an error in a script by the line of the script's file, above, in and below an include."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from message_buffer.errors import ScriptInvariantBroken
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY
from message_buffer.lanes.valkey.store import Store
from tests.support.engine import Engine


class Case(NamedTuple):
    """A call that runs this statement of an include, whatever the server holds."""

    script: str
    include: str
    statement: str
    call: Callable[[Store], object]


CASES = (
    Case("find_message", "find: find", "  local arrived_at =", lambda store: store.find_message("c", "m")),
    Case("recover_expired", "start_or_wake", "if alive and", lambda store: store.recover_expired(0)),
)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)


@pytest.mark.parametrize("below", [1, 2])
@every_case
def test_an_error_below_an_include_names_its_line_of_the_file(
    unwatched: Engine, tmp_path: Path, case: Case, below: int
) -> None:
    scripts = copied(tmp_path)
    path = scripts / f"{case.script}.lua"
    lines = path.read_text("utf-8").split("\n")
    at = lines.index(f"-- include {case.include}") + below
    lines[at] = "error('planted')"
    path.write_text("\n".join(lines[: at + 1]) + "\n", "utf-8")
    with pytest.raises(ScriptInvariantBroken, match=rf"script:{at + 1}: planted"):
        case.call(store_of(unwatched, scripts))


@every_case
def test_an_error_in_an_include_names_the_line_that_includes_it(unwatched: Engine, tmp_path: Path, case: Case) -> None:
    scripts = copied(tmp_path)
    path = scripts / "include" / f"{case.include.partition(':')[0]}.lua"
    text = path.read_text("utf-8")
    assert text.count(f"\n{case.statement}") == 1
    path.write_text(text.replace(f"\n{case.statement}", f"\n  error('planted')\n{case.statement}"), "utf-8")
    at = (scripts / f"{case.script}.lua").read_text("utf-8").split("\n").index(f"-- include {case.include}")
    with pytest.raises(ScriptInvariantBroken, match=rf"script:{at + 1}: planted"):
        case.call(store_of(unwatched, scripts))


def copied(tmp_path: Path) -> Path:
    scripts = tmp_path / "lua"
    shutil.copytree(LUA_DIRECTORY, scripts)
    return scripts


def store_of(engine: Engine, scripts: Path) -> Store:
    """Return a store that loads these scripts as they are deployed, so without the first line `STRICT_SHEBANG`."""
    return Engine(engine.client, engine.admin, scripts=scripts).store
