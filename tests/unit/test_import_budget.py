"""A cold start is a feature: what importing a handler may cost, in units of `import boto3`.

Half of what a handler costs is redis, which imports its asyncio half with itself; Powertools is a tenth, without its
Tracer. Ingest and admin add pydantic for rules, messages and requests; the others read messages with json alone. The
SDK is imported with the first client, by none of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS = 5

BUDGETS = {
    "ingest": 1.6, "processor": 1.5, "conversation_processor": 1.5, "watchdog": 1.5, "admin": 1.6, "responder": 1.5,
    "window_processor": 0.8,
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def import_microseconds(module: str) -> int:
    """The time of every import that this one brings, each without those inside it."""
    # Byte code is written and read as in a warm layer, whatever whoever runs the tests has set.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        capture_output=True, text=True, check=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    lines = [line.removeprefix("import time:") for line in run.stderr.splitlines() if line.startswith("import time:")]
    return sum(int(own) for own, _, _ in (line.split("|") for line in lines) if own.strip().isdigit())


def imported_modules(module: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return set(run.stdout.split())


@pytest.mark.parametrize("role", BUDGETS)
def test_a_handler_is_imported_within_its_budget(role: str) -> None:
    handler = f"lambdas.{role}.handler"
    # In turns, so that a busy machine is busy for both; the least of each, for others' work only ever adds to it.
    rounds = [(import_microseconds(handler), import_microseconds("boto3")) for _ in range(ROUNDS)]
    ours, sdk = map(min, zip(*rounds, strict=True))
    assert ours / sdk <= BUDGETS[role], rounds


@pytest.mark.parametrize("role", BUDGETS)
def test_no_handler_imports_what_it_may_never_need(role: str) -> None:
    imported = imported_modules(f"lambdas.{role}.handler")
    unwanted = {"boto3", "botocore.session", "urllib3", "aws_xray_sdk"}
    if role not in ("ingest", "admin"):
        unwanted |= {"pydantic", "lambdas.shared.rules", "lambdas.shared.message"}
    if role in ("window_processor", "responder"):
        unwanted |= {"redis"}  # they know no Valkey
    assert not imported & unwanted
