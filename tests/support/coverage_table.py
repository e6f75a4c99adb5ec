"""`make coverage`: the coverage that pytest-cov measured, as a table with a row for each folder."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def rows(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the table's lines for a report that `coverage json` wrote."""
    folders: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    for file, found in report["files"].items():
        top, *below = Path(file).parts[:-1]
        for count in COUNTS:
            folders["/".join([top, *below[:1]])][count] += found["summary"][count]
    yield "| folder | statements | covered | branches | covered |"
    yield "|---|---|---|---|---|"
    for folder, found in sorted(folders.items()):
        if found["num_statements"]:
            lines = _share(found["covered_lines"], found["num_statements"])
            branches = _share(found["covered_branches"], found["num_branches"])
            yield f"| `{folder}` | {found['num_statements']} | {lines} | {found['num_branches']} | {branches} |"


def _share(covered: int, of: int) -> str:
    return f"{covered / of:.0%}" if of else "–"


if __name__ == "__main__":
    sys.stdout.write("".join(f"{row}\n" for row in rows(json.load(sys.stdin))))
