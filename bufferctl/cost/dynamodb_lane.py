"""The bill of the DynamoDB lane: alone, and as a fallback in a month in which Valkey never fails."""

from math import ceil

from bufferctl.cost.facts import GB, MILLION, SECONDS, used
from bufferctl.cost.lines import Line, billed_seconds, log_lines, run_logs_gb
from bufferctl.cost.traffic import Traffic
from infra.settings_and_defaults import StageConfig
from message_buffer.limits import RULE_SECONDS

PART = "DynamoDB lane"
# EventBridge starts one sweep every RULE_SECONDS. That sweep sends a queue message, which starts a second sweep.
SWEEPS = 2 * SECONDS / RULE_SECONDS
# DynamoDB bills one write for each KB of an item, and one read for each 4 KB. It rounds up.
WRITE_BYTES, READ_BYTES = 1_024, 4_096


def alone(config: StageConfig, traffic: Traffic) -> list[Line]:
    """Return the lane's bill in a stage that has no other lane."""
    gb = config.memory["dynamodb_processor"] / 1_024
    early = traffic.batches * used("early_triggers")
    reads = traffic.batches * (_reads(traffic) + 1) + early + traffic.messages * _reads_apart(traffic)
    seconds = traffic.batches * billed_seconds("dynamodb_processor_ms") + early * billed_seconds("early_trigger_ms")
    logged = run_logs_gb(traffic.batches, "conversation_processor_log_bytes") + _early_logs_gb(early)
    return [
        Line(PART, "DynamoDB: messages, written", "dynamodb_write", _message_writes(traffic) / MILLION,
             "messages x (put and mark as emitted, by KB; note it in its window)"),
        Line(PART, "DynamoDB: quotas, written", "dynamodb_write", traffic.messages / MILLION,
             "messages, if each has a webhook of its own"),
        Line(PART, "DynamoDB: windows, written", "dynamodb_write", _window_writes(traffic) / MILLION,
             "batches x (lock; freeze and close, by KB; into the index and out of it)"),
        Line(PART, "DynamoDB: windows, read", "dynamodb_read", reads / MILLION,
             "batches x one consistent query, by 4 KB; look-ups x one item; large messages x (look-up, body by 4 KB)"),
        Line(PART, "SQS: triggers", "sqs_requests", (3 * traffic.batches + 2 * early) / MILLION,
             "batches x (send, receive, delete); early triggers x (hide, receive)"),
        Line(PART, "Lambda: DynamoDB processor, requests", "lambda_requests", (traffic.batches + early) / MILLION,
             "batches and early triggers"),
        Line(PART, "Lambda: DynamoDB processor, duration", "lambda_arm",
             gb * seconds, "batches x billed time; early triggers x billed time"),
        *log_lines(
            config, logged, part=PART, component="Logs: DynamoDB processor",
            formula="batches x lines; early triggers x lines",
        ),
        *idle(config),
    ]  # fmt: skip


def _early_logs_gb(early: float) -> float:
    """Return the GB logged by runs whose window is not due yet. They log less, because they publish no metric."""
    return run_logs_gb(early, "early_trigger_log_bytes")


def _is_large(traffic: Traffic) -> bool:
    """Return whether the lane stores each message's body in a separate item, because the body is large."""
    return traffic.payload_bytes > used("large_message_bytes")


def _message_writes(traffic: Traffic) -> float:
    item = ceil((used("stored_message_bytes") + traffic.payload_bytes) / WRITE_BYTES)
    put, mark, note = item, item, 1
    if _is_large(traffic):
        # The body is a separate item: ingest puts it, and the processor deletes it. The processor deletes it a second
        # time after it has marked the message as emitted, because a slow request of ingest may have put the body again.
        put, mark = 1 + item, item + 1 + 1
    return traffic.messages * (put + mark + note)


def _reads_apart(traffic: Traffic) -> int:
    """Return the extra reads of a large message: ingest checks whether it was emitted, and a run reads its body."""
    if not _is_large(traffic):
        return 0
    return 1 + ceil((used("stored_message_bytes") + traffic.payload_bytes) / READ_BYTES)


def _window_writes(traffic: Traffic) -> float:
    frozen = used("window_row_bytes") + traffic.fragments_per_batch * used("message_name_bytes")
    lock, into_index, out_of_index = 1, 1, 1
    return traffic.batches * (lock + 2 * ceil(frozen / WRITE_BYTES) + into_index + out_of_index)


def _reads(traffic: Traffic) -> int:
    with_bodies = 0 if _is_large(traffic) else traffic.payload_bytes
    held = traffic.fragments_per_batch * (used("stored_message_bytes") + with_bodies)
    return ceil((used("window_row_bytes") + held + used("tombstones_bytes")) / READ_BYTES)


def idle(config: StageConfig) -> list[Line]:
    """Return the lines that are billed even without messages. A queue message starts one half of the sweeps."""
    gb_seconds = SWEEPS * config.memory["dynamodb_processor"] / 1_024 * billed_seconds("dynamodb_sweep_ms")
    logged = SWEEPS * (used("dynamodb_sweep_log_bytes") + used("platform_log_bytes")) / GB
    return [
        Line(PART, "DynamoDB: sweep, reads", "dynamodb_read", SWEEPS * used("index_slices") / 2 / MILLION,
             "sweeps x half a read for each slice of the index"),
        Line(PART, "SQS: trigger queue, polls", "sqs_requests", (used("queue_polls") + 3 * SWEEPS / 2) / MILLION,
             "polls; every second sweep x (send, receive, delete)"),
        Line(PART, "Lambda: sweep, requests", "lambda_requests", SWEEPS / MILLION, "sweeps, two a minute"),
        Line(PART, "Lambda: sweep, duration", "lambda_arm", gb_seconds, "sweeps x billed time"),
        *log_lines(config, logged, part=PART, component="Logs: sweep", formula="sweeps x lines"),
    ]  # fmt: skip
