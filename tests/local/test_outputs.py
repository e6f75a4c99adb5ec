"""The outputs of the local stage have the names that a stage in AWS gives them."""

import json
from unittest.mock import MagicMock

import pytest

from bufferctl import sessions
from tools.local import deployment

DEPLOYED = {
    name: f"the-{name}"
    for name in (
        "ApiEndpoint",
        "WebhookSecretId",
        "EventBusName",
        "DeadLetterQueueUrl",
        "OversizeBucketName",
        "RulesTableName",
    )
}


@pytest.mark.parametrize(
    ("deployed", "reached"),
    [
        ("https://b0ffe2ed.execute-api.us-east-1.amazonaws.com", "/_aws/execute-api/b0ffe2ed/%24default"),
        (f"https://{'a' * 32}.lambda-url.us-east-1.on.aws", f"/_aws/lambda-url/{'a' * 32}"),
    ],
)
def test_the_api_is_reached_through_the_emulators_own_address(
    deployed: str, reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "emulator_client", MagicMock())
    emulator = "http://127.0.0.1:4566"
    outputs = deployment.read_back(
        {**DEPLOYED, "ApiEndpoint": deployed}, endpoint_url=emulator, region="us-east-1", valkey_url=None,
        kept_secrets={},
    )  # fmt: skip
    assert outputs.ApiEndpoint == emulator + reached


def test_kept_secrets_stay_as_an_operator_wrote_them_and_sign_by_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = MagicMock()
    monkeypatch.setattr(sessions, "emulator_client", lambda service, **_: aws)
    kept = {"generic": ["new", "old"], "whatsapp": {"secret": "s", "verifyToken": "t"}, "custom/shop": "of a door"}
    outputs = deployment.read_back(
        DEPLOYED, endpoint_url="http://127.0.0.1:1", region="us-east-1", valkey_url=None, kept_secrets=kept
    )
    written = json.loads(aws.put_secret_value.call_args.kwargs["SecretString"])
    assert kept.items() <= written.items()
    assert outputs.WebhookSecrets["generic"] == "new"
    assert outputs.WebhookSecrets["whatsapp"] == "s"
    assert outputs.WebhookSecrets["telegram"] == written["telegram"], "a platform without a kept secret gets a new one"
