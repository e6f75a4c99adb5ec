"""The numbers and names in docs/responder.md are those of the code."""

from pathlib import Path

import pytest

from infra.settings_and_defaults import Responder
from message_buffer.settings import ResponderOptions
from responder import limits
from responder.channels.fake import Fake
from responder.channels.messenger import Messenger
from responder.channels.telegram import Telegram
from responder.channels.twilio import Twilio
from responder.channels.whatsapp import WhatsApp
from responder.gate import DELIVER, DISCARD_AND_MERGE, INTERRUPT, QUEUE

# In one line, since a sentence may be broken anywhere.
DOCUMENT = " ".join((Path(__file__).parents[2] / "docs" / "responder.md").read_text().split())
KB = 1_024
NUMBERS = ["no", "one", "two", "three", "four", "five", "six"]


@pytest.mark.parametrize(
    "sentence",
    [
        f"comes back after {', '.join(str(limits.MIN_RETRY_SECONDS << doublings) for doublings in range(3))} …",
        f"… up to {limits.MAX_RETRY_SECONDS} s",
        f"comes back after at most {limits.MAX_RETRY_SECONDS_WHILE_OWNED} s",
        f"{NUMBERS[limits.MAX_PARKED_BATCHES].capitalize()} parked batches open the gate",
        f"at most {limits.MAX_RECORDED_TURNS} and {limits.MAX_RECORDED_TURNS_BYTES // KB} KB",
        f"A turn is cut at {limits.MAX_TURN_BYTES // KB} KB, a parked batch at {limits.MAX_PARKED_TEXT_BYTES // KB} KB",
        f"at {NUMBERS[limits.MIN_BYTES_IN_A_TOKEN]} bytes a token",
    ],
)
def test_a_number_in_the_document_is_that_of_the_code(sentence: str) -> None:
    assert sentence in DOCUMENT


@pytest.mark.parametrize(
    ("row", "channel"),
    [
        ("WhatsApp Cloud API", WhatsApp),
        ("Messenger", Messenger),
        ("Telegram", Telegram),
        ("Twilio: SMS, WhatsApp", Twilio),
        ('generic webhooks, and all with `"channel": "fake"`', Fake),
    ],
)
def test_a_channels_longest_part_is_documented(row: str, channel: type) -> None:
    assert f"| {row} | {channel.max_part_characters:,} " in DOCUMENT  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", [DELIVER, DISCARD_AND_MERGE, INTERRUPT, QUEUE])
def test_each_policy_of_the_gate_is_documented(policy: str) -> None:
    assert f"| `{policy}` |" in DOCUMENT


@pytest.mark.parametrize("name", ["max_question_tokens", "max_replies_an_hour"])
def test_each_bound_on_what_the_assistant_costs_is_a_setting_and_documented(name: str) -> None:
    assert name in ResponderOptions._fields
    assert f"| `{name}` | {getattr(Responder(), name):,} |" in DOCUMENT


@pytest.mark.parametrize("name", ["unknown_conversation", "inactive_project", "channel_not_allowed"])
def test_each_reason_to_withhold_is_a_setting_and_documented(name: str) -> None:
    assert name in ResponderOptions._fields
    assert f"| `{name}` |" in DOCUMENT
