"""Lambda entry of the DynamoDB processor.

The queue delivers triggers to the function, and the function returns those that the queue must deliver again. A rule
starts a sweep every minute with `{"sweep": true}`, and the queue starts another sweep half a minute later. The admin
function invokes it with `{"redrive": <body of a dead letter>}`; the call then returns `{"redriven": batchId}` or fails.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import product
from math import inf
from typing import Any

from lambdas.dynamodb_processor.service import DynamoDbProcessor
from message_buffer.errors import InvalidInput
from message_buffer.events.emission import Emission, TimeLeft, open_emission
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue, read_message
from message_buffer.settings import DynamoDbProcessorSettings, read_settings
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[DynamoDbProcessor, Emission, Telemetry]:
    settings = read_settings(DynamoDbProcessorSettings)
    telemetry = Telemetry(settings.log)
    emission = open_emission(settings.emission, telemetry)
    processor = DynamoDbProcessor(
        table=MessageTable(settings.dynamodb_lane.table),
        triggers=TriggerQueue(settings.dynamodb_lane.queue_url),
        emission=emission,
        telemetry=telemetry,
    )
    return processor, emission, telemetry


def handler(event: dict[str, Any], context: Any) -> dict[str, Any] | None:
    processor, emission, telemetry = _parts()
    time = TimeLeft(context.get_remaining_time_in_millis)
    try:
        if "redrive" in event:
            return {"redriven": emission.redrive(event["redrive"], time)}
        if "Records" in event:
            records, empty = event["Records"], partial(_empty, time=time, processor=processor, telemetry=telemetry)
            # Process all triggers at once, so that a slow window does not delay the others.
            with ThreadPoolExecutor(len(records)) as threads:
                done = list(threads.map(empty, records))
            # Empty the windows of failed runs after the others, one at a time, and first those that have failed only
            # once. A window that kills its function then uses up only its own attempts.
            for max_tries, (number, record) in product((1, inf), enumerate(records)):
                if done[number] is None:
                    done[number] = empty(record, max_tries=max_tries)
            failed = [record["messageId"] for record, is_done in zip(records, done, strict=True) if not is_done]
            return {"batchItemFailures": [{"itemIdentifier": each} for each in failed]}
        processor.sweep(time)
    finally:
        telemetry.flush()
    return None


def _empty(
    record: dict[str, Any],
    *,
    time: TimeLeft,
    processor: DynamoDbProcessor,
    telemetry: Telemetry,
    max_tries: float = 0,
) -> bool | None:
    """Return what `DynamoDbProcessor.process` returns."""
    try:
        trigger = read_message(record["body"], record["receiptHandle"])
    except InvalidInput as error:
        # Let the queue delete the trigger, which would stay unreadable. The sweep sends its window a new trigger.
        telemetry.warn("unreadable trigger", reason=str(error))
        return True
    if trigger is not None:
        return processor.process(trigger, time, max_tries=max_tries)
    try:
        processor.sweep(time, is_second=True)
    except Exception as error:  # noqa: BLE001 - the triggers of the same delivery must not fail with the sweep
        # Do not repeat the sweep, because the next one starts in half a minute anyway. Otherwise all sweeps that fail
        # in an outage of the table would run together when the outage ends.
        telemetry.crash("sweep failed", error)
    return True
