"""The layer `platform`: where it applies, what replaces it, and that it never makes another layer invalid."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from message_buffer.errors import InvalidRules
from message_buffer.messages.conversation_id import PLATFORM_NAMES, ConversationId
from message_buffer.rules.doors import read_door
from message_buffer.rules.layers import resolve_rules
from message_buffer.rules.platform_numbers import PLATFORM_LAYER, PlatformNumbers, numbers_of
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_and_defaults import PRESETS, RuleLayer, Rules
from tests.support.engine import ManualClock
from tests.support.fakes import FakeRules, RecordedTelemetry
from tests.unit.test_doors import EXAMPLES
from tests.unit.test_rules_layers import LAYERS, layer

SMS = ConversationId("acme", "twilio", "15558675310", "+1555")
WHATSAPP = ConversationId("acme", "whatsapp", "1", "ann")
MAIL = ConversationId("acme", "custom", "mail:support", "ann@example.org")
CHANNELS = [*((name, "1") for name in PLATFORM_NAMES), ("twilio", "whatsapp:1"), ("twilio", "rcs:1")]
NUMBERS = [found for channel in CHANNELS if (found := numbers_of(*channel))]
WAITS = st.integers(0, 5_000)
ANY_NUMBERS = st.sampled_from(NUMBERS) | st.builds(
    PlatformNumbers,
    st.fixed_dictionaries({}, optional={"silence_ms": WAITS, "media_silence_ms": WAITS, "max_wait_ms": WAITS}),
    st.just("drawn"),
)


class Desk:
    def __init__(self, **options: Any) -> None:
        self.table, self.telemetry, self.clock = FakeRules(), RecordedTelemetry(), ManualClock()
        self.book = RuleBook(self.table, options.pop("deployed", {}), self.telemetry, clock=self.clock, **options)

    def explained(self, conversation: ConversationId, field: str = "silenceMs") -> tuple[Any, str]:
        found: Any = self.book.for_conversation(conversation).explain()[field]
        return found["value"], found["layer"]


@given(LAYERS, st.sampled_from(["sms", "whatsapp"]), ANY_NUMBERS)
@example([layer("tenant:acme", maxWaitMs=4_000, typingInferenceMs=0)], "sms", NUMBERS[0])
@example([layer("tenant:acme", silenceMs=60_000)], "sms", PlatformNumbers({"max_wait_ms": 90_000}, "a longer wait"))
def test_with_the_layer_the_same_other_layers_are_valid_and_each_of_their_fields_is_as_without_it(
    layers: list[RuleLayer], platform: str, numbers: PlatformNumbers
) -> None:
    without, with_it = resolve_rules(layers, platform), resolve_rules(layers, platform, numbers)
    assert [each for each in with_it.skipped if each.layer != PLATFORM_LAYER] == list(without.skipped)
    assert Rules.model_validate(with_it.rules.model_dump()) == with_it.rules
    applies = with_it.skipped == without.skipped
    expected = {**numbers.values} if applies else {}
    expected |= {name: getattr(without.rules, name) for name in without.origins}
    assert with_it.rules == Rules().model_copy(update=expected)
    named = {name for name, origin in with_it.origins.items() if origin.layer == PLATFORM_LAYER}
    assert named == (numbers.values.keys() - without.origins.keys() if applies else set())


def test_each_number_fits_the_defaults_and_names_its_source() -> None:
    for numbers in NUMBERS:
        assert re.fullmatch("assumed: https://[^ ]+", numbers.source)
        Rules.model_validate(numbers.values)
        # The setting `responder.gate_wait_seconds` is compared with the longest wait of `deployed` alone.
        assert "max_wait_ms" not in numbers.values


def test_explain_names_the_layer_and_the_numbers_source() -> None:
    found = Desk().book.for_conversation(SMS).explain()["silenceMs"]
    assert found == {"value": 5_000, "layer": "platform", "via": numbers_of("twilio", "1").source, "version": None}  # type: ignore[union-attr]


def test_an_account_of_twilio_has_the_numbers_of_its_channel() -> None:
    desk = Desk()
    of_whatsapp = SMS._replace(account="whatsapp:15558675310")
    for _ in range(2):  # the second time, the rules are those that the book has kept
        assert desk.explained(SMS) == (5_000, "platform")
        assert desk.explained(of_whatsapp) == (1_000, "defaults")
        assert desk.explained(SMS, "mediaSilenceMs") == (2_000, "defaults")
        assert desk.explained(of_whatsapp, "mediaSilenceMs") == (4_000, "platform")
        assert desk.explained(SMS._replace(account="rcs:1")) == (1_000, "defaults")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_and_any_rule_above_win(preset: str) -> None:
    desk = Desk(deployed={"preset": preset})
    assert desk.explained(SMS) == (PRESETS[preset]["silence_ms"], "deployed")  # type: ignore[index]
    desk = Desk()
    desk.table.write("tenant:acme", {"mediaSilenceMs": 0})
    assert desk.explained(WHATSAPP, "mediaSilenceMs") == (0, "tenant:acme")
    assert desk.explained(WHATSAPP._replace(tenant="other"), "mediaSilenceMs") == (4_000, "platform")


def test_numbers_that_do_not_fit_are_left_out_and_shown_but_raise_no_alarm() -> None:
    desk = Desk()
    desk.table.write("tenant:acme", {"maxWaitMs": 4_000})
    assert desk.explained(SMS) == (1_000, "defaults")
    (skipped,) = desk.book.for_conversation(SMS).skipped
    assert skipped.layer == "platform"
    assert skipped.reason.startswith("silenceMs: 5000 is not below maxWaitMs (4000)")
    assert desk.telemetry.counts == {}


def test_a_stage_can_switch_the_numbers_off_but_not_a_doors_rules() -> None:
    desk = Desk(has_platform_numbers=False)
    desk.table.write("door:mail", EXAMPLES["postmark"])
    assert desk.explained(SMS) == (1_000, "defaults")
    assert desk.explained(WHATSAPP, "mediaSilenceMs") == (2_000, "defaults")
    assert desk.explained(MAIL) == (120_000, "platform")


def test_a_doors_rules_are_the_layer_of_its_messages_and_of_no_other_doors() -> None:
    desk = Desk()
    desk.table.write("door:mail", EXAMPLES["postmark"])
    desk.table.write("door:chat", EXAMPLES["chatwoot"])
    assert desk.explained(MAIL, "maxWaitMs") == (600_000, "platform")
    assert desk.book.for_conversation(MAIL).explain()["silenceMs"]["via"] == "door mail"
    for account in ("chat", "chat:mail", "unknown"):
        assert desk.explained(MAIL._replace(account=account)) == (1_000, "defaults")
    desk.table.write("tenant:acme", {"silenceMs": 2_000})
    desk.clock.advance(60_000)
    assert desk.explained(MAIL) == (2_000, "tenant:acme")
    assert desk.explained(MAIL._replace(tenant="other")) == (120_000, "platform")


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"silenceMs": 120_000}, "rules.silenceMs: 120000 is not below maxWaitMs (30000)"),
        ({"silenceMs": "5"}, "rules.silenceMs: got '5'; use a whole number of milliseconds from 0 to 900000"),
        ({"silence": 5}, "rules.silence: unknown field; did you mean silenceMs?"),
        ({"preset": "customers"}, "rules.preset: a door has only waits"),
        ({"silenceMs": 5, "queue": "mail"}, "rules.queue: a door has only waits"),
    ],
)
def test_a_doors_rules_are_waits_that_fit_the_defaults(rules: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRules) as refused:
        read_door("mail", EXAMPLES["postmark"] | {"rules": rules})
    assert str(refused.value).startswith(problem)
