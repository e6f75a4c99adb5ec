"""The page's libraries are unchanged. Its policy, which every test of the page obeys, confines its own files."""

import hashlib
import re

from tools.console.server import PAGE


def test_libraries_are_the_files_of_the_registry() -> None:
    rows = re.findall(r"^\| (\S+) \|.*`([0-9a-f]{64})` \|$", (PAGE / "vendor" / "README.md").read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == {path.name for path in (PAGE / "vendor").glob("*.js")}
    for name, digest in rows:
        assert hashlib.sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == digest, name
