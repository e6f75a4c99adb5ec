"""The console has a sentence for each rule by which a batch may be due."""

from typing import get_args

from bufferctl.reasons import WORDS, waiting_part, why, why_due
from message_buffer.rules.rules_and_defaults import RULE_FIELDS
from message_buffer.rules.timing import RuleName

NOT_RULES = {"maxBytes", "typing", "hold", "resume", "flush", "split"}


def test_there_is_a_sentence_for_everything_that_may_set_a_due_time() -> None:
    assert set(WORDS) == set(get_args(RuleName))
    assert set(WORDS) - NOT_RULES <= set(RULE_FIELDS.values())


def test_a_sentence_says_the_wait_or_that_there_is_none_now_or_in_the_past() -> None:
    assert why("silenceMs", 1_500)["text"] == "The batch is emitted after 1.5 s of silence."
    assert why("silenceMs", 2_000, was_emitted=True)["text"] == "The batch was emitted after 2 s of silence."
    assert why("pressedSilenceMs", 0)["text"] == "Because of a button, the batch is emitted at once."
    for rule in WORDS:
        for wait_ms in (0, 2_000):
            assert "{" not in why(rule, wait_ms)["text"]


def test_a_rule_of_a_newer_stage_is_named() -> None:
    assert why("moonPhase", 1)["text"] == "The rule is moonPhase."


def test_a_conversation_that_waits_in_the_dynamodb_lane_alone_is_explained_too() -> None:
    shown = {"count": 0, "batch": None, "rule": None, "dynamodb": {"count": 1, "rule": "silenceMs", "appliedWaitMs": 1}}
    assert (why_due(waiting_part(shown)) or {})["rule"] == "silenceMs"
    assert why_due(waiting_part({"count": 0, "batch": None, "rule": None})) is None
