"""Items of the conversations table: the code writes exactly these, and reads them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from lambdas.responder.conversations_table import (
    RECORD,
    ConversationsTable,
    End,
    Part,
    Plan,
    ReplyCount,
)
from lambdas.responder.history import MAX_RECORDED_TURNS, Turn
from message_buffer.aws import clients as aws
from message_buffer.consumer.turns import MAX_ENTRIES
from message_buffer.errors import LockLost
from message_buffer.limits import HOUR_MS
from tests.support.responder import NAME, PARTS, Tables, World

BEGAN_MS = 1_700_000_000_000
EXPIRES_AT = str(BEGAN_MS // 1_000 + 35 * 86_400)

TURNS = [
    {"role": "user", "text": "Hey", "at_ms": BEGAN_MS, "batch_id": "b-0", "message_ids": ["m-b-0"]},
    {
        "role": "assistant",
        "text": "\n".join(PARTS),
        "at_ms": BEGAN_MS,
        "batch_id": "b-0",
        "message_ids": ["sent-1", "sent-2"],
        "model": "a-model",
        "input_tokens": 11,
        "output_tokens": 7,
    },
]
QUESTION = [
    {"role": "user", "text": "Wo ist es, größer?", "at_ms": BEGAN_MS, "batch_id": "b-1", "message_ids": ["m-b-1"]},
    {"role": "user", "text": "The blue one", "at_ms": BEGAN_MS, "batch_id": "b-2", "message_ids": ["m-b-2"]},
]
# While the turn of `b-1` and `b-2` is being answered: its first part is out.
ITEMS: dict[str, dict[str, Any]] = {
    "!": {
        "conversationStatus": {"S": "processing_reply"},
        "createdAt": {"N": str(BEGAN_MS)},
        "inputTokens": {"N": "11"},
        "outputTokens": {"N": "7"},
        "owner": {"S": "owner-2"},
        "lastReplyId": {"S": "b-0"},
        "reason": {"S": ""},
        "rolled": {"N": "0"},
        "turns": {"S": json.dumps(TURNS, ensure_ascii=False)},
        "updatedAt": {"N": str(BEGAN_MS)},
    },
    "o#b-0": {"expiresAt": {"N": EXPIRES_AT}, "outcome": {"S": "reply_sent"}},
    "plan": {
        "expiresAt": {"N": EXPIRES_AT},
        "inputTokens": {"N": "11"},
        "model": {"S": "a-model"},
        "outputTokens": {"N": "7"},
        "owner": {"S": "owner-2"},
        "parts": {
            "L": [
                {"S": json.dumps([PARTS[0], "sent", "sent-3", BEGAN_MS, ""])},
                {"S": json.dumps([PARTS[1], "planned", "", 0, ""])},
            ]
        },
        "question": {"S": json.dumps(QUESTION, ensure_ascii=False)},
        "withheld": {"S": ""},
    },
}
# The hour's replies: those to `b-0`, and to `b-1` with `b-2`.
ADDED_TO_THE_RECORD = {"repliesSince": {"N": str(BEGAN_MS)}, "replies": {"N": "2"}}
OLDER_TURN = {"role": "user", "text": "Hello?", "at_ms": 1, "batch_id": "b-00"}


def put(world: World, part: str, attributes: dict[str, Any]) -> None:
    key = {"id": {"S": NAME}, "part": {"S": part}}
    aws.client("dynamodb").put_item(TableName=world.table.name, Item=key | attributes)


def stored_items(world: World) -> dict[str, dict[str, Any]]:
    items = aws.client("dynamodb").scan(TableName=world.table.name)["Items"]
    return {
        item["part"]["S"]: {name: value for name, value in item.items() if name not in ("id", "part")} for item in items
    }


@pytest.fixture
def before(new_table: Tables) -> World:
    """Return a world whose table has these items."""
    world = World(new_table(), gate="discard_and_merge")
    for part, attributes in ITEMS.items():
        put(world, part, attributes)
    return world


def test_settings_and_older_turns_are_read(before: World) -> None:
    put(before, RECORD, ITEMS["!"] | {"settings": {"S": '{"model": "m"}'}})
    put(before, "t#0000000000", {"turn": {"S": json.dumps(OLDER_TURN)}})
    record = before.table.read(NAME)
    assert record
    assert record.settings == {"model": "m"}
    assert before.table.older_turns(NAME, limit=5, now_ms=BEGAN_MS) == [Turn("user", "Hello?", 1, "b-00")]


def test_a_reply_that_another_run_began_is_finished(before: World) -> None:
    before.emit("b-1", 2, "Wo ist es, größer?")
    before.emit("b-2", 3, "The blue one")
    before.run()
    assert before.sender.sent == PARTS[1:], "the first part was out"
    assert not before.assistant.prompts, "the reply was written down"
    assert [text for role, text in before.turns() if role == "user"] == ["Hey", "Wo ist es, größer?", "The blue one"]
    assert before.plan() is None


def test_exactly_these_items_are_written(new_table: Tables) -> None:
    world = World(new_table(), gate="discard_and_merge")
    world.emit("b-0", 1, "Hey")
    world.run()
    world.emit("b-1", 2, "Wo ist es, größer?")
    world.emit("b-2", 3, "The blue one")
    world.steps.names.clear()
    world.steps.fail_at = (10, "after", True)
    world.deliver()
    assert world.sender.sent == [*PARTS, PARTS[0]], "it ends after the first part"
    written = stored_items(world)
    assert written[RECORD].pop("expiresAt")
    assert written.pop(f"h#{world.now_ms // HOUR_MS}").keys() == {"replies", "expiresAt"}
    assert written == {**ITEMS, RECORD: ITEMS[RECORD] | ADDED_TO_THE_RECORD}


def test_the_end_of_a_turn_fits_a_transaction_even_if_all_turns_leave_the_record(new_table: Tables) -> None:
    world = World(new_table(), gate="discard_and_merge", max_history_tokens=100)
    turn = {"role": "user", "text": "Hey", "at_ms": 1, "batch_id": "b-00"}
    put(world, RECORD, {"turns": {"S": json.dumps([turn] * MAX_RECORDED_TURNS)}})
    # More than half of what the record keeps, so not even the newest turn stays.
    world.assistant.says = '"' * 30_000
    world.sender.max_part_characters = 100_000
    for number in range(MAX_ENTRIES):
        world.emit(f"b-{number}", number, "Hey")
    world.run()
    record = world.table.read(NAME)
    assert record
    assert record.turns == []
    assert record.older_turn_count == MAX_RECORDED_TURNS + MAX_ENTRIES + 1


WRITES = [
    lambda table: table.plan(NAME, "first", Plan([]), reply_count=ReplyCount(0, 0), now_ms=BEGAN_MS),
    lambda table: table.mark(NAME, "first", number=0, part=Part("!", "sending")),
    lambda table: table.finish(
        NAME, "first", Plan([]), record=table.read(NAME), end=End("reply_sent", "", ["b"], 0, BEGAN_MS)
    ),
]


@pytest.mark.parametrize("write", WRITES, ids=["plan", "mark", "finish"])
def test_a_run_can_write_nothing_more_once_a_second_one_has_begun(
    write: Callable[[ConversationsTable], None], new_table: Tables
) -> None:
    table = new_table()
    table.acquire(NAME, "first", now_ms=BEGAN_MS)
    plan = Plan([Turn("user", "?", 1, "b")], [Part("!")])
    table.plan(NAME, "first", plan, reply_count=ReplyCount(0, 0), now_ms=BEGAN_MS)
    write(table)
    table.plan(NAME, "first", plan, reply_count=ReplyCount(0, 0), now_ms=BEGAN_MS)
    table.acquire(NAME, "second", now_ms=BEGAN_MS)
    assert table.take_plan(NAME, "second") == plan
    with pytest.raises(LockLost):
        write(table)
    assert table.take_plan(NAME, "second") == plan
