"""What the numbers of the functions promise each other, and those of their neighbours."""

import re

from lambdas.dynamodb_processor.service import HEARTBEAT_SECONDS, WINDOW_LOCK_MS
from lambdas.ingest.platforms.base import MAX_DIGITS_OF_A_TIME_IN_SECONDS, MAX_WEBHOOK_BYTES
from message_buffer.lanes.dynamodb.items import MAX_NAME_BYTES
from message_buffer.lanes.valkey.scripts import load_script
from message_buffer.limits import MAX_MESSAGES_IN_A_BATCH, MAX_TIME_MS
from message_buffer.messages.message import MAX_MESSAGE_BYTES

# Of an item in DynamoDB.
MAX_ITEM_BYTES = 400 * 1024


def test_every_time_that_is_read_from_a_platforms_seconds_is_one_that_a_message_may_have() -> None:
    latest_ms = (10**MAX_DIGITS_OF_A_TIME_IN_SECONDS - 1) * 1_000
    assert latest_ms <= MAX_TIME_MS
    assert latest_ms * 10 > MAX_TIME_MS, "one digit more would name times that no message may have"


def test_the_largest_webhook_can_carry_the_largest_message() -> None:
    assert MAX_WEBHOOK_BYTES > MAX_MESSAGE_BYTES


def test_a_lock_outlives_one_heartbeat_that_fails() -> None:
    assert 2 * HEARTBEAT_SECONDS * 1_000 < WINDOW_LOCK_MS


def test_both_lanes_have_room_for_the_largest_batch() -> None:
    cap = re.search(r"math\.min\(tonumber\(ARGV\[8\]\), (\d+)\)", load_script("take_batch").source.decode())
    assert cap
    assert int(cap[1]) >= MAX_MESSAGES_IN_A_BATCH, "raise the script's own cap with it"
    assert MAX_MESSAGES_IN_A_BATCH * MAX_NAME_BYTES < MAX_ITEM_BYTES, "a frozen batch is one item, with all its names"
