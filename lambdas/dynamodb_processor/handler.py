"""Lambda entry of the DynamoDB processor.

The queue delivers triggers to the function, and the function returns those that the queue must deliver again. A rule
starts a sweep every minute with `{"sweep": true}`, and the queue starts another sweep half a minute later. The admin
function invokes it with `{"redrive": <body of a dead letter>}`; the call then returns `{"redriven": batchId}` or fails.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from math import inf
from typing import Any, NamedTuple

from lambdas.dynamodb_processor.service import DynamoDbProcessor
from message_buffer.errors import InvalidInput
from message_buffer.events.emission import Emission, TimeLeft, open_emission
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue, is_sweep, read_trigger
from message_buffer.settings import DynamoDbProcessorSettings, read_settings
from message_buffer.telemetry import Telemetry


class _DynamoDbProcessorParts(NamedTuple):
    processor: DynamoDbProcessor
    emission: Emission
    telemetry: Telemetry


@cache
def _parts() -> _DynamoDbProcessorParts:
    settings = read_settings(DynamoDbProcessorSettings)
    telemetry = Telemetry(settings.log)
    emission = open_emission(settings.emission, telemetry)
    processor = DynamoDbProcessor(
        table=MessageTable(settings.dynamodb_lane.table),
        triggers=TriggerQueue(settings.dynamodb_lane.queue_url),
        emission=emission,
        telemetry=telemetry,
    )
    return _DynamoDbProcessorParts(processor, emission, telemetry)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any] | None:
    processor, emission, telemetry = _parts()
    time = TimeLeft(context.get_remaining_time_in_millis)
    try:
        if "redrive" in event:
            return {"redriven": emission.redrive(event["redrive"], time)}
        if "Records" in event:
            records = event["Records"]
            # Process all triggers at once, so that a slow window does not delay the others.
            with ThreadPoolExecutor(len(records)) as threads:
                done = list(threads.map(lambda record: _process(record, time, processor, telemetry), records))
            # Empty the windows of failed runs after the others, one at a time, and first those that have failed only
            # once. A window that kills its function then uses up only its own attempts.
            for max_tries, (number, record) in product((1, inf), enumerate(records)):
                if done[number] is None:
                    trigger = read_trigger(record["body"], record["receiptHandle"])
                    done[number] = processor.process(trigger, time, max_tries=max_tries)
            failed = [record["messageId"] for record, is_done in zip(records, done, strict=True) if not is_done]
            return {"batchItemFailures": [{"itemIdentifier": each} for each in failed]}
        processor.sweep(time)
    finally:
        telemetry.flush()
    return None


def _process(record: dict[str, Any], time: TimeLeft, processor: DynamoDbProcessor, telemetry: Telemetry) -> bool | None:
    if is_sweep(record["body"]):
        try:
            processor.sweep(time, is_second=True)
        except Exception as error:  # noqa: BLE001 - the triggers of the same delivery must not fail with the sweep
            # Do not repeat the sweep, because the next one starts in half a minute anyway. Otherwise all sweeps that
            # fail in an outage of the table would run together when the outage ends.
            telemetry.crash("sweep failed", error)
        return True
    try:
        trigger = read_trigger(record["body"], record["receiptHandle"])
    except InvalidInput as error:
        # Let the queue delete the trigger, which would stay unreadable. The sweep sends its window a new trigger.
        telemetry.warn("unreadable trigger", reason=str(error))
        return True
    return processor.process(trigger, time, max_tries=0)
