"""The webhooks that the local stage's client sends have the signature of the platform that it plays."""

from typing import Any

import pytest

from infra.settings_and_defaults import LOCAL_API_ID
from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Credentials, Signer, Webhook
from tools.local.outputs import Outputs
from tools.local.webhooks import Webhooks, meta, telegram_message, twilio_message, whatsapp, whatsapp_text

OUTPUTS = Outputs(
    ApiEndpoint=f"http://127.0.0.1:4566/_aws/execute-api/{LOCAL_API_ID}/%24default",
    EventBusName="bus",
    AwsEndpointUrl="http://127.0.0.1:4566",
    Region="us-east-1",
    ValkeyUrl="valkey://127.0.0.1:6379",
    WebhookSecrets={platform: f"secret of {platform}" for platform in PLATFORMS},
    Functions={},
    LogGroups={},
    DeadLetterQueueUrl="queue",
    OversizeBucketName="bucket",
    RulesTableName="rules",
)
BODIES: dict[str, Any] = {
    "generic": {"account": "shop", "conversation": "c1", "id": "m1", "text": "Grüße"},
    "whatsapp": whatsapp(whatsapp_text("wamid.1", "Grüße", sender="491")),
    "messenger": meta("messenger", {"message": {"mid": "m_1", "text": "Grüße"}}, account="page", user="psid"),
    "instagram": meta("instagram", {"message": {"mid": "1", "text": "Grüße"}}, account="shop", user="igsid"),
    "twilio": twilio_message("SM1", "Grüße & mehr", sender="whatsapp:+491", to="whatsapp:+1555"),
    "telegram": telegram_message(1, "Grüße", user=5),
}


class Recorded(Webhooks):
    """Webhooks that sends nothing and records the request as the function would see it."""

    def __init__(self) -> None:
        super().__init__(OUTPUTS)
        self._http = self  # type: ignore[assignment]
        self.status, self.data, self.headers = 200, b"{}", {"Content-Type": "application/json"}

    def request(self, method: str, url: str, *, body: bytes, headers: dict[str, str]) -> "Recorded":
        seen = url.replace(OUTPUTS.ApiEndpoint, f"https://{LOCAL_API_ID}.execute-api.127.0.0.1")
        self.sent = Webhook(method, seen, {name.lower(): value for name, value in headers.items()}, {}, body)
        return self


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_it_sends_is_authentic_and_one_message(platform: str) -> None:
    webhooks = Recorded()
    webhooks.post(platform, BODIES[platform])
    credentials = Credentials((f"secret of {platform}",))
    signer = PLATFORMS[platform].authenticate(webhooks.sent, credentials)
    assert isinstance(signer, Signer)
    assert PLATFORMS[platform].authenticate(webhooks.sent, Credentials(("another",))) is None
    (update,) = PLATFORMS[platform].read(webhooks.sent, signer=signer, received_at_ms=1).updates
    assert update.conversation.platform == platform
