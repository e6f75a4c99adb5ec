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
        "IngestFunction",
        "IngestLogGroup",
    )
}


@pytest.mark.parametrize(
    ("deployed", "reached"),
    [
        ("https://b0ffe2ed.execute-api.us-east-1.amazonaws.com", "/_aws/execute-api/b0ffe2ed/%24default"),
        (f"https://{'a' * 32}.lambda-url.us-east-1.on.aws", f"/_aws/lambda-url/{'a' * 32}"),
    ],
)
@pytest.mark.parametrize("tunnel", [None, "https://shop.example"])
def test_the_api_is_reached_through_the_emulators_own_address_and_by_platforms_through_a_tunnel(
    deployed: str, reached: str, tunnel: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MagicMock()
    client.get_function_configuration.return_value = {"Environment": {"Variables": {"SETTINGS": '{"log":{}}'}}}
    monkeypatch.setattr(sessions, "emulator_client", lambda *_, **__: client)
    emulator = "http://127.0.0.1:4566"
    outputs = deployment.read_back(
        {**DEPLOYED, "ApiEndpoint": deployed},
        endpoint_url=emulator, region="us-east-1", valkey_url=None, kept_secrets={}, address=tunnel,
    )  # fmt: skip
    assert outputs.ApiEndpoint == emulator + reached
    called = f"{tunnel or emulator}{reached}"
    assert outputs.WebhookUrls["twilio"] == f"{called}/webhook/twilio"
    (changed,) = client.update_function_configuration.call_args_list
    settings = json.loads(changed.kwargs["Environment"]["Variables"]["SETTINGS"])
    assert (changed.kwargs["FunctionName"], settings) == ("the-IngestFunction", {"log": {}, "address": called})


def test_kept_secrets_stay_as_an_operator_wrote_them_and_sign_by_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = MagicMock()
    aws.get_function_configuration.return_value = {"Environment": {"Variables": {"SETTINGS": "{}"}}}
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
