"""The server reports an error in a script by the line of the script's file, above, in and below an include."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from message_buffer.errors import ScriptInvariantBroken
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY
from message_buffer.lanes.valkey.store import Store
from tests.support.engine import Engine

# Each reaches its include whatever the server holds.
CALLS: dict[str, tuple[str, Callable[[Store], object]]] = {
    "find_message": ("find", lambda store: store.find_message("c", "m")),
    "recover_expired": ("start_or_wake", lambda store: store.recover_expired(0)),
}


@pytest.mark.parametrize("below", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_an_error_below_an_include_names_its_line_of_the_file(
    unwatched: Engine, tmp_path: Path, name: str, below: int
) -> None:
    include, call = CALLS[name]
    scripts = copied(tmp_path)
    path = scripts / f"{name}.lua"
    lines = path.read_text("utf-8").split("\n")
    at = lines.index(f"-- include {include}") + below
    lines[at] = "error('planted')"
    path.write_text("\n".join(lines[: at + 1]) + "\n", "utf-8")
    with pytest.raises(ScriptInvariantBroken, match=rf"script:{at + 1}: planted"):
        call(store_of(unwatched, scripts))


@pytest.mark.parametrize("name", CALLS)
def test_an_error_in_an_include_names_the_line_that_includes_it(unwatched: Engine, tmp_path: Path, name: str) -> None:
    include, call = CALLS[name]
    scripts = copied(tmp_path)
    lines = (scripts / f"{name}.lua").read_text("utf-8").split("\n")
    with (scripts / "include" / f"{include}.lua").open("a", encoding="utf-8") as file:
        file.write("error('planted')\n")
    at = lines.index(f"-- include {include}")
    with pytest.raises(ScriptInvariantBroken, match=rf"script:{at + 1}: planted"):
        call(store_of(unwatched, scripts))


def copied(tmp_path: Path) -> Path:
    scripts = tmp_path / "lua"
    shutil.copytree(LUA_DIRECTORY, scripts)
    return scripts


def store_of(engine: Engine, scripts: Path) -> Store:
    """A store that loads these, as deployed: without the strict server's first line."""
    return Engine(engine.client, engine.admin, scripts=scripts).store
