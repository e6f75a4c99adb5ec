"""Lambda entry for consumers, who ask whether they may reply, hold conversations, and hand them to people and back.

Its permissions suffice for these operations and for nothing else. For events and responses see `lambdas/operations.py`.
"""

from functools import cache
from typing import Any

from lambdas.gate.service import Gate, operations_of
from lambdas.operations import Operations
from message_buffer.events.event_bus import EventBus
from message_buffer.events.idle import IdleTable
from message_buffer.lanes.opening import open_dynamodb_lane, open_valkey_lane
from message_buffer.lanes.valkey.patience import DialPatience
from message_buffer.rules.queues import HANDOFF
from message_buffer.settings import GateSettings, read_settings
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[Operations, Telemetry]:
    settings = read_settings(GateSettings)
    telemetry = Telemetry(settings.log)
    # Consumers wait only a few seconds. With this time-out they still receive the DynamoDB lane's holds in an outage of
    # Valkey.
    patience = DialPatience(connect_ms=2_000) if settings.dynamodb_lane else None
    gate = Gate(
        open_valkey_lane(settings.valkey, telemetry, patience=patience) if settings.valkey else None,
        EventBus(settings.event_bus),
        IdleTable(settings.takeovers_table),
        dynamodb_lane=open_dynamodb_lane(settings.dynamodb_lane) if settings.dynamodb_lane else None,
        has_queue=HANDOFF in settings.queues,
    )
    return Operations(operations_of(gate), telemetry), telemetry


def handler(event: Any, context: Any) -> dict[str, Any]:
    operations, telemetry = _parts()
    try:
        return operations.answer(event, request_id=context.aws_request_id)
    finally:
        telemetry.flush()
