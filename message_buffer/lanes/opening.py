"""Opens the lanes of a stage from a function's settings."""

from message_buffer.aws import clients as aws
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.aws.functions import Functions
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.lanes.valkey.patience import DialPatience
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.sign_in import Opener
from message_buffer.settings import DynamoDbLaneSettings, ValkeySettings
from message_buffer.telemetry import Telemetry


def open_valkey(settings: ValkeySettings, telemetry: Telemetry) -> Opener:
    return Opener(settings, sign_cache_token, telemetry)


def open_valkey_lane(
    settings: ValkeySettings,
    telemetry: Telemetry,
    *,
    patience: DialPatience | None = None,
    retry_within_ms: int | None = None,
) -> ValkeyLane:
    connection = open_valkey(settings, telemetry).connection(patience=patience, retry_within_ms=retry_within_ms)
    return ValkeyLane(connection, settings.store, ProcessorStarter(Functions(), settings.processor_function, telemetry))


def open_dynamodb_lane(settings: DynamoDbLaneSettings, *, patience: aws.Patience = aws.PATIENT) -> DynamoDbLane:
    return DynamoDbLane(
        MessageTable(settings.table, patience=patience), TriggerQueue(settings.queue_url, patience=patience)
    )
