"""Each step of a reply fails, before and after it is done, by an error or by the end of the process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lambdas.responder.errors import CallBusy, CallRefused
from lambdas.responder.history import Turn
from lambdas.responder.owned_turn import MIN_TIME_TO_FINISH_MS
from lambdas.responder.service import MAX_REPLY_BYTES, MIN_TIME_TO_SEND_MS
from message_buffer.events.event_bus import MAX_ENTRY_BYTES_IN_A_CALL
from tests.support.responder import NAME, PARTS, Tables, World, event

SCHEMAS = Path(__file__).parents[2] / "docs/schema"
QUESTION = "Where is it?"
ANSWERED = [("user", QUESTION), ("assistant", "\n".join(PARTS))]
# In the order in which a reply of two parts takes them, with a gate that asks.
STEPS = [
    "acquire", "tenant_settings", "finished", "gate", "count_reply", "answer", "plan",
    "gate", "mark", "send", "mark", "gate of holds", "mark", "send", "mark", "publish", "finish",
]  # fmt: skip


@pytest.fixture
def world(new_table: Tables) -> Callable[..., World]:
    return lambda **options: World(new_table(), **options)


def test_the_steps_are_those_that_the_table_names(world: Callable[..., World]) -> None:
    at_work = world(gate="discard_and_merge")
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.steps.names == STEPS
    assert at_work.sender.sent == PARTS
    assert at_work.turns() == ANSWERED
    assert (at_work.status(), at_work.plan()) == ("reply_sent", None)


@pytest.mark.parametrize("kills", [False, True], ids=["error", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(len(STEPS)), ids=[f"{n}-{name}" for n, name in enumerate(STEPS)])
def test_whatever_step_fails_nothing_is_sent_twice_and_all_is_recorded_once(
    number: int, when: str, kills: bool, world: Callable[..., World]
) -> None:
    at_work = world(gate="discard_and_merge")
    at_work.steps.fail_at = (number, when, kills)
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.sender.sent == [text for text in PARTS if text in at_work.sender.sent], "in order, and once"
    missing = len(PARTS) - len(at_work.sender.sent)
    unconfirmed = at_work.telemetry.counts.get("UnconfirmedSends", 0)
    # An unconfirmed part may be out. A part that is missing is always counted as unconfirmed.
    assert missing <= unconfirmed <= 1
    assert at_work.turns() == ANSWERED
    assert (at_work.status(), at_work.plan()) == ("reply_sent", None)
    assert not at_work.dead_lettered
    told, *repeats = at_work.events("messages.reply.sent")
    assert [part["text"] for part in told["parts"]] == PARTS
    assert sum(part["messageId"] is None for part in told["parts"]) == unconfirmed
    assert repeats in ([], [told]), "a repeat is equal"


@pytest.mark.parametrize(
    ("step", "when", "kills", "sent"),
    [
        ("mark", "after", True, 1),  # died before the call
        ("send", "before", True, 1),
        ("send", "after", True, 2),  # died after the call
        ("send", "after", False, 2),  # the answer was lost
        ("send", "before", False, 2),  # refused for now: nothing was sent, and so it is tried again
    ],
)
def test_an_unconfirmed_part_is_counted_and_not_repeated(
    step: str, when: str, kills: bool, sent: int, world: Callable[..., World]
) -> None:
    at_work = world(gate="discard_and_merge")
    at_work.steps.fail_at = (STEPS.index(step), when, kills)
    at_work.emit("b-1", 1)
    at_work.run()
    assert len(at_work.sender.sent) == sent
    is_known = step == "send" and when == "before" and not kills
    assert at_work.telemetry.counts.get("UnconfirmedSends", 0) == (0 if is_known else 1)


def test_a_part_is_begun_only_if_there_is_time_to_send_it(world: Callable[..., World]) -> None:
    at_work = world()
    needed_ms = MIN_TIME_TO_SEND_MS + MIN_TIME_TO_FINISH_MS
    at_work.assistant.while_asked = lambda: setattr(at_work, "time_left_ms", needed_ms - 1)
    at_work.emit("b-1", 1)
    at_work.deliver()
    assert (len(at_work.assistant.prompts), at_work.sender.sent) == (1, [])
    at_work.time_left_ms = needed_ms
    at_work.deliver()
    assert at_work.sender.sent == PARTS


def test_a_reply_is_published_with_all_by_which_it_is_found(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1)
    at_work.emit("b-2", 2)
    at_work.run()
    (event,) = at_work.events("messages.reply.sent")
    jsonschema.validate(event, json.loads((SCHEMAS / "messages.reply.sent.json").read_text()))
    assert event == {
        "version": 1, "replyId": "b-2", "conversationId": NAME, "tenant": "default", "batchIds": ["b-1", "b-2"],
        "parts": [{"text": PARTS[0], "messageId": "sent-1"}, {"text": PARTS[1], "messageId": "sent-2"}],
        "at": at_work.now_ms,
    }  # fmt: skip


def test_the_parts_that_were_sent_are_published_even_if_the_turn_is_given_up(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1)

    def refuse(text: str) -> None:
        if text == PARTS[1]:
            raise CallRefused("status 400")

    at_work.sender.before_send = refuse
    at_work.run()
    assert len(at_work.dead_lettered) == 1
    assert [each["parts"] for each in at_work.events("messages.reply.sent")] == [
        [{"text": PARTS[0], "messageId": "sent-1"}]
    ]


def test_each_turn_has_its_ids_times_and_tokens(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1)
    arrived_ms = at_work.now_ms
    at_work.now_ms += 700

    def pass_time(_name: object = None) -> None:
        at_work.now_ms += 1_000

    at_work.assistant.while_asked = at_work.sender.before_send = pass_time
    at_work.run()
    record = at_work.table.read(NAME)
    assert record
    sent_ms = arrived_ms + 3_700
    assert record.turns == [
        Turn("user", QUESTION, arrived_ms, "b-1", ["m-b-1"]),
        Turn("assistant", "\n".join(PARTS), sent_ms, "b-1", ["sent-1", "sent-2"], "a-model", 11, 7, 3_000),
    ]
    assert record.last_reply_id == "b-1"
    assert at_work.events("messages.reply.sent")[0]["at"] == sent_ms


def test_a_reply_longer_than_its_event_may_be_is_cut(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.sender.max_part_characters = 1_000
    at_work.assistant.says = '"\ud83d' * MAX_REPLY_BYTES
    at_work.emit("b-1", 1)
    at_work.run()
    ((_, detail),) = at_work.bus.published
    assert len(detail.encode()) < MAX_ENTRY_BYTES_IN_A_CALL
    assert sum(len(part.encode()) for part in at_work.sender.sent) <= MAX_REPLY_BYTES
    assert at_work.sender.sent[-1].endswith("[…]")


def test_a_batch_that_is_delivered_again_is_answered_once(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1)
    for _ in range(3):
        at_work.emit("b-1", 1)
        at_work.run()
    assert at_work.sender.sent == PARTS
    assert at_work.turns() == ANSWERED
    assert len(at_work.telemetry.said("batch was finished before")) == 2
    assert (at_work.status(), at_work.plan()) == ("reply_sent", None)


def test_batches_that_are_delivered_together_are_one_turn_newest_last(world: Callable[..., World]) -> None:
    at_work = world()
    for number, text in enumerate(["one", "two", "three"], 1):
        at_work.emit(f"b-{number}", number, text)
    at_work.run()
    assert at_work.assistant.last_prompt == [("user", "one\ntwo\nthree")]
    assert at_work.sender.sent == PARTS
    assert at_work.turns() == [("user", "one"), ("user", "two"), ("user", "three"), ("assistant", "\n".join(PARTS))]


def test_a_batch_that_comes_while_another_is_answered_waits_for_its_turn(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1, "one")

    def write_on() -> None:
        at_work.assistant.while_asked = lambda: None
        at_work.emit("b-2", 2, "two")
        assert at_work.queue.next_at_ms() > at_work.now_ms

    at_work.assistant.while_asked = write_on
    at_work.run()
    assert at_work.sender.sent == [*PARTS, *PARTS]
    assert [text for role, text in at_work.turns() if role == "user"] == ["one", "two"]


def test_conversations_of_one_invocation_are_answered_although_one_fails(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.put(event("b-1", 1, "one", last_message_at_ms=1).replace(NAME, "default/telegram/b/1"), group="another")
    at_work.emit("b-2", 1, "two")
    errors = [CallBusy("status 503")]

    def fail_once() -> None:
        for error in [errors.pop()] if errors else []:
            raise error

    at_work.assistant.while_asked = fail_once
    at_work.deliver()
    assert len(at_work.queue.messages) == 1
    at_work.run()
    assert sorted(at_work.sender.sent) == sorted([*PARTS, *PARTS])


def test_a_run_that_lost_the_conversation_while_it_sent_stops_sending(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1)

    def oversleep(_text: str) -> None:
        at_work.sender.before_send = lambda _text: None
        at_work.now_ms += 10 * 60_000
        at_work.deliver()

    at_work.sender.before_send = oversleep
    at_work.run()
    assert sorted(at_work.sender.sent) == sorted(PARTS)
    assert at_work.telemetry.counts["UnconfirmedSends"] == 1
    assert at_work.turns() == ANSWERED


def test_a_final_failure_becomes_a_dead_letter_with_its_reason(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1)

    def refuse(_text: str) -> None:
        raise CallRefused("status 400")

    at_work.sender.before_send = refuse
    at_work.run()
    ((body, reason),) = at_work.dead_lettered
    assert (QUESTION in body, reason) == (True, "status 400")
    assert (at_work.status(), at_work.plan()) == ("processing_error", None)
    record = at_work.item()
    assert record
    assert record["reason"] == "status 400"
    at_work.sender.before_send = lambda _text: None
    at_work.emit("b-1", 1)
    at_work.run()
    assert (at_work.sender.sent, at_work.turns()) == (PARTS, ANSWERED), "moved back, it is answered"


def test_repeated_failures_wait_longer_and_are_given_up(world: Callable[..., World]) -> None:
    at_work = world(max_attempts=4)
    at_work.emit("b-1", 1)

    def throttle() -> None:
        raise at_work.steps._error("answer", False, done=False)

    at_work.assistant.while_asked = throttle
    began_ms = at_work.now_ms
    at_work.run()
    assert len(at_work.assistant.prompts) == 4
    assert at_work.now_ms - began_ms == (4 + 8 + 16) * 1_000
    assert [reason for _, reason in at_work.dead_lettered] == ["made to fail"]
    assert at_work.status() == "processing_error"


def test_a_body_that_is_no_event_becomes_a_dead_letter_and_the_others_are_answered(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1)
    at_work.put("[]")
    at_work.emit("b-2", 2)
    at_work.run()
    ((dead_lettered, reason),) = at_work.dead_lettered
    assert (dead_lettered, bool(reason)) == ("[]", True)
    assert [turn.batch_id for turn in at_work.table.read(NAME).turns] == ["b-1", "b-2", "b-2"]  # type: ignore[union-attr]
    assert [each.group for each in at_work.dead.messages] == [NAME]


@pytest.mark.parametrize(
    ("options", "settings", "reason"),
    [
        ({}, {"projectStatus": "inactive"}, "inactive_project"),
        ({"allowed_channels": ["telegram"]}, {}, "channel_not_allowed"),
        ({}, {"allowedChannels": ["telegram"]}, "channel_not_allowed"),
    ],
)
def test_a_withheld_batch_is_published_and_kept_in_the_history(
    options: dict[str, Any], settings: dict[str, Any], reason: str, world: Callable[..., World]
) -> None:
    at_work = world(**options)
    at_work.put_settings("tenant:default", settings)
    at_work.emit("b-1", 1)
    at_work.emit("b-1", 1)
    at_work.run()
    ((kind, detail),) = at_work.bus.published
    assert (kind, json.loads(detail)["reason"]) == ("messages.reply.withheld", reason)
    jsonschema.validate(json.loads(detail), json.loads((SCHEMAS / f"{kind}.json").read_text()))
    assert at_work.sender.sent == []
    assert at_work.turns() == [("user", QUESTION)]
    assert (at_work.status(), at_work.plan()) == ("reply_withheld", None)


@pytest.mark.parametrize("kills", [False, True], ids=["error", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
# acquire, tenant_settings, finished, plan, publish, finish
@pytest.mark.parametrize("number", range(6))
def test_whatever_step_fails_a_withheld_batch_is_published_and_kept_once(
    number: int, when: str, kills: bool, world: Callable[..., World]
) -> None:
    at_work = world()
    at_work.put_settings("tenant:default", {"projectStatus": "inactive"})
    at_work.steps.fail_at = (number, when, kills)
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.bus.published, "at least once"
    assert at_work.turns() == [("user", QUESTION)]
    assert (at_work.sender.sent, at_work.status(), at_work.plan()) == ([], "reply_withheld", None)


def test_settings_of_tenant_and_conversation_win_over_those_of_the_stage(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.put_settings("tenant:default", {"instructions": "Be brief.", "model": "the-tenants"})
    at_work.put_settings(NAME, {"model": "its-own"})
    at_work.emit("b-1", 1)
    at_work.run()
    (prompt,) = at_work.assistant.prompts
    assert (prompt.instructions, prompt.model) == ("Be brief.", "its-own")


def test_typing_is_shown_if_the_stage_says_so(world: Callable[..., World]) -> None:
    at_work = world(typing_indicator=True)
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.sender.typing == 1


def test_old_turns_leave_the_record_and_none_is_lost(world: Callable[..., World]) -> None:
    at_work = world(max_history_tokens=100)
    for number in range(40):
        at_work.emit(f"b-{number:02}", number + 1, f"question {number}")
        at_work.run()
    record = at_work.table.read(NAME)
    assert record
    assert record.older_turn_count > 0
    older = at_work.table.older_turns(NAME, limit=200, now_ms=at_work.now_ms)
    said = [turn.text for turn in [*older, *record.turns] if turn.role == "user"]
    assert said == [f"question {number}" for number in range(40)]
    assert len(at_work.assistant.last_prompt) < 20, "an assistant gets as many turns as fit"


def test_only_the_entries_that_were_delivered_often_enough_are_given_up(world: Callable[..., World]) -> None:
    at_work = world(max_attempts=3)
    at_work.emit("b-1", 1, "one")

    def throttle() -> None:
        raise CallBusy("status 429")

    at_work.assistant.while_asked = throttle
    at_work.deliver()
    at_work.deliver()
    at_work.emit("b-2", 2, "two")
    at_work.deliver()
    assert ["one" in body for body, _ in at_work.dead_lettered] == [True]
    at_work.assistant.while_asked = lambda: None
    at_work.run()
    assert at_work.turns() == [("user", "two"), ("assistant", "\n".join(PARTS))]


def test_a_reply_that_cannot_be_finished_does_not_stop_the_next_turn(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1, "one")

    def refuse(text: str) -> None:
        if text == PARTS[1]:
            raise CallRefused("status 400")

    at_work.sender.before_send = refuse
    at_work.run()
    at_work.sender.before_send = lambda _text: None
    at_work.emit("b-2", 2, "two")
    at_work.run()
    assert at_work.sender.sent == [PARTS[0], *PARTS]
    assert at_work.assistant.last_prompt == [("user", "one"), ("assistant", PARTS[0]), ("user", "two")]


def test_a_plan_whose_batches_never_come_again_is_not_sent(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.steps.fail_at = (STEPS.index("mark") + 2, "after", True)
    at_work.emit("b-1", 1, "one")
    at_work.deliver()
    at_work.queue.messages.clear()
    at_work.emit("b-2", 2, "two")
    at_work.run()
    assert at_work.sender.sent == [PARTS[0], *PARTS]
    assert [text for role, text in at_work.turns() if role == "user"] == ["one", "two"]


def test_a_platform_without_a_channel_is_a_channel_that_is_not_allowed(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.channel = None
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.telemetry.counts["RepliesWithheld channel_not_allowed"] == 1


def test_a_reply_that_was_begun_is_given_up_as_a_whole(world: Callable[..., World]) -> None:
    """A batch that was delivered less often than the others must not bring what was sent once more."""
    at_work = world(max_attempts=3)
    errors = [CallBusy("status 503")]

    def fail_once() -> None:
        for error in [errors.pop()] if errors else []:
            raise error

    def refuse_second(text: str) -> None:
        if text == PARTS[1]:
            raise CallBusy("status 429")

    at_work.assistant.while_asked, at_work.sender.before_send = fail_once, refuse_second
    at_work.emit("b-1", 1, "one")
    at_work.deliver()
    at_work.emit("b-2", 2, "two")
    at_work.run()
    assert at_work.sender.sent == PARTS[:1]
    assert [reason for _, reason in at_work.dead_lettered] == ["status 429"] * 2


def test_only_the_batches_of_a_question_that_the_assistant_refuses_are_given_up(world: Callable[..., World]) -> None:
    at_work = world(max_question_tokens=10)

    def refuse_bad() -> None:
        if "bad" in at_work.assistant.last_prompt[-1][1]:
            raise CallRefused("status 400")

    at_work.assistant.while_asked = refuse_bad
    for number, word in enumerate(["bad", "good"], 1):
        at_work.emit(f"b-{number}", number, f"a {word} word, and more")
    at_work.run()
    assert at_work.sender.sent == PARTS
    assert [("bad" in body, reason) for body, reason in at_work.dead_lettered] == [(True, "status 400")]
