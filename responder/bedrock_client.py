"""Puts a conversation to a model on Amazon Bedrock."""

from typing import Any

from message_buffer.aws import clients as aws

CONNECT_SECONDS = 2.0


class Models:
    def converse(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Asked once: who asks again decides when."""
        with aws.errors_as_ours("converse"):
            client = aws.client("bedrock-runtime", patience=aws.Patience(CONNECT_SECONDS, seconds, attempts=1))
            answer: dict[str, Any] = client.converse(**request)
            return answer
