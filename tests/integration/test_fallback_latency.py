"""If Valkey swallows requests, the DynamoDB lane answers a webhook before its platform gives up."""

from typing import Any

import pytest

from lambdas.ingest.handler import RETRY_IF_FAILED_WITHIN_MS
from message_buffer.lanes.fallback import LaneWithFallback
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.patience import WebhookPatience
from message_buffer.lanes.valkey.store import Store
from message_buffer.settings import ConnectionSettings
from tests.support.engine import SETTINGS, payload
from tests.support.fakes import valkey_lane
from tests.support.proxy import behind_proxy
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyServer
from tests.support.window import CONVERSATION, RULES, WindowScene

CONNECT_MS, ANSWER_MS, WEBHOOK_MS = 1_000, 300, 400
MESSAGES = 20


@pytest.mark.parametrize("connected", [True, False], ids=["on an old connection", "on a new one"])
def test_a_webhook_waits_for_a_silent_valkey_once_and_not_for_long(
    valkey: ValkeyServer, window: WindowScene, monkeypatch: pytest.MonkeyPatch, *, connected: bool
) -> None:
    admin = valkey.admin()
    with behind_proxy(valkey.port, admin) as proxy:
        url = valkey.url.replace(str(valkey.port), str(proxy.port))
        patience = WebhookPatience(connect_ms=CONNECT_MS, answer_ms=ANSWER_MS, webhook_ms=WEBHOOK_MS)
        connection = Connection(
            lambda: connect(ConnectionSettings(url, CONNECT_MS, ANSWER_MS)),
            patience=patience,
            retry_within_ms=RETRY_IF_FAILED_WITHIN_MS,
        )
        patience.begin()
        store = Store(connection, SETTINGS, shebang=STRICT_SHEBANG)
        main, asked = valkey_lane(store), list[str]()
        lane = LaneWithFallback(main, window.lane, window.telemetry, clock=window.clock)
        if connected:
            lane.buffer_message(CONVERSATION, "before", payload=payload("before"), timing=RULES.timing)
        buffer_message = main.buffer_message

        def ask(conversation: str, message_id: str, **options: Any) -> Any:
            asked.append(message_id)
            return buffer_message(conversation, message_id, **options)

        monkeypatch.setattr(main, "buffer_message", ask)
        proxy.fall_silent()
        for number in range(MESSAGES):
            message_id = f"m{number}"
            lane.buffer_message(CONVERSATION, message_id, payload=payload(message_id), timing=RULES.timing)
        connection.close()
    admin.close()
    assert window.telemetry.counts["FallbackMessages"] == MESSAGES
    assert asked == ["m0"], "while the circuit breaker's clock stands still, one message alone waits for Valkey"
