"""Reads secrets."""

from message_buffer.aws import clients as aws


class Secrets:
    def read(self, secret_id: str) -> str:
        with aws.errors_as_ours("read secret"):
            value: str = aws.client("secretsmanager").get_secret_value(SecretId=secret_id)["SecretString"]
            return value
