"""An instance that Lambda starts in advance connects before its first event; another one waits for the event."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from message_buffer.settings import (
    ConnectionSettings,
    ConversationProcessorSettings,
    EmissionSettings,
    IngestSettings,
    LogSettings,
    ProcessorSettings,
    ValkeySettings,
    to_variables,
)
from tests.support.engine import SETTINGS
from tests.support.web_server import web_server

ROOT = Path(__file__).parents[2]
READS_OF_RULES = {"DynamoDB_20120810.GetItem", "DynamoDB_20120810.Scan"}
EMISSION = EmissionSettings("bus", 256_000, "bucket", 20, "https://sqs.example.org/letters", "takeovers", "tuning")


def settings_of(role: str, valkey_port: int) -> tuple[Any, ...]:
    address = ConnectionSettings(f"valkey://127.0.0.1:{valkey_port}", connect_timeout_ms=300, answer_timeout_ms=100)
    valkey = ValkeySettings(address, iam=None, store=SETTINGS, processor_function="p")
    match role:
        case "ingest":
            return IngestSettings(
                LogSettings(),
                valkey,
                None,
                "secret",
                False,
                "bus",
                {},
                True,
                "rules",
                "t",
                "a",
                "https://sqs.example.org/letters",
                None,
            )
        case "processor":
            return ProcessorSettings(LogSettings(), valkey, "c", idle_ms=1_000, handover_ms=1_000)
        case _:
            return ConversationProcessorSettings(LogSettings(), valkey, EMISSION)


@pytest.mark.parametrize("is_provisioned", [True, False])
@pytest.mark.parametrize("role", ["ingest", "processor", "conversation_processor"])
def test_an_instance_connects_while_it_is_imported_only_if_it_is_started_in_advance(
    role: str, is_provisioned: bool
) -> None:
    with web_server() as aws, socket.create_server(("127.0.0.1", 0)) as valkey:
        aws.answer = (200, {"SecretString": "{}", "Items": []})
        variables = {
            **to_variables(settings_of(role, valkey.getsockname()[1])),
            "AWS_LAMBDA_INITIALIZATION_TYPE": "provisioned-concurrency" if is_provisioned else "on-demand",
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": aws.url,
            "POWERTOOLS_SERVICE_NAME": role, "POWERTOOLS_METRICS_NAMESPACE": "MessageBuffer",
        }  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-c", f"import lambdas.{role}.handler"],
            env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (0, ""), "a Valkey that does not answer must not end the instance"
        valkey.settimeout(0)
        assert was_dialled(valkey) == is_provisioned
        read = {request.headers["x-amz-target"] for request in aws.requests}
        if role == "ingest":
            assert read == ({"secretsmanager.GetSecretValue", *READS_OF_RULES} if is_provisioned else set())


def was_dialled(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True
