"""Lambda entry of the operators' function: invoked by `bufferctl`, never by the API; IAM says who may.

`{"operation": "conversation.show", "by": "arn:…", "conversation": "…"}`; `service.py` says what it answers.
"""

from functools import cache
from typing import Any, NamedTuple

from lambdas import environment as config
from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.rules import RulesAdmin
from lambdas.admin.service import Admin, operations_of
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.aws.functions import Functions
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.valkey.processor_starter import NO_PROCESSOR, ProcessorStarter
from message_buffer.lanes.valkey.sign_in import Opener, open_store
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rules_table import RulesTable
from message_buffer.telemetry import Telemetry


class _Parts(NamedTuple):
    """What is kept from one call to the next."""

    settings: config.AdminSettings
    valkey_lane: Store | None
    dynamodb_lane: DynamoDbLane | None
    functions: Functions
    telemetry: Telemetry


@cache
def _parts() -> _Parts:
    settings, telemetry = config.read_admin(), Telemetry()
    return _Parts(settings, _valkey_lane(settings, telemetry), _dynamodb_lane(settings), Functions(), telemetry)


def _valkey_lane(settings: config.AdminSettings, telemetry: Telemetry) -> Store | None:
    if settings.valkey is None:
        return None
    opener = Opener(settings.valkey, sign_cache_token, count_swallowed=lambda: telemetry.count("StoreRetries"))
    return open_store(settings.valkey, opener)


def _dynamodb_lane(settings: config.AdminSettings) -> DynamoDbLane | None:
    if settings.dynamodb_lane is None:
        return None
    return DynamoDbLane(MessageTable(settings.dynamodb_lane.table), TriggerQueue(settings.dynamodb_lane.queue_url))


def handler(event: Any, context: Any) -> dict[str, Any]:
    settings, valkey_lane, dynamodb_lane, functions, telemetry = _parts()
    starter = ProcessorStarter(functions, settings.processor_function or NO_PROCESSOR, telemetry)
    operations = operations_of(
        Conversations(valkey_lane, starter, EventBus(settings.event_bus), dynamodb_lane=dynamodb_lane),
        RulesAdmin(
            table=RulesTable(settings.rules_table),
            stage_rules=settings.rules,
            store=valkey_lane,
            starter=starter,
            telemetry=telemetry,
            time_left=context.get_remaining_time_in_millis,
        ),
        DeadLetters(
            DeadLetterQueue(settings.dead_letter_queue_url),
            functions,
            settings.redrive_function,
            context.get_remaining_time_in_millis,
        ),
    )
    try:
        return Admin(operations, telemetry).answer(event)
    finally:
        telemetry.flush()
