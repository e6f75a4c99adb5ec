"""A cold start is a feature: what importing a handler may cost, in units of `import boto3`.

Half of what a handler costs is redis, which imports its asyncio half with itself; Powertools is a tenth, without its
Tracer. Ingest and admin add pydantic for rules, messages and requests; the others read messages with json alone. The
SDK is imported with the first client, by none of them.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROUNDS = 5

BUDGETS = {
    "ingest": 1.8, "processor": 1.3, "conversation_processor": 1.3, "watchdog": 1.3, "admin": 1.8, "responder": 0.6,
    "dynamodb_processor": 0.7,
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def cpu_seconds(statement: str) -> float:
    """Of the processor, not of the clock on the wall: what others do at the same time hardly counts."""
    # Byte code is written and read as in a warm layer, whatever whoever runs the tests has set.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def handler_of(role: str) -> str:
    return "responder.handler" if role == "responder" else f"lambdas.{role}.handler"


def imported_modules(module: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return set(run.stdout.split())


@pytest.mark.parametrize("role", BUDGETS)
def test_a_handler_is_imported_within_its_budget(role: str) -> None:
    statements = (f"import {handler_of(role)}", "import boto3", "pass")
    for statement in statements:
        cpu_seconds(statement)
    # In turns, so that a busy machine is busy for all.
    rounds = [[cpu_seconds(statement) for statement in statements] for _ in range(ROUNDS)]
    handler, sdk, nothing = map(min, zip(*rounds, strict=True))
    assert (handler - nothing) / (sdk - nothing) <= BUDGETS[role], rounds


@pytest.mark.parametrize("role", BUDGETS)
def test_no_handler_imports_what_it_may_never_need(role: str) -> None:
    imported = imported_modules(handler_of(role))
    unwanted = {"boto3", "botocore.session", "urllib3", "aws_xray_sdk"}
    if role not in ("ingest", "admin"):
        unwanted |= {"pydantic", "message_buffer.rules.layers", "message_buffer.messages.message"}
    if role in ("dynamodb_processor", "responder"):
        unwanted |= {"redis"}  # they know no Valkey
    assert not imported & unwanted
