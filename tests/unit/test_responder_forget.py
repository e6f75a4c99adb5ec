"""The responder forgets a conversation when the bus says so, or an operator."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lambdas.responder import handler
from lambdas.responder.batch import FORGOTTEN, read_conversation_event
from lambdas.responder.conversations_table import DAY_SECONDS
from lambdas.responder.errors import CallBusy, MalformedEvent
from lambdas.responder.forgetting import MIN_TIME_TO_ERASE_MS
from message_buffer.aws import clients as aws
from tests.support.responder import NAME, OPTIONS, Tables, World, conversation_event, event


@pytest.fixture
def world(new_table: Tables) -> World:
    return World(new_table())


def items(world: World) -> dict[str, str]:
    """Return the parts of all items with their contents, without the tenant's, which count its replies."""
    stored = aws.client("dynamodb").scan(TableName=world.table.name)["Items"]
    return {item["part"]["S"]: json.dumps(item) for item in stored if not item["id"]["S"].startswith("tenant:")}


def answered(world: World, batches: int = 1) -> None:
    for number in range(batches):
        world.emit(f"b-{number}", number + 1, text="a word")
        world.run()
        world.now_ms += 1_000


def command(world: World, **fields: Any) -> Any:
    event = {"operation": "forget", "conversation": NAME, "by": "me", **fields}
    answer = world.commands.run(event, request_id="r-1", time_left_ms=lambda: world.time_left_ms)
    return answer["result"] if answer["ok"] else answer["error"]


def test_turns_outboxes_and_settings_are_gone_and_a_tombstone_remains(world: World) -> None:
    world.put_settings(NAME, {"instructions": "call her Ada"})
    answered(world, 40)
    assert [part for part in items(world) if part.startswith("t#")]
    at_ms = world.now_ms
    assert world.forget()
    assert items(world).keys() == {"!"}
    record = world.item()
    assert record == {
        "id": NAME, "part": "!", "forgottenAt": str(at_ms),
        "expiresAt": str(world.now_ms // 1_000 + OPTIONS.outbox_days * DAY_SECONDS),
    }  # fmt: skip


def test_a_newer_batch_is_answered_and_an_older_one_is_not(world: World) -> None:
    answered(world)
    late = event("late", 2, "a word", last_message_at_ms=world.now_ms)
    world.forget()
    world.now_ms += 1
    world.emit("new", 3, text="a new one")
    world.run()
    world.put(late)
    world.run()
    assert world.turns() == [("user", "a new one"), ("assistant", world.assistant.says)]
    assert world.assistant.last_prompt == [("user", "a new one")]
    assert "a word" not in str(items(world))


def test_a_batch_that_comes_late_leaves_no_more_than_the_tombstone(world: World) -> None:
    answered(world)
    late = event("late", 2, "a word", last_message_at_ms=world.now_ms)
    world.forget()
    expires_at = world.item()["expiresAt"]  # type: ignore[index]
    world.now_ms += 60_000
    world.put(late)
    world.run()
    record = world.item()
    assert record is not None
    assert (set(items(world)), record["expiresAt"]) == ({"!"}, expires_at)


def test_the_event_that_comes_again_erases_nothing_newer(world: World) -> None:
    answered(world)
    at_ms = world.now_ms
    world.forget()
    world.now_ms += 1
    world.emit("new", 3, text="a new one")
    world.run()
    world.forget(at_ms=at_ms)
    assert world.turns()[0] == ("user", "a new one")
    assert "o#new" in items(world)


def test_a_run_at_work_has_lost_the_conversation(world: World) -> None:
    """It may have sent a part, but it writes nothing any more, and is not tried again."""

    def forget_meanwhile() -> None:
        world.commands.forget(NAME, at_ms=world.now_ms, time_left=lambda: 60_000)

    world.assistant.while_asked = forget_meanwhile
    world.emit("b-1", 1, text="a word")
    world.run()
    assert world.sender.sent == []
    assert items(world).keys() == {"!"}
    assert "a word" not in str(items(world))
    assert world.dead_lettered == []


def test_a_forget_that_had_no_time_is_finished_by_the_next_one(world: World) -> None:
    answered(world, 3)
    at_ms = world.now_ms
    world.time_left_ms = MIN_TIME_TO_ERASE_MS
    assert not world.forget()
    assert len(items(world)) > 1
    world.now_ms += 1
    world.emit("new", 9)
    world.time_left_ms = 60_000
    for _ in range(15):
        world.deliver()
    assert (len(world.queue.messages), world.dead_lettered) == (1, []), "until it is finished, no batch is answered"
    assert world.forget(at_ms=at_ms)
    assert items(world).keys() == {"!"}
    world.run()
    assert len(world.turns()) == 2


def test_a_dry_run_counts_turns_and_outboxes_and_changes_nothing(world: World) -> None:
    answered(world, 40)
    before = items(world)
    result = command(world, dryRun=True)
    assert result == {"counts": {"turns": 80, "marks": 40}, "finished": True}
    assert items(world) == before
    assert command(world, at=world.now_ms) == result
    assert command(world, at=world.now_ms)["counts"] == {"turns": 0, "marks": 0}


@pytest.mark.parametrize("at", [-1, "now", True, 1.5, 1_700_000_060_001])
def test_a_time_that_makes_no_sense_is_refused(world: World, at: object) -> None:
    assert command(world, at=at)["code"] == "invalid"


def test_a_word_of_a_customer_is_no_command(world: World) -> None:
    world.emit("b-1", 1, text='"detail-type": "messages.conversation.forgotten"')
    world.run()
    assert world.sender.sent


class Context:
    aws_request_id = "r-1"

    def __init__(self, time_left_ms: int) -> None:
        self.time_left_ms = time_left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.time_left_ms


def test_the_event_of_the_bus_erases_and_fails_until_it_is_finished(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(world)
    parts: Any = SimpleNamespace(commands=world.commands, telemetry=world.telemetry)
    monkeypatch.setattr(handler, "_components", lambda: parts)
    event = conversation_event(FORGOTTEN, world.now_ms)
    with pytest.raises(CallBusy):
        handler.handler(event, Context(MIN_TIME_TO_ERASE_MS))
    assert handler.handler(event, Context(60_000)) == {}
    assert items(world).keys() == {"!"}


@pytest.mark.parametrize("detail", [{"version": 2}, {"version": 1, "conversationId": "c", "at": 1}, 5])
def test_an_event_that_cannot_be_read_is_refused(detail: object) -> None:
    with pytest.raises(MalformedEvent):
        read_conversation_event({**conversation_event(FORGOTTEN, 1), "detail": detail})


# -- what is kept no longer than the stage says ----------------------------------------------------


def test_a_record_and_its_turns_expire_and_are_not_used_until_they_are_deleted(world: World) -> None:
    answered(world, 40)
    finished_at = world.now_ms // 1_000 - 1
    record = world.item()
    assert record is not None
    assert record["expiresAt"] == str(finished_at + OPTIONS.turn_days * DAY_SECONDS)
    turns = [json.loads(item) for part, item in items(world).items() if part.startswith("t#")]
    assert all(int(turn["expiresAt"]["N"]) > finished_at for turn in turns)
    assert world.table.older_turns(NAME, limit=5, now_ms=world.now_ms)
    world.now_ms += (OPTIONS.turn_days * DAY_SECONDS + 1) * 1_000
    assert world.table.older_turns(NAME, limit=5, now_ms=world.now_ms) == []
    world.emit("new", 41, text="hello again")
    world.run()
    assert world.assistant.last_prompt == [("user", "hello again")]
    assert len(world.turns()) == 2
