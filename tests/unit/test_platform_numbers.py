"""The layer `platform`: where it applies, what replaces it, and that it never makes another layer invalid."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from message_buffer.messages.conversation_id import PLATFORM_NAMES, ConversationId
from message_buffer.rules.layers import resolve_rules
from message_buffer.rules.platform_numbers import numbers_of
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_and_defaults import PRESETS, RuleLayer
from tests.support.engine import ManualClock
from tests.support.fakes import FakeRules, RecordedTelemetry
from tests.unit.test_rules_layers import LAYERS, layer

SMS = ConversationId("acme", "twilio", "15558675310", "+1555")
WHATSAPP = ConversationId("acme", "whatsapp", "1", "ann")
MAIL = ConversationId("acme", "custom", "email:support", "ann@example.org")
CHANNELS = [
    *((name, "1") for name in PLATFORM_NAMES),
    ("twilio", "whatsapp:1"),
    ("twilio", "rcs:1"),
    ("custom", "email"),
]
NUMBERS = [found for channel in CHANNELS if (found := numbers_of(*channel))]


class Desk:
    def __init__(self, **options: Any) -> None:
        self.table, self.telemetry, self.clock = FakeRules(), RecordedTelemetry(), ManualClock()
        self.book = RuleBook(self.table, options.pop("deployed", {}), self.telemetry, clock=self.clock, **options)

    def explained(self, conversation: ConversationId, field: str = "silenceMs") -> tuple[Any, str]:
        found: Any = self.book.for_conversation(conversation).explain()[field]
        return found["value"], found["layer"].partition(", assumed: https://")[0]


@given(LAYERS, st.sampled_from(NUMBERS))
@example([layer("tenant:acme", maxWaitMs=4_000, typingInferenceMs=0)], NUMBERS[0])
@example([layer("tenant:acme", silenceMs=60_000)], NUMBERS[-1])
def test_the_numbers_make_no_layer_invalid_and_replace_no_field_of_another(
    layers: list[RuleLayer], numbers: RuleLayer
) -> None:
    together, with_it = resolve_rules([numbers, *layers], "sms"), resolve_rules(layers, "sms", numbers)
    if together.skipped:
        assert with_it == resolve_rules(layers, "sms")
    else:
        assert with_it == together
        above = {name for each in layers for _, values in each.steps_on("sms") for name in values}
        named = {name for name, origin in with_it.origins.items() if origin.layer == numbers.name}
        assert named == numbers.own.keys() - above


def test_each_number_fits_the_defaults_and_names_its_source() -> None:
    assert len(NUMBERS) > len({each.name for each in NUMBERS}) == 3
    for numbers in NUMBERS:
        assert re.fullmatch("platform, assumed: https://[^ ]+", numbers.name)
        assert not resolve_rules([numbers]).skipped


def test_explain_names_the_layer_and_the_numbers_source() -> None:
    found = Desk().book.for_conversation(SMS).explain()["silenceMs"]
    assert found == {"value": 5_000, "layer": numbers_of("twilio", "1").name, "via": "set here", "version": None}  # type: ignore[union-attr]


def test_an_account_of_twilio_or_of_a_door_has_the_numbers_of_its_channel() -> None:
    desk = Desk()
    of_whatsapp = SMS._replace(account="whatsapp:15558675310")
    for _ in range(2):  # the second time, the rules are those that the book has kept
        assert desk.explained(SMS) == (5_000, "platform")
        assert desk.explained(of_whatsapp) == (1_000, "defaults")
        assert desk.explained(SMS, "mediaSilenceMs") == (2_000, "defaults")
        assert desk.explained(of_whatsapp, "mediaSilenceMs") == (4_000, "platform")
        assert desk.explained(SMS._replace(account="rcs:1")) == (1_000, "defaults")
        assert desk.explained(MAIL) == desk.explained(MAIL._replace(account="email")) == (120_000, "platform")
        assert desk.explained(MAIL, "maxWaitMs") == (600_000, "platform")
        assert desk.explained(MAIL._replace(account="chat:email")) == (1_000, "defaults")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_and_any_rule_above_win(preset: str) -> None:
    desk = Desk(deployed={"preset": preset})
    assert desk.explained(SMS) == (PRESETS[preset]["silence_ms"], "deployed")  # type: ignore[index]
    desk = Desk()
    desk.table.write("tenant:acme", {"mediaSilenceMs": 0})
    assert desk.explained(WHATSAPP, "mediaSilenceMs") == (0, "tenant:acme")
    assert desk.explained(WHATSAPP._replace(tenant="other"), "mediaSilenceMs") == (4_000, "platform")


def test_numbers_that_do_not_fit_are_left_out_and_raise_no_alarm() -> None:
    desk = Desk()
    desk.table.write("tenant:acme", {"maxWaitMs": 4_000})
    assert desk.explained(SMS) == (1_000, "defaults")
    assert desk.book.for_conversation(SMS).skipped == ()
    assert desk.telemetry.counts == {}


def test_a_stage_can_switch_the_numbers_off() -> None:
    desk = Desk(has_platform_numbers=False)
    assert desk.explained(SMS) == (1_000, "defaults")
    assert desk.explained(WHATSAPP, "mediaSilenceMs") == (2_000, "defaults")
