"""The tables of the documents are those of bench/results."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import document
from bench.chart import Bar, Panel, svg
from bench.measure import Figure

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
TEXT = "{http://www.w3.org/2000/svg}text"
RECT = "{http://www.w3.org/2000/svg}rect"
STEADY, NOISY = Figure(10.0, 9.8, 10.2, 5), Figure(10.0, 6.0, 14.0, 5)


def test_the_tables_and_the_picture_are_up_to_date(tmp_path: Path) -> None:
    for name in document.DOCUMENTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    document.write(tmp_path)
    for name in (*document.DOCUMENTS, document.PICTURE):
        out_of_date = f"{name} is out of date: run `.venv/bin/python -m bench.document`"
        assert (tmp_path / name).read_text("utf-8") == (ROOT / name).read_text("utf-8"), out_of_date


def test_every_table_stands_in_a_document() -> None:
    texts = "".join((ROOT / name).read_text("utf-8") for name in document.DOCUMENTS)
    assert sorted(re.findall(r"<!-- bench: (\w+) -->", texts)) == sorted(document.TABLES)


def test_a_picture_has_a_bar_for_what_is_steady_and_none_for_what_is_too_noisy() -> None:
    drawn = svg([Panel("Title", [Bar("ours", STEADY), Bar("naive", NOISY)], is_log=False)])
    root = ElementTree.fromstring(drawn)  # noqa: S314 - our own picture
    bars = [rect for rect in root.iter(RECT) if "fill" in rect.attrib and rect.get("fill") != "#ffffff"]
    assert len(bars) == 1
    said = [text.text for text in root.iter(TEXT)]
    assert "10" in said
    assert "noisy, 6 to 14" in said


@pytest.mark.parametrize("is_log", [False, True])
def test_a_picture_stays_inside_its_frame_and_is_the_same_each_time(is_log: bool) -> None:
    bars = [Bar("ours", Figure(0.4, 0.39, 0.41, 5)), Bar("naive", Figure(495.0, 494.0, 496.0, 5))]
    panels = [Panel("One", bars, is_log=is_log), Panel("Two", bars, is_log=is_log)]
    drawn = svg(panels)
    assert drawn == svg(panels)
    root = ElementTree.fromstring(drawn)  # noqa: S314 - our own picture
    _, _, width, height = map(int, root.attrib["viewBox"].split())
    assert all(0 <= float(text.attrib["x"]) <= width for text in root.iter(TEXT))
    assert all(0 <= float(text.attrib["y"]) <= height for text in root.iter(TEXT))


def test_what_is_installed_for_comparison_is_pinned_and_names_no_registry() -> None:
    wanted = json.loads((BENCH / "package.json").read_text("utf-8"))["dependencies"]
    locked = json.loads((BENCH / "package-lock.json").read_text("utf-8"))["packages"]
    for name, version in wanted.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), f"{name} is not pinned"
        assert locked[f"node_modules/{name}"]["version"] == version
    assert not [name for name, package in locked.items() if "resolved" in package]
    assert all("integrity" in package for name, package in locked.items() if name)
    assert "omit-lockfile-registry-resolved=true" in (BENCH / ".npmrc").read_text("utf-8")
