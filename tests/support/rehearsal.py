"""`make rehearse`: try everything about a deployment that needs no AWS account, and print a table of the results.

The rehearsal runs tests of this repository, among them those that otherwise only `make nightly` runs. It ends with 1 if
a test failed, or, if CI is set, if a test was skipped.
"""

import argparse
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from bufferctl.formatting import table
from tests.support.template_rules import LIMITS, REGIONS

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
NAG, PAIRS = "tests.infra.test_nag_and_lint", "tests.infra.test_combinations"
# Each subject with the beginnings of its tests' names. A test belongs to the first subject that fits.
SUBJECTS: Mapping[str, Sequence[str]] = {
    "every pair of settings synthesizes, cdk-nag finds nothing": (
        f"{NAG}.test_no_rule", f"{NAG}.test_cdk_warns", f"{PAIRS}.test_a_combination_of", f"{PAIRS}.test_only_kinds_of",
        f"{PAIRS}.test_every_two",
    ),
    f"cfn-lint, all rules, {', '.join(REGIONS)}": (
        f"{NAG}.test_cloudformation", f"{NAG}.test_every_accepted", f"{PAIRS}.test_cloudformation",
    ),
    "IAM actions and managed policies exist": (f"{NAG}.test_lint_", f"{NAG}.test_every_managed"),
    "policy for CDK's execution role": ("tests.infra.test_execution_policy",),
    "AWS's own lists: regions, permissions, commands, calls": ("tests.infra.test_aws_own_lists",),
    "limits of CloudFormation, IAM and Lambda": (
        f"{NAG}.test_every_template", f"{NAG}.test_a_template", f"{NAG}.test_cdk_uploads",
        f"{PAIRS}.test_a_combination_stays",
    ),
    "each documented change of a stage, both ways": ("tests.infra.test_transitions",),
    "preflight, CDK's command line, removal, workflows": (
        "tests.infra.test_preflight", "tests.infra.test_cli", "tests.infra.test_removal", "tests.infra.test_pipeline",
    ),
    "layer and code of the functions": ("tests.infra.test_layer", "tests.infra.test_code_asset"),
    "variables that the functions read": ("tests.infra.test_environment",),
    "cost model": ("tests.infra.test_cost",),
    "settings, stacks, alarms": ("tests.infra.",),
    "twice: deploy, verify, doctor, change, verify, remove": ("tests.e2e.test_first_hour",),
    "verify finds a stage that emits nothing, and cleans up": ("tests.e2e.test_verify",),
    "functions have the permissions they need, and no others": ("tests.e2e.test_permissions",),
    "doctor finds each planted fault": ("tests.chaos.test_doctor",),
    "upgrade, roll-back and removal under traffic": ("tests.chaos.test_upgrades",),
}  # fmt: skip


@dataclass
class Outcome:
    """The results of a subject's tests."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    used: Counter[str] = field(default_factory=Counter)
    """The highest use of each limit by any template."""
    problems: list[str] = field(default_factory=list)
    """The tests that failed, or were skipped, with the reason."""

    def add(self, case: ET.Element, name: str) -> None:
        said = next((each for each in case if each.tag in {"failure", "error", "skipped"}), None)
        outcome = "passed" if said is None else "SKIPPED" if said.tag == "skipped" else "FAILED"
        self.counts[outcome] += 1
        self.seconds += float(case.get("time", 0))
        if said is not None:
            self.problems.append(f"{outcome} {name}: {said.get('message', '').splitlines()[0]}")
        for each in case.iter("property"):
            limit = each.get("name", "")
            self.used[limit] = max(self.used[limit], int(each.get("value", 0)))


def subject_of(test: str) -> str:
    """Return the subject of a test. Raise LookupError if no subject has it."""
    for subject, beginnings in SUBJECTS.items():
        if test.startswith(tuple(beginnings)):
            return subject
    raise LookupError(f"{test} belongs to no subject of the rehearsal")


def read(report: str) -> dict[str, Outcome]:
    """Return the outcome of each subject in a report that pytest wrote as JUnit's XML."""
    found: dict[str, Outcome] = {}
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        name = f"{case.get('classname')}.{case.get('name')}"
        found.setdefault(subject_of(name), Outcome()).add(case, name)
    return found


def lines(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Yield the table of all outcomes, what the templates use of each limit, and the problems."""
    rows = [
        {
            "rehearsed": subject,
            "result": ", ".join(f"{count} {word}" for word, count in sorted(outcome.counts.items())),
            "time": f"{outcome.seconds:,.0f} s",
        }
        for subject in SUBJECTS
        if (outcome := outcomes.get(subject))
    ]
    yield str(table(rows, COLUMNS))
    used: Counter[str] = Counter()
    for outcome in outcomes.values():
        used |= outcome.used
    if used:
        yield "\nThe largest template uses:"
        yield from (f"  {used[limit]:,} of {most:,} {limit}" for limit, most in LIMITS.items())
    if problems := [problem for outcome in outcomes.values() for problem in outcome.problems]:
        yield "\nNot rehearsed:"
        yield from (f"  {problem}" for problem in problems)


def rehearse(tests: Sequence[str], *, processes: int) -> dict[str, Outcome]:
    """Run tests with the additions of the nightly run. Return the outcome of each subject."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--timeout", "1800", f"--junitxml={report}", *tests]
        if processes > 1:
            command += ["-n", str(processes), "--dist", "loadgroup"]
        ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "HYPOTHESIS_PROFILE": "nightly"}, check=False)
        if ended.returncode not in (0, 1):
            sys.exit(f"pytest ended with {ended.returncode}, so nothing is known about {' '.join(tests)}.")
        return read(report.read_text("utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make rehearse", description=__doc__)
    parser.add_argument("--only", choices=("templates", "stage"), help="half of it; `stage` is the local stage")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes examine the templates")
    given = parser.parse_args()
    began = time.monotonic()
    outcomes: dict[str, Outcome] = {}
    if given.only != "stage":
        outcomes |= rehearse(TEMPLATES, processes=given.jobs)
    if given.only != "templates":
        outcomes |= rehearse(STAGE, processes=1)
    counts = sum((outcome.counts for outcome in outcomes.values()), Counter[str]())
    minutes = (time.monotonic() - began) / 60
    total = (
        f"{counts['passed']} passed, {counts['FAILED']} failed, {counts['SKIPPED']} skipped in {minutes:.0f} minutes."
    )
    sys.stdout.write("\n".join(["", *lines(outcomes), "", total, ""]))
    # A skipped test fails CI, because no other run rehearses its subject.
    return 1 if counts["FAILED"] or (counts["SKIPPED"] and os.environ.get("CI")) else 0


if __name__ == "__main__":
    sys.exit(main())
