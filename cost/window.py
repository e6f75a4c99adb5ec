"""The bill of the DynamoDB lane: alone, and while it waits beside the Valkey lane for Valkey to fail."""

from math import ceil

from cost.facts import GB, HOURS, MILLION, used
from cost.lines import Line, billed_seconds, log_lines
from cost.traffic import Traffic
from infra.config import StageConfig

PART = "DynamoDB lane"
SWEEPS = HOURS * 60
WRITE_BYTES, READ_BYTES = 1_024, 4_096


def alone(config: StageConfig, traffic: Traffic) -> list[Line]:
    """All messages go by it."""
    gb = config.memory.dynamodb_processor / 1_024
    logged = traffic.batches * (used("conversation_processor_log_bytes") + used("platform_log_bytes")) / GB
    return [
        Line(PART, "DynamoDB: messages, written", "dynamodb_write", _message_writes(traffic) / MILLION,
             "a message: put and bury, by KB; note it in its window"),
        Line(PART, "DynamoDB: windows, written", "dynamodb_write", _window_writes(traffic) / MILLION,
             "a batch: lock; freeze and close, by KB; into the index and out of it"),
        Line(PART, "DynamoDB: windows, read", "dynamodb_read", traffic.batches * _reads(traffic) / MILLION,
             "a batch: one consistent query by 4 KB"),
        Line(PART, "SQS: triggers", "sqs_requests", 3 * traffic.batches / MILLION, "a batch: send, receive, delete"),
        Line(PART, "Lambda: DynamoDB processor, requests", "lambda_requests", traffic.batches / MILLION, "one a batch"),
        Line(PART, "Lambda: DynamoDB processor, duration", "lambda_arm",
             traffic.batches * gb * billed_seconds("dynamodb_processor_ms"), "batches x billed time"),
        *log_lines(config, logged, part=PART, component="Logs: DynamoDB processor", formula="batches x lines"),
        *_at_rest(config),
    ]  # fmt: skip


def as_fallback(config: StageConfig, traffic: Traffic) -> list[Line]:
    """Valkey answers the whole month: what is paid is that both lanes know of each other, and the sweep."""
    names = used("window_row_bytes") + traffic.fragments_per_batch * used("window_name_bytes")
    return [
        Line(PART, "DynamoDB: journal, written", "dynamodb_write",
             traffic.batches * ceil(names / WRITE_BYTES) / MILLION, "a batch of the Valkey lane: one item, by KB"),
        Line(PART, "DynamoDB: fallback, read", "dynamodb_read", traffic.batches / MILLION,
             "a batch of the Valkey lane: was there one?"),
        *_at_rest(config),
    ]  # fmt: skip


def _message_writes(traffic: Traffic) -> float:
    item = used("window_item_bytes") + traffic.payload_bytes
    return traffic.messages * (2 * ceil(item / WRITE_BYTES) + 1)


def _window_writes(traffic: Traffic) -> float:
    frozen = used("window_row_bytes") + traffic.fragments_per_batch * used("window_name_bytes")
    lock, into_index, out_of_index = 1, 1, 1
    return traffic.batches * (lock + 2 * ceil(frozen / WRITE_BYTES) + into_index + out_of_index)


def _reads(traffic: Traffic) -> int:
    held = traffic.fragments_per_batch * (used("window_item_bytes") + traffic.payload_bytes)
    return ceil((used("window_row_bytes") + held + used("window_graves_bytes")) / READ_BYTES)


def _at_rest(config: StageConfig) -> list[Line]:
    """What is paid also if nobody writes."""
    gb_seconds = SWEEPS * config.memory.dynamodb_processor / 1_024 * billed_seconds("window_sweep_ms")
    logged = SWEEPS * (used("window_sweep_log_bytes") + used("platform_log_bytes")) / GB
    return [
        Line(PART, "DynamoDB: sweep, reads", "dynamodb_read", SWEEPS * used("window_slices") / 2 / MILLION,
             "each minute: half a read for each slice of the index"),
        Line(PART, "SQS: trigger queue, polls", "sqs_requests", used("queue_polls") / MILLION, "polls"),
        Line(PART, "Lambda: sweep, requests", "lambda_requests", SWEEPS / MILLION, "one a minute"),
        Line(PART, "Lambda: sweep, duration", "lambda_arm", gb_seconds, "sweeps x billed time"),
        *log_lines(config, logged, part=PART, component="Logs: sweep", formula="sweeps x lines"),
    ]  # fmt: skip
