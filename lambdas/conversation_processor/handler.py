"""Lambda entry of the conversation processor.

The processor invokes it asynchronously with `{"conversation": id, "shard": n, "deadline": ms}`. The deadline is that of
the claim; older code sends none. The admin function invokes it with `{"redrive": <body of a dead letter>}`; the call
then returns `{"redriven": batchId}` or fails.
"""

from functools import cache
from typing import Any

from lambdas import environment as config
from lambdas.conversation_processor.lane_agreement import LaneAgreement
from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.aws import clients as aws
from message_buffer.errors import StoreError
from message_buffer.events.emission import Emission, TimeLeft, open_emission
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.opening import open_valkey_lane
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[ConversationProcessor, Emission, Telemetry]:
    settings, telemetry = config.read_conversation_processor(), Telemetry(config.log_id_key())
    emission = open_emission(settings.emission, telemetry)
    processor = ConversationProcessor(
        lane=open_valkey_lane(settings.valkey, telemetry),
        emission=emission,
        telemetry=telemetry,
        agreement=_agreement(settings, telemetry),
    )
    return processor, emission, telemetry


def _agreement(settings: config.ConversationProcessorSettings, telemetry: Telemetry) -> LaneAgreement | None:
    if settings.dynamodb_lane is None:
        return None
    return LaneAgreement(
        # Use short time-outs, because the consumer waits for the batch, which can be emitted even if the table fails.
        MessageTable(settings.dynamodb_lane.table, patience=aws.HURRIED),
        TriggerQueue(settings.dynamodb_lane.queue_url, patience=aws.HURRIED),
        telemetry,
    )


def handler(event: dict[str, Any], context: Any) -> dict[str, str] | None:
    processor, emission, telemetry = _parts()
    time = TimeLeft(context.get_remaining_time_in_millis)
    try:
        if "redrive" in event:
            return {"redriven": emission.redrive(event["redrive"], time)}
        processor.process(event["conversation"], time, deadline_ms=event.get("deadline"))
    except StoreError as error:
        # When the claim or the token has expired, the watchdog puts the conversation back, with the same batch and id.
        telemetry.count("StoreFailures")
        telemetry.warn("store failed", conversation=event.get("conversation"), reason=str(error))
        if not error.retryable:
            raise
    finally:
        telemetry.flush()
    return None
