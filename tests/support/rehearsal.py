"""`make rehearse`: try everything about a deployment that needs no AWS account, and print a table of the results.

The rehearsal runs tests of this repository, among them those that otherwise only `make nightly` runs. It ends with 1 if
a test failed, or, if CI is set, if a test was skipped.
"""

import argparse
import ast
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bufferctl.formatting import table
from bufferctl.terminal import as_text
from tests.support.template_rules import LIMITS

ROOT = Path(__file__).parents[2]
COLUMNS = ("rehearsed", "result", "time")
TEMPLATES = ("tests/infra",)
# These tests run one after the other, because each needs the machine for itself.
STAGE = (
    "tests/e2e/test_first_hour.py",
    "tests/e2e/test_verify.py",
    "tests/e2e/test_permissions.py",
    "tests/chaos/test_doctor.py",
    "tests/chaos/test_upgrades.py",
)


def subject_of(case: ET.Element) -> str:
    """Return the first line of the docstring of the test's module."""
    source = ROOT.joinpath(*str(case.get("classname")).split(".")).with_suffix(".py").read_text("utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def outcome_of(case: ET.Element) -> tuple[str, str]:
    """Return how a test ended, and the reason if it did not pass."""
    said = next((each for each in case if each.tag in {"failure", "error", "skipped"}), None)
    if said is None:
        return "passed", ""
    return "SKIPPED" if said.tag == "skipped" else "FAILED", said.get("message", "").partition("\n")[0]


def lines(cases: Sequence[ET.Element]) -> Iterator[str]:
    """Yield a table of all outcomes by subject, what the templates use of each limit, and the problems."""
    rows = []
    for subject in dict.fromkeys(map(subject_of, cases)):
        own = [case for case in cases if subject_of(case) == subject]
        counts = Counter(outcome_of(case)[0] for case in own)
        result = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        seconds = sum(float(case.get("time", 0)) for case in own)
        rows.append({"rehearsed": subject, "result": result, "time": f"{seconds:,.0f} s"})
    yield as_text(table(rows, COLUMNS))
    for limit, most in LIMITS.items():
        used = [
            int(each.get("value", 0)) for case in cases for each in case.iter("property") if each.get("name") == limit
        ]
        if used:
            yield f"The largest template uses {max(used):,} of {most:,} {limit}."
    for case in cases:
        outcome, reason = outcome_of(case)
        if reason:
            yield f"{outcome} {case.get('classname')}.{case.get('name')}: {reason}"


def rehearse(tests: Sequence[str], *, processes: int) -> list[ET.Element]:
    """Run tests with the additions of the nightly run. Return the test cases of pytest's report."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--timeout", "1800", f"--junitxml={report}", *tests]
        if processes > 1:
            command += ["-n", str(processes), "--dist", "loadgroup"]
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "HYPOTHESIS_PROFILE": "nightly"}, check=False)
        if ended.returncode not in (0, 1):
            sys.exit(f"pytest ended with {ended.returncode}, so nothing is known about {' '.join(tests)}.")
        return list(ET.fromstring(report.read_text("utf-8")).iter("testcase"))  # noqa: S314 - pytest wrote it


def main() -> int:
    parser = argparse.ArgumentParser(prog="make rehearse", description=__doc__)
    parser.add_argument("--only", choices=("templates", "stage"), help="half of it; `stage` is the local stage")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes examine the templates")
    given = parser.parse_args()
    began = time.monotonic()
    cases = [] if given.only == "stage" else rehearse(TEMPLATES, processes=given.jobs)
    cases += [] if given.only == "templates" else rehearse(STAGE, processes=1)
    counts = Counter(outcome_of(case)[0] for case in cases)
    minutes = (time.monotonic() - began) / 60
    total = (
        f"{counts['passed']} passed, {counts['FAILED']} failed, {counts['SKIPPED']} skipped in {minutes:.0f} minutes."
    )
    sys.stdout.write("\n".join(["", *lines(cases), "", total, ""]))
    # A skipped test fails CI, because no other run rehearses its subject.
    return 1 if counts["FAILED"] or (counts["SKIPPED"] and os.environ.get("CI")) else 0


if __name__ == "__main__":
    sys.exit(main())
