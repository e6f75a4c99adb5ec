"""If Valkey swallows requests, the DynamoDB lane answers a webhook before its platform gives up."""

import time

import pytest

from message_buffer.lanes.fallback import LaneWithFallback
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.store import Store
from message_buffer.lanes.valkey.told_by_environment import ConnectionSettings
from message_buffer.limits import RETRY_IF_FAILED_WITHIN_MS
from tests.support.engine import SETTINGS, payload
from tests.support.fakes import valkey_lane
from tests.support.proxy import behind_proxy
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyServer
from tests.support.window import CONVERSATION, RULES, WindowScene

PLATFORMS_PATIENCE_SECONDS = 3.0
MESSAGES = 20


@pytest.mark.parametrize("connected", [True, False], ids=["on an old connection", "on a new one"])
def test_a_webhook_waits_for_a_silent_valkey_once_and_not_for_long(
    valkey: ValkeyServer, window: WindowScene, *, connected: bool
) -> None:
    admin = valkey.admin()
    with behind_proxy(valkey.port, admin) as proxy:
        url = valkey.url.replace(str(valkey.port), str(proxy.port))
        connection = Connection(lambda: connect(ConnectionSettings(url)), retry_within_ms=RETRY_IF_FAILED_WITHIN_MS)
        store = Store(connection, SETTINGS, shebang=STRICT_SHEBANG)
        lane = LaneWithFallback(valkey_lane(store), window.lane, window.telemetry)
        if connected:
            lane.buffer_message(CONVERSATION, "before", payload=payload("before"), timing=RULES.timing)
        proxy.fall_silent()
        began = time.monotonic()
        for number in range(MESSAGES):
            message_id = f"m{number}"
            lane.buffer_message(CONVERSATION, message_id, payload=payload(message_id), timing=RULES.timing)
        took_seconds = time.monotonic() - began
        connection.close()
    admin.close()
    assert window.telemetry.counts["FallbackMessages"] == MESSAGES
    assert took_seconds < PLATFORMS_PATIENCE_SECONDS
