"""Lambda entry of the conversation processor.

`{"conversation": id, "shard": n}`, invoked asynchronously by the processor; or, by whoever empties the dead-letter
queue, `{"redrive": <body of a dead letter>}`, which answers `{"redriven": batchId}` or fails.
"""

from functools import cache
from typing import Any

from lambdas import environment as config
from lambdas.conversation_processor.lane_agreement import LaneAgreement
from lambdas.conversation_processor.service import ConversationProcessor
from lambdas.limits import MAX_ATTEMPTS_TO_AGREE, MAX_WAITS_FOR_DYNAMODB_LANE
from message_buffer.aws import clients as aws
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.aws.functions import Functions
from message_buffer.errors import StoreError
from message_buffer.events.emission import Emission, TimeLeft, open_emission
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.sign_in import Opener, open_store
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[ConversationProcessor, Emission, Telemetry]:
    settings, telemetry = config.read_conversation_processor(), Telemetry()
    opener = Opener(settings.valkey, sign_cache_token, count_swallowed=lambda: telemetry.count("StoreRetries"))
    emission = open_emission(settings.emission, telemetry)
    processor = ConversationProcessor(
        store=open_store(settings.valkey, opener),
        emission=emission,
        starter=ProcessorStarter(Functions(), settings.processor_function, telemetry),
        telemetry=telemetry,
        agreement=_agreement(settings, telemetry),
    )
    return processor, emission, telemetry


def _agreement(settings: config.ConversationProcessorSettings, telemetry: Telemetry) -> LaneAgreement | None:
    if settings.dynamodb_lane is None:
        return None
    return LaneAgreement(
        # Somebody waits for the batch, and it can be emitted without.
        MessageTable(settings.dynamodb_lane.table, patience=aws.HURRIED),
        TriggerQueue(settings.dynamodb_lane.queue_url, patience=aws.HURRIED),
        telemetry,
        max_waits=min(MAX_WAITS_FOR_DYNAMODB_LANE, settings.emission.max_attempts // 2),
        # The last is for the batch to leave.
        max_attempts_of_agreement=min(MAX_ATTEMPTS_TO_AGREE, settings.emission.max_attempts - 1),
    )


def handler(event: dict[str, Any], context: Any) -> dict[str, str] | None:
    processor, emission, telemetry = _parts()
    time = TimeLeft(context.get_remaining_time_in_millis)
    try:
        if "redrive" in event:
            return {"redriven": emission.redrive(event["redrive"], time)}
        processor.process(event["conversation"], time)
    except StoreError as error:
        # The claim, or the token, runs out: then the watchdog puts the conversation back, batch and id unchanged.
        telemetry.count("StoreFailures")
        telemetry.warn("store failed", conversation=event.get("conversation"), reason=str(error))
        if not error.retryable:
            raise
    finally:
        telemetry.flush()
    return None
