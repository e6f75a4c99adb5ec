"""Lambda entry for consumers, who ask whether an author has written again, or put a conversation on hold.

Events have the same form as the admin function's, with the operation `gate` or `conversation.hold`.
"""

from functools import cache
from typing import Any

from lambdas.admin.gate.service import Gate
from lambdas.admin.service import Admin, gate_operations_of
from message_buffer.lanes.opening import open_dynamodb_lane, open_valkey_lane
from message_buffer.settings import GateSettings
from message_buffer.telemetry import Telemetry
from message_buffer.variables import read_settings


@cache
def _parts() -> tuple[Admin, Telemetry]:
    settings = read_settings(GateSettings)
    telemetry = Telemetry(settings.log)
    gate = Gate(
        open_valkey_lane(settings.valkey, telemetry) if settings.valkey else None,
        dynamodb_lane=open_dynamodb_lane(settings.dynamodb_lane) if settings.dynamodb_lane else None,
    )
    return Admin(gate_operations_of(gate), telemetry), telemetry


def handler(event: Any, context: Any) -> dict[str, Any]:
    admin, telemetry = _parts()
    try:
        return admin.answer(event, request_id=context.aws_request_id)
    finally:
        telemetry.flush()
