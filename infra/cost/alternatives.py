"""The bills of what could have been built instead."""

from math import ceil

from infra.config import StageConfig
from infra.cost.facts import GB, MILLION, SECONDS, used
from infra.cost.model import Line, bill, billed_seconds, ecpu
from infra.cost.traffic import Traffic

POLL_SECONDS = 0.5
# What the lane without Valkey has no need of.
OF_THE_CACHE = frozenset({"processor", "executor", "watchdog", "cache", "network"})


def window_lane(config: StageConfig, traffic: Traffic) -> list[Line]:
    """The bill of the lane on DynamoDB and SQS, by its design: it is not built."""
    item_writes = ceil(traffic.payload_bytes / 1_000)
    batch_bytes = traffic.fragments_per_batch * traffic.payload_bytes
    gb = config.memory.conversation_processor / 1_024
    lane = [
        Line("lane", "DynamoDB: writes", "dynamodb_write", (
            traffic.messages * (2 * item_writes + 1) + traffic.batches
        ) / MILLION, "a message: put by KB, try the trigger, delete; a batch: delete its trigger"),
        Line("lane", "DynamoDB: reads", "dynamodb_read", traffic.batches * ceil(batch_bytes / 4_000) / MILLION,
             "a batch: one consistent query by 4 KB"),
        Line("lane", "SQS: trigger queue", "sqs_requests", (used("queue_polls") + 3 * traffic.batches) / MILLION,
             "polls, and a batch: send, receive, delete"),
        Line("lane", "Lambda: batch, requests", "lambda_requests", traffic.batches / MILLION, "one a batch"),
        Line("lane", "Lambda: batch, duration", "lambda_arm", traffic.batches * gb * billed_seconds("executor_ms"),
             "a batch, as the conversation processor"),
        Line("lane", "Logs: batch", "logs_written", traffic.batches * (
            used("executor_log_bytes") + used("platform_log_bytes")
        ) / GB, "a batch, as the conversation processor"),
    ]  # fmt: skip
    return [line for line in bill(config, traffic) if line.part not in OF_THE_CACHE] + lane


def polling(config: StageConfig) -> list[Line]:
    """What a processor costs that runs day and night and asks twice a second, as many samples do."""
    shards, asks = config.shards, config.shards * SECONDS / POLL_SECONDS
    return [
        Line("processor", "Lambda: polling", "lambda_arm", shards * SECONDS * config.memory.processor / 1_024,
             "all seconds of the month, each shard"),
        Line("cache", "Valkey: polling", "valkey_ecpu", asks * ecpu("look_us") / MILLION, "two looks a second"),
    ]  # fmt: skip
