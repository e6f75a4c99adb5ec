"""The page's files: libraries are unchanged, and nothing in them leads away from this machine."""

import hashlib
import re
from pathlib import Path

import pytest

from tools.console.server import PAGE

OWN = sorted(path for path in PAGE.iterdir() if path.suffix in (".js", ".css", ".html"))


def test_libraries_are_the_files_of_the_registry() -> None:
    rows = re.findall(r"^\| (\S+) \|.*`([0-9a-f]{64})` \|$", (PAGE / "vendor" / "README.md").read_text(), re.MULTILINE)
    vendored = {path.name for path in (PAGE / "vendor").iterdir() if path.suffix in (".js", ".css")}
    assert {name for name, _ in rows} == vendored
    for name, digest in rows:
        assert hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_the_page_names_no_other_server_and_writes_no_html(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(", text
    )


def test_the_html_has_no_inline_script_or_style() -> None:
    html = (PAGE / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", html)
