"""The rules of one layer, and how the layers above each other make the rules in force."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from message_buffer.errors import InvalidRules
from message_buffer.limits import MAX_MESSAGES_IN_A_BATCH
from message_buffer.rules.layers import problems_of_deployed, resolve_rules
from message_buffer.rules.rules_and_defaults import (
    MAX_SILENCE_MS,
    MAX_WAIT_MS,
    PRESETS,
    RULE_FIELDS,
    Owner,
    PresetName,
    RuleLayer,
    Rules,
)
from message_buffer.rules.timing import Timing

MILLISECONDS = [
    "silenceMs",
    "typingInferenceMs",
    "maxWaitMs",
    "vipSilenceMs",
    "adaptiveFloorMs",
    "adaptiveCeilingMs",
    "mediaSilenceMs",
    "transcriptWaitMs",
    "pressedSilenceMs",
]
COUNTS = ["maxMessages", "minMessages"]


def layer(name: str, **fields: Any) -> RuleLayer:
    return RuleLayer.model_validate({"name": name, **fields})


def refusal(rules: dict[str, Any]) -> list[str]:
    """Return the problems for which these rules are refused."""
    with pytest.raises(InvalidRules) as refused:
        Rules.model_validate(rules)
    return str(refused.value).splitlines()


def layer_refusal(fields: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidRules) as refused:
        RuleLayer.model_validate({"name": "tenant:acme", **fields})
    return str(refused.value).splitlines()


# One set of rules


def test_defaults_are_the_documented_ones() -> None:
    assert Rules().model_dump() == {
        "silenceMs": 1000,
        "typingInferenceMs": 3000,
        "maxWaitMs": 30000,
        "maxMessages": 20,
        "minMessages": 1,
        "priority": "normal",
        "vipSilenceMs": 0,
        "adaptive": False,
        "adaptiveFloorMs": 500,
        "adaptiveCeilingMs": 10000,
        "adaptiveK": 4.0,
        "mediaSilenceMs": 2000,
        "transcriptWaitMs": 15000,
        "pressedSilenceMs": 0,
        "wait": "silence",
        "windowMs": 10000,
        "stopWords": (),
        "flushWords": (),
        "controlLanguages": (),
        "onHumanReply": None,
        "inboxApps": (),
    }


def test_rules_are_read_by_wire_name_and_by_python_name() -> None:
    assert Rules.model_validate({"silenceMs": 700}) == Rules(silence_ms=700)
    assert Rules.model_validate_json('{"silenceMs": 700}') == Rules(silence_ms=700)


def test_what_is_emitted_is_read_back_as_the_same() -> None:
    rules = Rules(silence_ms=700, priority="vip", adaptive_k=2.5)
    assert Rules.model_validate(rules.model_dump()) == rules
    assert Rules.model_validate_json(rules.model_dump_json()) == rules


def test_rules_do_not_change() -> None:
    rules = Rules()
    with pytest.raises(ValidationError, match="frozen"):
        rules.silence_ms = 5  # type: ignore[misc]


@pytest.mark.case(9)
@pytest.mark.parametrize(
    ("hold", "ms"), [("1s", 1_000), ("90s", 90_000), ("30m", 1_800_000), ("12h", 43_200_000), ("24h", 86_400_000)]
)
def test_a_hold_after_a_persons_reply_is_a_time_with_its_unit(hold: str, ms: int) -> None:
    rules = Rules.model_validate({"onHumanReply": {"hold": hold}})
    assert rules.on_human_reply is not None
    assert rules.on_human_reply.hold_ms == ms
    assert Rules.model_validate_json(rules.model_dump_json()) == rules


@pytest.mark.parametrize(
    "hold",
    ["", "12", "12 h", "12H", "-1h", "1.5h", "0h", "0s", "25h", "86401s", "999999s", "1d", "12h\n", 43_200_000, None],
)
def test_another_hold_is_refused_with_an_example(hold: object) -> None:
    (problem,) = layer_refusal({"onHumanReply": {"hold": hold}})
    assert problem.startswith("onHumanReply.hold: got ")
    assert problem.endswith("; use a time such as '30m' or '12h', at most '24h'")


def test_mistakes_in_the_rule_of_a_persons_reply_are_named() -> None:
    assert layer_refusal({"onHumanReply": {}}) == [
        "onHumanReply.hold: is missing; use a time such as '30m' or '12h', at most '24h'"
    ]
    assert "onHumanReply.hodl: unknown field; did you mean hold?" in layer_refusal({"onHumanReply": {"hodl": "1h"}})
    assert layer_refusal({"onHumanReply": "12h"}) == ["onHumanReply: got '12h'; use null, or {\"hold\": a time}"]
    (problem,) = layer_refusal({"platformOverrides": {"whatsapp": {"onHumanReply": {"hold": "x"}}}})
    assert problem.startswith("platformOverrides.whatsapp.onHumanReply.hold: got 'x'; use a time")


def test_a_layer_above_turns_the_rule_of_a_persons_reply_off() -> None:
    below, above = layer("stage", onHumanReply={"hold": "12h"}), layer("tenant:acme", onHumanReply=None)
    explained = resolve_rules([below]).explain()["onHumanReply"]
    assert (explained["value"], explained["layer"]) == ({"hold": "12h"}, "stage")
    resolved = resolve_rules([below, above])
    assert resolved.rules.on_human_reply is None
    assert resolved.explain()["onHumanReply"]["layer"] == "tenant:acme"


def test_apps_are_ids_of_digits_and_people_type_only_in_those_of_the_inbox() -> None:
    rules = Rules.model_validate({"inboxApps": ["26", "unnamed"]})
    assert [rules.is_inbox(app) for app in ("26", "unnamed", "7")] == [True, True, False]
    for wrong in ([26], ["x"], [""], ["1" * 33], ["1"] * 21, "26"):
        assert layer_refusal({"inboxApps": wrong})[0].endswith(
            "; use a list of at most 20 ids of Meta's apps, as strings of digits, or 'unnamed'"
        )


@pytest.mark.parametrize("field", MILLISECONDS + COUNTS)
@pytest.mark.parametrize("value", ["500", "1s", 1.5, 500.0, True, None, [500]])
def test_only_whole_numbers_are_accepted(field: str, value: object) -> None:
    [problem] = refusal({field: value})
    assert problem.startswith(f"{field}: got {value!r}; use a whole number")


@pytest.mark.case(9)
@pytest.mark.parametrize("field", MILLISECONDS + COUNTS)
@pytest.mark.parametrize("value", [-1, -1000, -(10**18)])
def test_negative_values_are_refused(field: str, value: int) -> None:
    [problem] = refusal({field: value})
    assert problem.startswith(f"{field}: got {value}; use a whole number")


@pytest.mark.case(9)
@pytest.mark.parametrize(
    ("field", "limit"),
    [(field, MAX_WAIT_MS if field == "maxWaitMs" else MAX_SILENCE_MS) for field in MILLISECONDS]
    + [(field, MAX_MESSAGES_IN_A_BATCH) for field in COUNTS],
)
def test_huge_values_are_refused_with_the_limit(field: str, limit: int) -> None:
    [problem] = refusal({field: limit + 1})
    assert problem.startswith(f"{field}: got {limit + 1}; use ")
    assert problem.endswith(f"to {limit}")
    [problem] = refusal({field: 10**5000})
    assert problem.startswith(f"{field}: got a number of more than 30 digits; use ")


@pytest.mark.case(9)
def test_the_limits_themselves_are_accepted() -> None:
    rules = Rules(
        silence_ms=MAX_SILENCE_MS,
        typing_inference_ms=MAX_SILENCE_MS,
        vip_silence_ms=MAX_SILENCE_MS,
        max_wait_ms=MAX_WAIT_MS,
        max_messages=MAX_MESSAGES_IN_A_BATCH,
        min_messages=MAX_MESSAGES_IN_A_BATCH,
        adaptive_floor_ms=1,
        adaptive_ceiling_ms=MAX_SILENCE_MS,
        adaptive=True,
    )
    assert rules.timing.max_wait_ms == 24 * 3600 * 1000


@pytest.mark.case(9)
@pytest.mark.parametrize("field", ["maxWaitMs", "adaptiveFloorMs", "adaptiveCeilingMs", *COUNTS])
def test_zero_is_refused_where_it_means_nothing(field: str) -> None:
    [problem] = refusal({field: 0})
    assert problem.startswith(f"{field}: got 0; use a whole number")
    assert " from 1 to " in problem


@pytest.mark.case(9)
@pytest.mark.parametrize(
    "field",
    ["silenceMs", "typingInferenceMs", "vipSilenceMs", "mediaSilenceMs", "transcriptWaitMs", "pressedSilenceMs"],
)
def test_zero_is_accepted_where_it_means_no_wait(field: str) -> None:
    assert Rules.model_validate({field: 0}).model_dump()[field] == 0


@pytest.mark.case(9)
@pytest.mark.parametrize("value", [0, -1.0, 20.5, float("nan"), float("inf"), "4", True])
def test_adaptive_k_is_a_number_within_bounds(value: object) -> None:
    [problem] = refusal({"adaptiveK": value})
    assert problem == f"adaptiveK: got {value!r}; use a number above 0, at most 20.0"


@pytest.mark.case(9)
def test_other_words_and_types_are_refused_with_the_choice() -> None:
    assert refusal({"priority": "VIP", "adaptive": "yes"}) == [
        "priority: got 'VIP'; use 'normal' or 'vip'",
        "adaptive: got 'yes'; use true or false",
    ]
    assert refusal([1]) == ["rules: got [1]; use an object of rules"]  # type: ignore[arg-type]


@pytest.mark.case(9)
@pytest.mark.parametrize("max_wait_ms", [1, 500, 1000])
def test_max_wait_not_above_silence_is_refused(max_wait_ms: int) -> None:
    [problem] = refusal({"silenceMs": 1000, "maxWaitMs": max_wait_ms, "typingInferenceMs": 0})
    assert problem == (
        f"silenceMs: 1000 is not below maxWaitMs ({max_wait_ms}), so no message could reset the timer;"
        " lower silenceMs or raise maxWaitMs"
    )


@pytest.mark.case(9)
@pytest.mark.parametrize("silence_ms", [0, 1000])
def test_max_wait_one_millisecond_above_silence_is_accepted(silence_ms: int) -> None:
    rules = Rules(silence_ms=silence_ms, max_wait_ms=silence_ms + 1, typing_inference_ms=0)
    assert (rules.timing.silence_ms, rules.timing.max_wait_ms) == (silence_ms, silence_ms + 1)


@pytest.mark.case(9)
@pytest.mark.parametrize(
    ("rules", "begin", "fix"),
    [
        (
            {"typingInferenceMs": 30001},
            "typingInferenceMs: 30001 is above maxWaitMs (30000)",
            "lower typingInferenceMs (0 turns it off) or raise maxWaitMs",
        ),
        (
            {"maxWaitMs": 2999},
            "typingInferenceMs: 3000 is above maxWaitMs (2999)",
            "lower typingInferenceMs (0 turns it off) or raise maxWaitMs",
        ),
        (
            {"minMessages": 21},
            "minMessages: 21 is above maxMessages (20)",
            "lower minMessages or raise maxMessages",
        ),
        (
            {"priority": "vip", "vipSilenceMs": 30000},
            "vipSilenceMs: 30000 is not below maxWaitMs (30000)",
            "lower vipSilenceMs or raise maxWaitMs",
        ),
        (
            {"adaptiveFloorMs": 10001},
            "adaptiveFloorMs: 10001 is above adaptiveCeilingMs (10000)",
            "lower adaptiveFloorMs or raise adaptiveCeilingMs",
        ),
        (
            {"adaptive": True, "adaptiveCeilingMs": 30001},
            "adaptiveCeilingMs: 30001 is above maxWaitMs (30000)",
            "lower adaptiveCeilingMs or raise maxWaitMs",
        ),
    ],
)
def test_contradictions_are_refused_with_field_and_fix(rules: dict[str, Any], begin: str, fix: str) -> None:
    [problem] = refusal(rules)
    assert problem.startswith(begin)
    assert problem.endswith(f"; {fix}")


@pytest.mark.case(9)
@pytest.mark.parametrize(
    "rules",
    [
        {"typingInferenceMs": 30000},
        {"minMessages": 20},
        {"vipSilenceMs": 60000},  # not a VIP
        {"adaptiveCeilingMs": 60000},  # not adaptive
        {"adaptiveFloorMs": 10000},
        {"adaptive": True, "adaptiveCeilingMs": 30000},
    ],
)
def test_what_does_not_contradict_is_accepted(rules: dict[str, Any]) -> None:
    assert rules.items() <= Rules.model_validate(rules).model_dump().items()


@pytest.mark.case(9)
def test_every_problem_is_named_at_once() -> None:
    problems = refusal({"silenceMs": -1, "maxMessages": "20", "maxWait": 5})
    assert [problem.partition(":")[0] for problem in problems] == ["silenceMs", "maxMessages", "maxWait"]
    problems = refusal({"silenceMs": 1000, "maxWaitMs": 900})
    assert [problem.partition(":")[0] for problem in problems] == ["silenceMs", "typingInferenceMs"]


@pytest.mark.case(9)
def test_python_names_are_refused_under_their_wire_name() -> None:
    with pytest.raises(InvalidRules, match=r"^silenceMs: got -1; use"):
        Rules(silence_ms=-1)


@pytest.mark.case(9)
@pytest.mark.parametrize(
    ("given_name", "nearest"),
    [
        ("silenceMS", "silenceMs"),
        ("silence", "silenceMs"),
        ("max_wait", "maxWaitMs"),
        ("maxMesages", "maxMessages"),
        ("typingInference", "typingInferenceMs"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name(given_name: str, nearest: str) -> None:
    assert refusal({given_name: 5}) == [f"{given_name}: unknown field; did you mean {nearest}?"]


@pytest.mark.case(9)
def test_unknown_field_like_no_other_is_refused_with_all_names() -> None:
    [problem] = refusal({"zzz": 5})
    assert problem == f"zzz: unknown field; use one of {', '.join(RULE_FIELDS.values())}"


@pytest.mark.case(9)
def test_a_field_under_both_its_names_is_refused() -> None:
    assert refusal({"silenceMs": 5, "silence_ms": 6}) == ["silenceMs: given twice; remove it and keep silenceMs"]


@pytest.mark.case(10)
@pytest.mark.parametrize("silence_ms", [1, 7, 333, 999])
def test_sub_second_rules_keep_their_milliseconds(silence_ms: int) -> None:
    sent = {"silenceMs": silence_ms, "typingInferenceMs": silence_ms + 1, "maxWaitMs": silence_ms + 2}
    rules = Rules.model_validate_json(Rules.model_validate(sent).model_dump_json())
    assert rules.timing[:3] == (silence_ms, silence_ms + 1, silence_ms + 2)


@pytest.mark.case(18)
@pytest.mark.parametrize(("min_messages", "max_messages"), [(1, 1), (1, 2), (2, 2), (20, 20), (999, 1000)])
def test_min_messages_up_to_max_messages_are_accepted(min_messages: int, max_messages: int) -> None:
    timing = Rules(min_messages=min_messages, max_messages=max_messages).timing
    assert (timing.min_messages, timing.max_messages) == (min_messages, max_messages)


@pytest.mark.case(18)
@pytest.mark.parametrize(("min_messages", "max_messages"), [(2, 1), (3, 2), (1000, 999)])
def test_min_messages_above_max_messages_are_refused(min_messages: int, max_messages: int) -> None:
    [problem] = refusal({"minMessages": min_messages, "maxMessages": max_messages})
    assert problem.startswith(f"minMessages: {min_messages} is above maxMessages ({max_messages});")


@pytest.mark.case(18)
def test_min_messages_always_come_with_a_bound() -> None:
    [problem] = refusal({"minMessages": 2, "maxWaitMs": 0})
    assert problem == "maxWaitMs: got 0; use a whole number of milliseconds from 1 to 86400000"


# Timing


def test_timing_has_the_order_of_the_scripts_arguments() -> None:
    rules = Rules(silence_ms=1, typing_inference_ms=2, max_wait_ms=30, max_messages=4, min_messages=3)
    assert tuple(rules.timing.for_scripts.values()) == (1, 2, 30, 4, 3, "", "", "silenceMs")
    assert tuple(name for name in Timing._fields if name != "pressed_ms") == (
        "silence_ms",
        "typing_ms",
        "max_wait_ms",
        "max_messages",
        "min_messages",
        "flush_reason",
        "adaptive",
        "silence_rule",
    )


def test_adaptive_rules_carry_their_deviations() -> None:
    assert Rules(adaptive_k=2.5).timing.adaptive == ""
    assert Rules(adaptive=True, adaptive_k=2.5).timing.adaptive == "2.5 500 10000 adaptiveFloorMs"


def test_typing_inference_that_would_not_lengthen_the_wait_is_left_out() -> None:
    assert Rules(silence_ms=3000, typing_inference_ms=3000).timing.typing_ms == 0
    assert Rules(silence_ms=2999, typing_inference_ms=3000).timing.typing_ms == 3000


def test_a_vip_is_sent_at_once_by_default() -> None:
    timing = Rules(priority="vip", adaptive=True).timing
    assert timing.flush_reason == "priority"
    assert (timing.silence_ms, timing.typing_ms, timing.adaptive) == (0, 0, "")


def test_a_vips_own_silence_replaces_silence_typing_and_adaptive() -> None:
    timing = Rules(priority="vip", vip_silence_ms=250, adaptive=True).timing
    assert timing.flush_reason == ""
    assert (timing.silence_ms, timing.typing_ms, timing.adaptive) == (250, 0, "")


def test_timing_follows_a_changed_copy() -> None:
    rules = Rules()
    assert rules.timing.silence_ms == 1000
    assert rules.model_copy(update={"silence_ms": 7}).timing.silence_ms == 7


# Presets


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("assistant", {}),
        ("customers", {"silenceMs": 5000, "typingInferenceMs": 8000, "maxWaitMs": 45000}),
        ("quickSupport", {"silenceMs": 500, "maxWaitMs": 5000}),
        ("complexInquiry", {"silenceMs": 2000, "minMessages": 2, "maxWaitMs": 60000}),
        ("highVolume", {"silenceMs": 1000, "maxMessages": 10, "maxWaitMs": 10000}),
    ],
)
def test_a_preset_is_valid_over_the_defaults_and_changes_only_its_fields(
    preset: PresetName, expected: dict[str, int]
) -> None:
    resolved = resolve_rules([layer("agent:sales", preset=preset)])
    assert not resolved.skipped
    assert resolved.rules.model_dump() == Rules().model_dump() | expected


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("beneath", PRESETS)
def test_the_waits_of_a_preset_are_the_same_above_every_other(preset: PresetName, beneath: PresetName) -> None:
    resolved = resolve_rules([layer("deployed", preset=beneath), layer("tenant:acme", preset=preset)])
    assert not resolved.skipped
    alone = resolve_rules([layer("tenant:acme", preset=preset)]).rules
    waits = {"silence_ms", "typing_inference_ms", "max_wait_ms"}
    assert resolved.rules.model_dump(include=waits) == alone.model_dump(include=waits)


def test_own_fields_stand_above_the_preset() -> None:
    resolved = resolve_rules([layer("agent:sales", preset="quickSupport", silenceMs=800)])
    assert (resolved.rules.silence_ms, resolved.rules.max_wait_ms) == (800, 5000)


def test_unknown_preset_is_refused_with_the_choice() -> None:
    assert layer_refusal({"preset": "quick"}) == [
        "preset: got 'quick'; use one of assistant, customers, quickSupport, complexInquiry, highVolume"
    ]


# A layer alone


@pytest.mark.case(9)
def test_wrong_fields_of_a_layer_are_named_with_their_place() -> None:
    assert layer_refusal(
        {
            "silenceMs": "1",
            "version": -1,
            "platformOverrides": {"sms": {"silenceMs": 1.5, "silence": 3}, "email": 4},
        }
    ) == [
        "silenceMs: got '1'; use a whole number of milliseconds from 0 to 900000",
        "version: got -1; use a whole number from 0, or nothing",
        "platformOverrides.sms.silenceMs: got 1.5; use a whole number of milliseconds from 0 to 900000",
        "platformOverrides.sms.silence: unknown field; did you mean silenceMs?",
        "platformOverrides.email: got 4; use an object of rules",
    ]


@pytest.mark.parametrize("fields", [{}, {"name": ""}, {"name": 5}])
def test_a_layer_without_a_name_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRules, match=r"^name: .*; use the owner's name, such as 'stage'"):
        RuleLayer.model_validate(fields)


@pytest.mark.case(9)
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"silenceMs": 2000, "maxWaitMs": 2000}, "silenceMs"),
        ({"preset": "quickSupport", "silenceMs": 5000}, "silenceMs"),
        ({"preset": "complexInquiry", "maxMessages": 1}, "minMessages"),
        (
            {"silenceMs": 6000, "platformOverrides": {"sms": {"maxWaitMs": 5000}}},
            "platformOverrides.sms.silenceMs",
        ),
        (
            {"platformOverrides": {"sms": {"preset": "highVolume", "minMessages": 11}}},
            "platformOverrides.sms.minMessages",
        ),
    ],
)
def test_a_layer_that_contradicts_itself_is_refused(fields: dict[str, Any], place: str) -> None:
    [problem] = layer_refusal(fields)
    assert problem.startswith(f"{place}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"silenceMs": 60000},
        {"maxWaitMs": 500},
        {"adaptive": True, "adaptiveCeilingMs": 60000},
        {"silenceMs": 6000, "platformOverrides": {"sms": {"preset": "quickSupport"}}},
    ],
)
def test_a_layer_whose_validity_depends_on_others_is_accepted_alone(fields: dict[str, Any]) -> None:
    assert layer("tenant:acme", **fields).name == "tenant:acme"


# Layers together


def test_without_layers_the_defaults_hold() -> None:
    resolved = resolve_rules([])
    assert resolved.rules == Rules()
    assert set(resolved.explain()) == set(Rules().model_dump())
    assert resolved.explain()["silenceMs"] == {
        "value": 1000,
        "layer": "defaults",
        "via": "default",
        "version": None,
    }


def test_a_higher_layer_overrides_only_what_it_sets() -> None:
    resolved = resolve_rules(
        [
            layer("stage", silenceMs=100, maxMessages=5, minMessages=2),
            layer("tenant:acme", silenceMs=200, maxMessages=6),
            layer("agent:sales", silenceMs=300),
            layer("conversation:c1"),
        ]
    )
    assert not resolved.skipped
    assert resolved.rules == Rules(silence_ms=300, max_messages=6, min_messages=2)


def test_a_layer_that_sets_the_default_overrides_a_lower_one() -> None:
    resolved = resolve_rules([layer("stage", silenceMs=100), layer("tenant:acme", silenceMs=1000)])
    assert resolved.rules.silence_ms == 1000
    assert resolved.explain()["silenceMs"]["layer"] == "tenant:acme"


def test_a_preset_covers_the_fields_of_lower_layers() -> None:
    layers = [layer("stage", silenceMs=800, maxMessages=5), layer("agent:sales", preset="quickSupport")]
    assert resolve_rules(layers).rules == Rules(silence_ms=500, max_wait_ms=5000, max_messages=5)


def test_platform_overrides_hold_for_their_platform_only() -> None:
    layers = [
        layer("tenant:acme", silenceMs=200, platformOverrides={"whatsapp": {"silenceMs": 900}}),
    ]
    assert resolve_rules(layers, "whatsapp").rules.silence_ms == 900
    assert resolve_rules(layers, "sms").rules.silence_ms == 200
    assert resolve_rules(layers).rules.silence_ms == 200


def test_a_higher_layer_stands_above_a_lower_ones_platform_override() -> None:
    layers = [
        layer("stage", platformOverrides={"sms": {"silenceMs": 900, "maxMessages": 3}}),
        layer("tenant:acme", silenceMs=200),
    ]
    assert resolve_rules(layers, "sms").rules == Rules(silence_ms=200, max_messages=3)


def test_explain_names_layer_way_and_version_of_each_field() -> None:
    resolved = resolve_rules(
        [
            layer("stage", maxMessages=5),
            layer("tenant:acme", version=3, preset="quickSupport", minMessages=2),
            layer(
                "agent:sales",
                version=9,
                platformOverrides={"whatsapp": {"preset": "highVolume", "silenceMs": 700}},
            ),
        ],
        "whatsapp",
    )
    told = {
        field: (why["value"], why["layer"], why["via"], why["version"]) for field, why in resolved.explain().items()
    }
    assert told["silenceMs"] == (700, "agent:sales", "platformOverrides.whatsapp", 9)
    assert told["maxWaitMs"] == (10000, "agent:sales", "platformOverrides.whatsapp preset highVolume", 9)
    assert told["maxMessages"] == (10, "agent:sales", "platformOverrides.whatsapp preset highVolume", 9)
    assert told["minMessages"] == (2, "tenant:acme", "set here", 3)
    assert told["pressedSilenceMs"] == (0, "defaults", "default", None)

    told_elsewhere = resolve_rules([layer("tenant:acme", version=3, preset="quickSupport")], "sms").explain()
    assert told_elsewhere["silenceMs"] == {
        "value": 500,
        "layer": "tenant:acme",
        "via": "preset quickSupport",
        "version": 3,
    }


# Rules of cdk.json


@pytest.mark.parametrize(
    ("rules", "problems"),
    [
        ({"preset": "customers", "maxMessages": 5}, []),
        ({"silenceMs": 60_000, "maxWaitMs": 90_000}, []),
        ({"silenceMs": 60_000}, ["silenceMs: 60000 is not below maxWaitMs (30000)"]),
        (
            {"preset": "customers", "platformOverrides": {"sms": {"maxWaitMs": 6_000}}},
            ["platformOverrides.sms.typingInferenceMs: 8000 is above maxWaitMs (6000)"],
        ),
        (
            {"platformOverrides": {"sms": {"adaptive": True, "adaptiveCeilingMs": 40_000}}},
            ["on sms, adaptiveCeilingMs: 40000 is above maxWaitMs (30000)"],
        ),
        ({"silence": 5}, ["silence: unknown field"]),
    ],
)
def test_deployed_rules_have_a_problem_exactly_if_they_would_be_ignored(
    rules: dict[str, Any], problems: list[str]
) -> None:
    found = problems_of_deployed(rules)
    assert len(found) == len(problems)
    assert all(line.startswith(start) for line, start in zip(found, problems, strict=True))


# Layers that make no valid rules


def test_an_invalid_top_layer_is_skipped_whole_with_the_reason() -> None:
    resolved = resolve_rules([layer("stage", silenceMs=400), layer("tenant:acme", maxWaitMs=2000, maxMessages=3)])
    assert resolved.rules == Rules(silence_ms=400)
    [(skipped, reason)] = resolved.skipped
    assert skipped == "tenant:acme"
    assert reason.startswith("typingInferenceMs: 3000 is above maxWaitMs (2000); lower")
    assert {why["layer"] for why in resolved.explain().values()} == {"defaults", "stage"}


def test_layers_above_a_skipped_one_still_hold() -> None:
    resolved = resolve_rules(
        [
            layer("stage", maxMessages=5),
            layer("tenant:acme", silenceMs=40000),
            layer("agent:sales", minMessages=2),
            layer("campaign:spring", minMessages=6),
            layer("conversation:c1", silenceMs=300),
        ]
    )
    assert resolved.rules == Rules(max_messages=5, min_messages=2, silence_ms=300)
    assert [skipped.layer for skipped in resolved.skipped] == ["tenant:acme", "campaign:spring"]


def test_a_layer_that_needs_a_higher_one_is_kept_with_it() -> None:
    tenant, agent = layer("tenant:acme", silenceMs=60000), layer("agent:sales", maxWaitMs=120000)
    together = Rules(silence_ms=60000, max_wait_ms=120000)
    assert resolve_rules([tenant, agent]) == (together, resolve_rules([tenant, agent]).origins, ())


def test_a_layer_is_skipped_only_on_the_platform_where_it_is_wrong() -> None:
    layers = [layer("tenant:acme", maxMessages=3, platformOverrides={"sms": {"maxWaitMs": 1000}})]
    assert [skipped.layer for skipped in resolve_rules(layers, "sms").skipped] == ["tenant:acme"]
    assert resolve_rules(layers, "whatsapp").rules == Rules(max_messages=3)


def numbers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high) | st.sampled_from([low, low + 1, high - 1, high])


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "silence_ms": numbers(0, 5000),
        "typing_inference_ms": numbers(0, 5000),
        "max_wait_ms": numbers(1, 5000),
        "max_messages": numbers(1, 5),
        "min_messages": numbers(1, 5),
        "priority": st.sampled_from(["normal", "vip"]),
        "vip_silence_ms": numbers(0, 5000),
        "adaptive": st.booleans(),
        "adaptive_floor_ms": numbers(1, 5000),
        "adaptive_ceiling_ms": numbers(1, 5000),
        "preset": st.sampled_from(sorted(PRESETS)),
    },
)


def accepted(name: str, fields: dict[str, Any], override: dict[str, Any]) -> RuleLayer:
    """Return a layer with as much of this as is accepted."""
    for attempt in ({**fields, "platform_overrides": {"sms": override}}, fields):
        try:
            return layer(name, **attempt)
        except InvalidRules:
            continue
    return layer(name)


LAYERS = st.lists(st.tuples(PARTS, PARTS), max_size=4).map(
    lambda drawn: [accepted(str(place), *parts) for place, parts in enumerate(drawn)]
)


@given(LAYERS, st.sampled_from(["sms", "whatsapp"]))
def test_whatever_the_layers_the_result_is_valid_and_comes_from_those_kept(
    layers: list[RuleLayer], platform: str
) -> None:
    resolved = resolve_rules(layers, platform)
    assert Rules.model_validate(resolved.rules.model_dump()) == resolved.rules

    skipped = {name for name, _ in resolved.skipped}
    kept = [each for each in layers if each.name not in skipped]
    assert resolve_rules(kept, platform) == resolved._replace(skipped=())
    for name in skipped:
        below = [each for each in kept if int(each.name) < int(name)]
        assert not resolve_rules(below, platform).skipped
        assert resolve_rules([*below, layers[int(name)]], platform).skipped


# Control words


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"stopWords": ["stop", 5]}, "stopWords.1: got 5; use a list of at most 50 strings"),
        ({"stopWords": "stop"}, "stopWords: got 'stop'; use a list of at most 50 strings"),
        ({"flushWords": ["x" * 41]}, "flushWords.0: got 'xxxxxx"),
        ({"flushWords": [" !? "]}, "flushWords.0: got ' !? '; use a list"),
        ({"stopWords": ["x"] * 51}, "stopWords: got "),
        ({"controlLanguages": ["xx"]}, "controlLanguages.0: got 'xx'; use a list of some of de, en, es, fr, it, pt"),
        ({"stopWords": ["Halt!"], "flushWords": ["hält"]}, "flushWords: has a word that is in stopWords too; keep "),
    ],
)
def test_words_that_could_not_work_are_refused(rules: dict[str, Any], problem: str) -> None:
    [found] = refusal(rules)
    assert found.startswith(problem)


def test_the_nearest_layers_words_replace_those_beneath() -> None:
    below = layer("stage", stopWords=["halt"], controlLanguages=["en"])
    resolved = resolve_rules([below, layer("tenant:acme", stopWords=["basta"])])
    assert resolved.rules.stop_words == ("basta",)
    assert resolved.rules.control_languages == ("en",)
    assert resolved.explain()["stopWords"]["layer"] == "tenant:acme"


# Extra waits of one message


def test_files_alone_wait_a_little_longer_for_their_caption() -> None:
    rules = Rules(silence_ms=500, typing_inference_ms=1_000, media_silence_ms=4_000)
    assert rules.timing_of() == rules.timing
    assert rules.timing_of(is_media=True) == rules.timing._replace(
        silence_ms=4_000, typing_ms=0, silence_rule="mediaSilenceMs"
    )
    patient = Rules(silence_ms=6_000, media_silence_ms=4_000)
    assert patient.timing_of(is_media=True) == patient.timing


def test_a_wait_for_more_is_no_shorter_than_the_authors_rhythm_allows() -> None:
    rules = Rules(adaptive=True, transcript_wait_ms=20_000)
    assert rules.timing_of(is_pending=True).adaptive == "4.0 20000 10000 transcriptWaitMs"


def test_a_vips_message_waits_for_nothing_else() -> None:
    rules = Rules(priority="vip")
    assert rules.timing_of(is_media=True, is_pending=True) == rules.timing


def test_a_press_keeps_its_rules_and_has_a_wait_of_its_own() -> None:
    rules = Rules(pressed_silence_ms=700, adaptive=True, min_messages=2)
    assert rules.timing_of(is_pressed=True) == rules.timing._replace(pressed_ms=700)
    assert rules.timing_of(is_pressed=True, is_media=True) == rules.timing_of(is_pressed=True)
    assert rules.timing_of(is_pressed=True, in_album=True).pressed_ms == 700
    assert Rules().timing_of(is_pressed=True).pressed_ms == 0
    assert rules.timing.pressed_ms is None


def test_a_press_with_a_file_waits_for_its_transcript() -> None:
    rules = Rules(transcript_wait_ms=20_000)
    assert rules.timing_of(is_pressed=True, is_pending=True) == rules.timing_of(is_pending=True)


def test_a_vips_press_waits_as_all_that_the_vip_writes() -> None:
    rules = Rules(priority="vip", vip_silence_ms=300)
    assert rules.timing_of(is_pressed=True) == rules.timing


def test_no_part_of_an_album_ends_a_batch_by_its_count() -> None:
    assert Rules(max_messages=3).timing_of(in_album=True).max_messages == MAX_MESSAGES_IN_A_BATCH


def test_an_owner_is_checked_as_rules_are() -> None:
    assert Owner.model_validate({"tenant": "acme", "perAuthor": True}) == Owner(tenant="acme", per_author=True)
    with pytest.raises(InvalidRules, match=r"^perAuthor: got 'yes'; use true or false$"):
        Owner.model_validate({"perAuthor": "yes"})


@pytest.mark.case(9)
@pytest.mark.parametrize(
    "rules",
    [
        {"silenceMs": 5000, "maxWaitMs": 5000},
        {"silenceMs": 5000, "maxWaitMs": 4999},
        {"silenceMs": -1},
        {"maxWaitMs": 0},
        {"minMessages": 2, "maxWaitMs": 0},
        {"silenceMs": 1.5},
        {"silenceMs": "1s"},
        {"silenceMs": 10**18},
    ],
)
def test_rules_that_would_disable_the_debounce_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(InvalidRules, match=r"(silenceMs|maxWaitMs): .*(lower|use) "):
        Rules.model_validate(rules)
