"""Lambda entry of the conversation processor.

Events:

- `{"conversation": id, "shard": n, "deadline": ms}` from the processor, asynchronously: emit the conversation's batch.
  The deadline is that of the claim; older code sends none.
- `{"settle": id}` from the DynamoDB processor, which cannot reach Valkey: settle the conversation's disputes.
- `{"redrive": <body of a dead letter>}` from the admin function: emit the batch; return `{"redriven": id}` or fail.
- `{"warm": true}` from the processor: only open connections. If that fails, the first batch opens them.
"""

from functools import cache
from typing import Any, NamedTuple

from lambdas.conversation_processor.disputes import Disputes
from lambdas.conversation_processor.lane_agreement import LaneAgreement
from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.aws import clients as aws
from message_buffer.errors import MessageBufferError, StoreError
from message_buffer.events.emission import Emission, TimeLeft, open_emission
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.opening import open_valkey_lane
from message_buffer.settings import ConversationProcessorSettings
from message_buffer.telemetry import Telemetry
from message_buffer.variables import read_settings


class _Parts(NamedTuple):
    processor: ConversationProcessor
    disputes: Disputes | None
    emission: Emission
    telemetry: Telemetry


@cache
def _parts() -> _Parts:
    settings = read_settings(ConversationProcessorSettings)
    telemetry = Telemetry(settings.log)
    emission, lane = open_emission(settings.emission, telemetry), open_valkey_lane(settings.valkey, telemetry)
    agreement, disputes = None, None
    if settings.dynamodb_lane is not None:
        # Use short time-outs, because the consumer waits for the batch, which can be emitted even if the table fails.
        table = MessageTable(settings.dynamodb_lane.table, patience=aws.HURRIED)
        triggers = TriggerQueue(settings.dynamodb_lane.queue_url, patience=aws.HURRIED)
        agreement = LaneAgreement(table, triggers, telemetry)
        disputes = Disputes(lane.store, table, triggers, telemetry)
    processor = ConversationProcessor(lane=lane, emission=emission, telemetry=telemetry, agreement=agreement)
    return _Parts(processor, disputes, emission, telemetry)


def _warm_up(processor: ConversationProcessor, telemetry: Telemetry) -> None:
    try:
        processor.warm_up()
    except MessageBufferError as error:
        telemetry.info("not warmed up", reason=str(error))
        return
    telemetry.debug("warmed up")


def handler(event: dict[str, Any], context: Any) -> dict[str, str] | None:
    processor, disputes, emission, telemetry = _parts()
    time = TimeLeft(context.get_remaining_time_in_millis)
    try:
        if "redrive" in event:
            return {"redriven": emission.redrive(event["redrive"], time)}
        if "warm" in event:
            _warm_up(processor, telemetry)
        elif "settle" in event:
            if disputes is not None:
                disputes.settle(event["settle"])
        else:
            processor.process(event["conversation"], time, deadline_ms=event.get("deadline"))
    except StoreError as error:
        # When the claim or the token has expired, the processor puts the conversation back, with the same batch and id.
        # If this was a call to settle disputes, the DynamoDB processor repeats it.
        telemetry.count("StoreFailures")
        telemetry.warn("store failed", conversation=event.get("conversation"), reason=str(error))
        if not error.retryable:
            raise
    finally:
        telemetry.flush_soon()
    return None
