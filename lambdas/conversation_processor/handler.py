"""Lambda entry of the conversation processor.

`{"conversation": id, "shard": n}`, invoked asynchronously by the processor; or, by whoever empties the dead-letter
queue, `{"redrive": <body of a dead letter>}`, which answers `{"redriven": batchId}` or fails.
"""

from functools import cache
from typing import Any

from lambdas import environment as config
from lambdas.conversation_processor.lane_agreement import MOST_ATTEMPTS, MOST_WAITS, OtherLane
from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.aws import clients as aws
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.aws.functions import Functions
from message_buffer.errors import StoreError
from message_buffer.events.emission import Emission, TimeLeft, open_emission
from message_buffer.lanes.dynamodb.table import HoldingTable
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
        other_lane=_other_lane(settings, telemetry),
    )
    return processor, emission, telemetry


def _other_lane(settings: config.ConversationProcessorSettings, telemetry: Telemetry) -> OtherLane | None:
    if settings.holding is None:
        return None
    return OtherLane(
        # Somebody waits for the batch, and it can be emitted without.
        HoldingTable(settings.holding.table, patience=aws.HURRIED),
        TriggerQueue(settings.holding.queue_url, patience=aws.HURRIED),
        telemetry,
        most_waits=min(MOST_WAITS, settings.emission.max_attempts // 2),
        # The last is for the batch to leave.
        most_attempts=min(MOST_ATTEMPTS, settings.emission.max_attempts - 1),
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
