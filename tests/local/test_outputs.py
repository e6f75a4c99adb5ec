"""The outputs of the local stage have the names that a stage in AWS gives them."""

from typing import Any
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


@pytest.mark.parametrize(("valkey_url", "endpoint"), [("valkey://127.0.0.1:7001", "127.0.0.1:7001"), (None, None)])
def test_the_cache_endpoint_is_the_address_of_valkey(
    valkey_url: str | None, endpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator: Any = MagicMock()
    monkeypatch.setattr(sessions, "emulator_client", emulator)
    outputs = deployment.read_back(
        DEPLOYED, endpoint_url="http://127.0.0.1:4566", region="us-east-1", valkey_url=valkey_url, previous={}
    )
    assert outputs.CacheEndpoint == endpoint
    assert (outputs.EventBusName, outputs.ValkeyUrl) == ("the-EventBusName", valkey_url)


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
        {**DEPLOYED, "ApiEndpoint": deployed}, endpoint_url=emulator, region="us-east-1", valkey_url=None, previous={}
    )
    assert outputs.ApiEndpoint == emulator + reached
