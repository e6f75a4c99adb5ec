"""Starts other Lambda functions, or calls a function and waits for its result."""

import json
from collections.abc import Mapping
from typing import Any

from message_buffer.aws import clients as aws


class Functions:
    def __init__(self, *, connections: int = 10) -> None:
        self._connections = connections

    def prepare(self) -> None:
        """Open a connection now, so that the first call of `start` need not wait for one."""
        with aws.errors_as_ours("connect to Lambda"):
            aws.client("lambda", connections=self._connections).connect()

    def start(self, function: str, payload: Mapping[str, object]) -> None:
        """Start a function asynchronously. Raise SendFailed unless Lambda accepts the event."""
        with aws.errors_as_ours("invoke"):
            aws.client("lambda", connections=self._connections).invoke(
                FunctionName=function,
                InvocationType="Event",
                Payload=json.dumps(payload, separators=(",", ":")).encode(),
            )

    def call(self, function: str, payload: Mapping[str, object], *, response_seconds: float) -> dict[str, Any]:
        """Call a function once. Return its result, or `errorMessage`, and often `errorType`, if the function failed."""
        with aws.errors_as_ours("invoke"):
            response = aws.client("lambda", patience=aws.Patience(1.0, response_seconds, attempts=1)).invoke(
                FunctionName=function, Payload=json.dumps(payload, separators=(",", ":")).encode()
            )
            body = json.loads(response["Payload"].read())
        return body if isinstance(body, dict) else {}
