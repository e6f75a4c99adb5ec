"""The calls to import a handler and its AWS clients stay within a budget, in units of `import boto3`.

Calls of Python and C functions are counted. Other work on the machine changes all times, even CPU time, but not these
numbers. They do not show how long a single call of native code takes.

redis without its asyncio half is a third of a handler's cost. Powertools without its Tracer is a tenth.
Ingest and admin add pydantic for rules, messages and requests; the others read messages with json alone. The
clients cost 0.15. No handler imports the SDK; the first client of S3 or Bedrock imports it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A tenth above what was counted.
BUDGETS = {
    "ingest": 1.48, "processor": 0.94, "conversation_processor": 0.95, "watchdog": 0.94, "admin": 1.5, "gate": 0.94,
    "responder": 0.53, "dynamodb_processor": 0.56, "canary": 0.5,
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), pytest.mark.xdist_group("imports")]


COUNT = """
import sys
calls = 0
def note(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(note)
{statement}
sys.setprofile(None)
print(calls)
"""


def calls_of(statement: str) -> int:
    """Return the number of calls that a statement makes in a new process."""
    # Byte code is read as in a warm layer, whatever the environment of the tests says. The order of sets is fixed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"AWS_REGION": "us-east-1", "PYTHONHASHSEED": "0"}

    def run(program: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
        ).stdout

    run(statement)  # writes the byte code
    return int(run(COUNT.format(statement=statement)))


def cold_start(role: str) -> str:
    clients = "; ".join(f"client({service!r})" for service in ("secretsmanager", "dynamodb", "lambda", "events", "sqs"))
    return f"import {handler_of(role)}; from message_buffer.aws.clients import client; {clients}"


def handler_of(role: str) -> str:
    return f"lambdas.{role}.handler"


def imported_modules(module: str) -> set[str]:
    run = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return set(run.stdout.split())


@pytest.fixture(scope="module")
def calls_of_sdk() -> int:
    return calls_of("import boto3")


@pytest.mark.parametrize("role", BUDGETS)
def test_a_handler_is_imported_within_its_budget(role: str, calls_of_sdk: int) -> None:
    assert calls_of(cold_start(role)) / calls_of_sdk <= BUDGETS[role]


def test_the_first_message_and_the_first_batch_need_no_sdk() -> None:
    used = """
from message_buffer.aws import clients
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.settings import IamAccess
for service in ("secretsmanager", "dynamodb", "lambda", "events", "sqs"):
    try:
        with clients.errors_as_ours("ask"):
            clients.client(service, patience=clients.HURRIED).ask()
    except clients.SendFailed:
        pass
assert sign_cache_token(IamAccess("user", "cache", "eu-central-1"))
import sys
print(*sys.modules)
"""
    variables = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "eu-central-1"}
    run = subprocess.run(
        [sys.executable, "-c", used],
        capture_output=True, text=True, check=True, cwd=ROOT,
        env=os.environ | variables | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
    )  # fmt: skip
    assert not {"boto3", "botocore", "urllib3"} & set(run.stdout.split())


@pytest.mark.parametrize("role", BUDGETS)
def test_no_handler_imports_what_it_may_never_need(role: str) -> None:
    imported = imported_modules(handler_of(role))
    unwanted = {"boto3", "botocore.session", "urllib3", "aws_xray_sdk", "redis.asyncio.client"}
    if role not in ("ingest", "admin"):
        unwanted |= {"pydantic", "message_buffer.rules.layers", "message_buffer.messages.message"}
    if role in ("dynamodb_processor", "responder", "canary"):
        unwanted |= {"redis"}  # they know no Valkey
    assert not imported & unwanted
