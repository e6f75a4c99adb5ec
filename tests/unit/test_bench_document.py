"""The tables of the documents are those of tools/bench/results; the model of pollers."""

import json
import re
import shutil
from pathlib import Path

from tools.bench import document
from tools.bench.pollers import POLLERS, late_ms

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "tools" / "bench"


def test_the_tables_and_the_picture_are_up_to_date(tmp_path: Path) -> None:
    for name in document.DOCUMENTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    document.write(tmp_path)
    for name in (*document.DOCUMENTS, document.PICTURE):
        out_of_date = f"{name} is out of date: run `.venv/bin/python -m tools.bench.document`"
        assert (tmp_path / name).read_text("utf-8") == (ROOT / name).read_text("utf-8"), out_of_date


def test_what_is_installed_for_comparison_is_pinned_and_names_no_registry() -> None:
    wanted = json.loads((BENCH / "package.json").read_text("utf-8"))["dependencies"]
    locked = json.loads((BENCH / "package-lock.json").read_text("utf-8"))["packages"]
    for name, version in wanted.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), f"{name} is not pinned"
        assert locked[f"node_modules/{name}"]["version"] == version
    assert not [name for name, package in locked.items() if "resolved" in package]
    assert all("integrity" in package for name, package in locked.items() if name)
    assert "omit-lockfile-registry-resolved=true" in (BENCH / ".npmrc").read_text("utf-8")


def test_the_pollers_of_a_queue_start_their_runs_by_and_by_and_a_run_takes_some_windows() -> None:
    one = late_ms(POLLERS + 1, at_once=1, run_ms=lambda _: 100, cold_ms=500)
    assert one == [600] * POLLERS + [800], "the sixth poller begins after 200 ms"
    assert late_ms(POLLERS * 10, at_once=10, run_ms=lambda n: 100 + n, cold_ms=0) == [110] * POLLERS * 10
    last = [late_ms(1_000, at_once=n, run_ms=lambda n: 80 + 20 * (n - 1), cold_ms=600)[-1] for n in (1, 10)]
    assert last[1] < 0.7 * last[0]
