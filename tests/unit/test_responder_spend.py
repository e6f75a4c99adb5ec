"""What an author can make the assistant cost: the tokens of a question, and the replies of an hour."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from infra.settings_and_defaults import ResponderConfig
from lambdas.responder.history import estimate_tokens
from tests.support.responder import NAME, PARTS, Tables, World, event

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.reply.withheld.json").read_text("utf-8"))
DEFAULTS = ResponderConfig()
HOUR_MS = 3_600_000
REPLIES = 6
# A few more than are answered.
ROUNDS = REPLIES + 4


@pytest.fixture
def world(new_table: Tables) -> Callable[..., World]:
    limits = {name: getattr(DEFAULTS, name) for name in ("max_history_tokens", "max_replies_an_hour")}
    return lambda **options: World(new_table(), **{**limits, **options})


def withheld(at_work: World) -> list[str]:
    details = [json.loads(detail) for kind, detail in at_work.bus.published if kind == "messages.reply.withheld"]
    for detail in details:
        jsonschema.validate(detail, SCHEMA)
    return [detail["reason"] for detail in details]


def tokens_sent(at_work: World) -> int:
    return max(sum(estimate_tokens(turn.text) for turn in prompt.turns) for prompt in at_work.assistant.prompts)


def test_a_question_of_200_000_tokens_is_withheld_and_kept(world: Callable[..., World]) -> None:
    at_work = world()
    at_work.emit("b-1", 1, "word " * 120_000)
    at_work.run()
    assert at_work.assistant.prompts == []
    assert withheld(at_work) == ["question_too_long"]
    assert at_work.telemetry.counts["RepliesWithheld question_too_long"] == 1
    assert (at_work.status(), at_work.plan()) == ("reply_withheld", None)
    ((role, text),) = at_work.turns()
    assert (role, text.startswith("word ")) == ("user", True)
    at_work.emit("b-2", 2)
    at_work.run()
    assert at_work.sender.sent == PARTS, "the next question is answered"


@pytest.mark.parametrize("size", [40, 400, 4_000, 12_000])
@pytest.mark.parametrize("max_question_tokens", [300, 3_000, 8_000])
def test_batches_of_one_turn_do_not_make_a_question_longer_than_it_may_be(
    size: int, max_question_tokens: int, world: Callable[..., World]
) -> None:
    at_work = world(gate="discard_and_merge", max_question_tokens=max_question_tokens, max_history_tokens=100)
    texts = [f"{number} " + "w" * size for number in range(5)]
    for number, text in enumerate(texts, 1):
        at_work.emit(f"b-{number}", number, text)
    at_work.run()
    if at_work.assistant.prompts:
        assert tokens_sent(at_work) <= max_question_tokens
    longest = max(map(estimate_tokens, texts)) > max_question_tokens
    assert withheld(at_work) == (["question_too_long"] * 5 if longest else [])
    kept = [text for role, text in at_work.turns() if role == "user"]
    assert kept == texts, "no question is forgotten, and their order is kept"
    fitting = max(1, max_question_tokens // max(map(estimate_tokens, texts)))
    assert longest or len(at_work.assistant.prompts) == -(-5 // fitting)


def test_two_bots_that_answer_each_other_stop(world: Callable[..., World]) -> None:
    """Before, they went on for as long as both could pay."""
    at_work, began_ms = world(max_replies_an_hour=REPLIES), 0
    for number in range(1, ROUNDS):
        at_work.emit(f"b-{number}", number, "Thank you! How else can I help?")
        at_work.run()
        began_ms = began_ms or at_work.now_ms
        at_work.now_ms += 5_000
    assert at_work.now_ms - began_ms < HOUR_MS
    assert len(at_work.assistant.prompts) == REPLIES
    assert withheld(at_work) == ["too_many_replies"] * (ROUNDS - 1 - REPLIES)
    at_work.now_ms = began_ms + HOUR_MS
    at_work.emit(f"b-{ROUNDS}", ROUNDS)
    at_work.run()
    assert len(at_work.assistant.prompts) == REPLIES + 1, "a person who comes back is answered"


@pytest.mark.parametrize("options", [{"max_replies_an_hour": 1}, {"max_question_tokens": 5}])
def test_a_reply_that_is_written_down_is_sent_whatever_is_allowed_by_now(
    options: dict[str, Any], world: Callable[..., World]
) -> None:
    at_work = world(max_replies_an_hour=1)
    # acquire, tenant_settings, finished, gate of holds, count_reply, answer, plan
    at_work.steps.fail_at = (6, "after", True)
    at_work.emit("b-1", 1)
    at_work.deliver()
    again = World(at_work.table, **options)
    again.now_ms = at_work.now_ms + 60_000
    again.emit("b-1", 1)
    again.run()
    assert (again.sender.sent, again.assistant.prompts, withheld(again)) == (PARTS, [], [])


def test_a_flood_of_authors_costs_its_tenant_a_bounded_number_of_replies(world: Callable[..., World]) -> None:
    """Before, each author of a tenant could use up the replies of a conversation."""
    at_work = world(max_tenant_replies_an_hour=2)

    def write(number: int, tenant: str) -> None:
        body = event(f"b-{number}", 1, "Where is it?", last_message_at_ms=1).replace(
            NAME, f"{tenant}/whatsapp/106540352242922/{number}"
        )
        at_work.put(body, group=str(number))
        at_work.run()

    for number in range(10, 15):
        write(number, "acme")
    assert len(at_work.assistant.prompts) == 2
    assert withheld(at_work) == ["too_many_replies_of_tenant"] * 3
    assert at_work.telemetry.counts["RepliesWithheld too_many_replies_of_tenant"] == 3
    write(15, "another")
    assert len(at_work.assistant.prompts) == 3, "another tenant has its own"
    at_work.now_ms += HOUR_MS
    write(16, "acme")
    assert len(at_work.assistant.prompts) == 4
