"""Lambda entry of the operators' function. `bufferctl` and the responder invoke it, never the API; IAM says who may.

An event is `{"operation": "conversation.show", "by": "arn:…", "conversation": "…"}`; for the result see `service.py`.
"""

from functools import cache
from typing import Any, NamedTuple

from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.forgetting import Forgetting, Places
from lambdas.admin.rules import RulesAdmin
from lambdas.admin.service import Admin, operations_of
from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.aws import clients as aws
from message_buffer.aws.functions import Functions
from message_buffer.aws.object_store import ObjectStore
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.opening import open_dynamodb_lane, open_valkey_lane
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.rules.rules_table import RulesTable
from message_buffer.settings import AdminSettings
from message_buffer.takeovers.takeovers_table import TakeoversTable
from message_buffer.telemetry import Telemetry
from message_buffer.variables import read_settings


class _Parts(NamedTuple):
    """The parts that an instance keeps from one call to the next."""

    settings: AdminSettings
    valkey_lane: ValkeyLane | None
    dynamodb_lane: DynamoDbLane | None
    functions: Functions
    telemetry: Telemetry


@cache
def _parts() -> _Parts:
    settings = read_settings(AdminSettings)
    telemetry = Telemetry(settings.log)
    return _Parts(
        settings,
        open_valkey_lane(settings.valkey, telemetry) if settings.valkey else None,
        open_dynamodb_lane(settings.dynamodb_lane) if settings.dynamodb_lane else None,
        Functions(),
        telemetry,
    )


def handler(event: Any, context: Any) -> dict[str, Any]:
    settings, valkey_lane, dynamodb_lane, functions, telemetry = _parts()
    rules = RulesAdmin(
        table=RulesTable(settings.rules_table),
        stage_rules=settings.rules,
        valkey_lane=valkey_lane,
        dynamodb_lane=dynamodb_lane,
        telemetry=telemetry,
        time_left=context.get_remaining_time_in_millis,
    )
    takeovers = TakeoversTable(settings.takeovers_table, patience=aws.PATIENT)
    operations = operations_of(
        Conversations(
            valkey_lane,
            EventBus(settings.event_bus),
            takeovers,
            dynamodb_lane=dynamodb_lane,
            agent_of=rules.agent_of,
        ),
        rules,
        DeadLetters(
            DeadLetterQueue(settings.dead_letter_queue_url),
            functions,
            settings.redrive_function,
            context.get_remaining_time_in_millis,
        ),
        forgetting=Forgetting(
            [lane for lane in (valkey_lane, dynamodb_lane) if lane is not None],
            Places(
                rules=RulesTable(settings.rules_table),
                objects=ObjectStore(settings.oversize_bucket),
                dead_letters=DeadLetterQueue(settings.dead_letter_queue_url),
                undelivered=DeadLetterQueue(settings.undelivered_queue_url) if settings.undelivered_queue_url else None,
                takeovers=takeovers,
                ages_out=[{"place": place, "days": days} for place, days in settings.ages_out.items()],
                aliases=AliasesTable(settings.aliases_table),
            ),
            bus=EventBus(settings.event_bus),
            telemetry=telemetry,
            time_left=context.get_remaining_time_in_millis,
        ),
        telemetry=telemetry,
    )
    try:
        return Admin(operations, telemetry).answer(event, request_id=context.aws_request_id)
    finally:
        telemetry.flush()
