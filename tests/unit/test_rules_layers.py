"""The rules of one layer, and how the layers above each other make the rules in force."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_buffer.errors import InvalidRules
from message_buffer.limits import MAX_MESSAGES_IN_A_BATCH
from message_buffer.rules.layers import problems_of_deployed, resolve_rules
from message_buffer.rules.rules_and_defaults import (
    MAX_SILENCE_MS,
    MAX_WAIT_MS,
    PRESETS,
    RULE_FIELDS,
    OnHumanReply,
    Owner,
    PresetName,
    RuleLayer,
    Rules,
)
from tests.support.learned import LEARNED, MODEL

MILLISECONDS = [name for name in RULE_FIELDS.values() if name.endswith("Ms") and name != "idleAfterMs"]
COUNTS = ["maxMessages", "minMessages"]


def layer(name: str, **fields: Any) -> RuleLayer:
    return RuleLayer.model_validate({"name": name, **fields})


def problems_of(rules: Any, model: type[Rules | RuleLayer] = Rules) -> str:
    try:
        model.model_validate(rules)
    except InvalidRules as error:
        return str(error)
    return ""


def refusal(rules: Any, model: type[Rules | RuleLayer] = Rules) -> list[str]:
    """Return the problems for which these rules are refused."""
    problems = problems_of(rules, model)
    assert problems
    return problems.splitlines()


def layer_refusal(**fields: Any) -> list[str]:
    return refusal({"name": "tenant:acme", **fields}, RuleLayer)


# One set of rules


def test_rules_are_read_by_either_name_and_what_is_written_is_read_back_as_the_same() -> None:
    rules = Rules(silence_ms=700, priority="vip", on_human_reply=OnHumanReply(hold="12h"))
    assert Rules.model_validate({"silenceMs": 700}) == Rules(silence_ms=700)
    assert Rules.model_validate(rules.model_dump()) == rules
    assert Rules.model_validate_json(rules.model_dump_json()) == rules


@pytest.mark.parametrize(
    ("hold", "ms"), [("1s", 1_000), ("90s", 90_000), ("30m", 1_800_000), ("12h", 43_200_000), ("24h", 86_400_000)]
)
def test_a_hold_after_a_persons_reply_is_a_time_with_its_unit(hold: str, ms: int) -> None:
    assert OnHumanReply(hold=hold).hold_ms == ms


@pytest.mark.parametrize(
    "hold", ["", "12", "12 h", "12H", "-1h", "1.5h", "0h", "25h", "86401s", "12h\n", 43_200_000, None]
)
def test_another_hold_is_refused(hold: object) -> None:
    (problem,) = layer_refusal(platformOverrides={"whatsapp": {"onHumanReply": {"hold": hold}}})
    assert problem.startswith("platformOverrides.whatsapp.onHumanReply.hold: got ")


def test_apps_are_ids_of_digits_and_people_type_only_in_those_of_the_inbox() -> None:
    rules = Rules.model_validate({"inboxApps": ["26", "unnamed"]})
    assert [rules.is_inbox(app) for app in ("26", "unnamed", "7")] == [True, True, False]
    for wrong in ([26], ["x"], [""], ["1" * 33], ["1"] * 21, "26"):
        assert layer_refusal(inboxApps=wrong)[0].startswith("inboxApps")


def test_steps_of_silence_are_sorted_and_within_the_bounds() -> None:
    rules = Rules.model_validate({"idleAfterMs": [604_800_000, 60_000, 60_000]})
    assert rules.idle_after_ms == (60_000, 604_800_000)
    for wrong in ([59_999], [604_800_001], ["60000"], [True], [6e4], list(range(60_000, 60_006)), 60_000, None):
        assert layer_refusal(idleAfterMs=wrong)[0].startswith("idleAfterMs"), wrong


@pytest.mark.case(9)
@pytest.mark.parametrize("field", MILLISECONDS + COUNTS)
def test_only_whole_numbers_within_the_bounds_are_accepted(field: str) -> None:
    most = MAX_MESSAGES_IN_A_BATCH if field in COUNTS else MAX_WAIT_MS if field == "maxWaitMs" else MAX_SILENCE_MS
    least = int(field in {"maxWaitMs", "windowMs", *COUNTS})
    for value in ("500", 1.5, True, None, [500], least - 1, -(10**18), most + 1):
        [problem] = refusal({field: value})
        assert problem.startswith(f"{field}: got {value!r}; use a whole number")
    [problem] = refusal({field: 10**5000})
    assert problem.startswith(f"{field}: got a number of more than 30 digits; use ")
    for bound in (least, most):
        assert f"{field}: got" not in problems_of({field: bound}), "a bound is legal, but may contradict another rule"


@pytest.mark.case(9)
def test_every_problem_is_named_at_once_and_says_what_to_write() -> None:
    rules = {"silenceMs": -1, "priority": "VIP", "silence": 5, "zzz": 5}
    assert refusal(rules) == [
        "silenceMs: got -1; use a whole number of milliseconds from 0 to 900000",
        "priority: got 'VIP'; use 'normal' or 'vip'",
        "silence: unknown field; did you mean silenceMs?",
        f"zzz: unknown field; use one of {', '.join(RULE_FIELDS.values())}",
    ]
    assert refusal([1]) == ["rules: got [1]; use an object of rules"]
    assert refusal({"silenceMs": 5, "silence_ms": 6}) == ["silenceMs: given twice; remove it and keep silenceMs"]
    assert layer_refusal(onHumanReply={}) == [
        "onHumanReply.hold: is missing; use a time such as '30m' or '12h', at most '24h'"
    ]
    with pytest.raises(InvalidRules, match=r"^silenceMs: got -1; use"):
        Rules(silence_ms=-1)


@pytest.mark.case(9, 18)
@pytest.mark.parametrize(
    ("rules", "first", "fix"),
    [
        ({"silenceMs": 30_000}, "silenceMs", {"silenceMs": 29_999}),
        ({"typingInferenceMs": 30_001}, "typingInferenceMs", {"typingInferenceMs": 30_000}),
        ({"maxWaitMs": 2_999}, "typingInferenceMs", {"maxWaitMs": 3_000}),
        ({"minMessages": 21}, "minMessages", {"minMessages": 20}),
        ({"priority": "vip", "vipSilenceMs": 30_000}, "vipSilenceMs", {"priority": "normal"}),
        ({"stopWords": ["Halt!"], "flushWords": ["hält"]}, "flushWords", {"flushWords": ["go"]}),
    ],
)
def test_a_contradiction_is_refused_and_its_bound_is_accepted(rules: dict[str, Any], first: str, fix: Any) -> None:
    [problem] = refusal(rules)
    assert problem.startswith(f"{first}: ")
    Rules.model_validate(rules | fix)


@pytest.mark.case(10)
@pytest.mark.parametrize("silence_ms", [1, 333, 999])
def test_sub_second_rules_keep_their_milliseconds(silence_ms: int) -> None:
    sent = {"silenceMs": silence_ms, "typingInferenceMs": silence_ms + 1, "maxWaitMs": silence_ms + 2}
    rules = Rules.model_validate_json(Rules.model_validate(sent).model_dump_json())
    assert rules.timing[:3] == (silence_ms, silence_ms + 1, silence_ms + 2)


@pytest.mark.parametrize(
    "rules",
    [
        {"stopWords": ["stop", 5]},
        {"stopWords": "stop"},
        {"stopWords": ["x"] * 51},
        {"flushWords": ["x" * 41]},
        {"flushWords": [" !? "]},
        {"controlLanguages": ["xx"]},
    ],
)
def test_words_that_could_not_work_are_refused(rules: dict[str, Any]) -> None:
    [problem] = refusal(rules)
    assert problem.startswith(next(iter(rules)))


def test_an_owner_is_checked_as_rules_are() -> None:
    assert Owner.model_validate({"tenant": "acme", "perAuthor": True}) == Owner(tenant="acme", per_author=True)
    with pytest.raises(InvalidRules, match=r"^perAuthor: got 'yes'; use true or false$"):
        Owner.model_validate({"perAuthor": "yes"})


# Timing


def test_timing_has_the_order_of_the_scripts_arguments() -> None:
    rules = Rules(silence_ms=1, typing_inference_ms=2, max_wait_ms=30, max_messages=4, min_messages=3)
    assert tuple(rules.timing.for_scripts.values()) == (1, 2, 30, 4, 3, "", "silenceMs", "")


def test_typing_inference_that_would_not_lengthen_the_wait_is_left_out() -> None:
    assert Rules(silence_ms=3000, typing_inference_ms=3000).timing.typing_ms == 0
    assert Rules(silence_ms=2999, typing_inference_ms=3000).timing.typing_ms == 3000


@pytest.mark.parametrize(("vip_silence_ms", "reason"), [(0, "priority"), (250, "")])
def test_a_vips_silence_replaces_every_other_wait(vip_silence_ms: int, reason: str) -> None:
    rules = Rules(priority="vip", vip_silence_ms=vip_silence_ms, min_messages=3)
    timing = rules.timing
    assert (timing.silence_ms, timing.typing_ms, timing.min_messages) == (vip_silence_ms, 0, 1)
    assert timing.flush_reason == reason
    assert rules.timing_of(is_media=True, is_pending=True) == rules.timing_of(is_pressed=True) == timing


def test_files_alone_wait_a_little_longer_for_their_caption() -> None:
    rules = Rules(silence_ms=500, typing_inference_ms=1_000, media_silence_ms=4_000)
    assert rules.timing_of() == rules.timing
    assert rules.timing_of(is_media=True) == rules.timing._replace(
        silence_ms=4_000, typing_ms=0, silence_rule="mediaSilenceMs"
    )
    patient = Rules(silence_ms=6_000, media_silence_ms=4_000)
    assert patient.timing_of(is_media=True) == patient.timing


def test_only_a_message_with_text_has_a_learned_wait() -> None:
    waits = LEARNED.timing_of("Well").learned
    assert waits == "06000" * 12
    assert LEARNED.timing_of("Well?").learned == "01000" * 12
    assert LEARNED.timing_of(is_pressed=True) == LEARNED.timing._replace(pressed_ms=0, learned=waits)
    for asked in ({"is_media": True}, {"is_pending": True}):
        assert LEARNED.timing_of("Well", **asked) == Rules().timing_of("Well", **asked)
    vip = LEARNED.model_copy(update={"priority": "vip"})
    for rules in (vip, Rules(wait="window", learned=LEARNED.learned), Rules(learned=LEARNED.learned)):
        assert rules.timing_of("Well").learned == ""


def test_a_learned_wait_needs_a_model_in_its_layer_or_one_beneath() -> None:
    [problem] = refusal({"wait": "learned"})
    assert problem.startswith("wait: 'learned' needs a model")
    assert "bufferctl tune --switch-on" in problem
    above = layer("agent:acme/a", wait="learned")
    assert [each.layer for each in resolve_rules([above]).skipped] == ["agent:acme/a"]
    resolved = resolve_rules([layer("tenant:acme", learned=MODEL), above])
    assert (resolved.rules, resolved.skipped) == (LEARNED, ())
    assert resolved.explain()["learned"] == {
        "value": tuple(MODEL), "layer": "tenant:acme", "via": "set here", "version": None
    }  # fmt: skip


@pytest.mark.parametrize(
    "model",
    [
        MODEL[1:], [*MODEL, 0.0], [float("nan"), *MODEL[1:]], [31, *MODEL[1:]], [*MODEL[1:], float("-inf")], {},
        "model",
    ],
)  # fmt: skip
def test_a_model_that_could_not_work_is_refused(model: Any) -> None:
    assert refusal({"learned": model})[0].startswith("learned")


def test_a_press_keeps_its_rules_and_has_a_wait_of_its_own() -> None:
    rules = Rules(pressed_silence_ms=700, min_messages=2)
    assert rules.timing.pressed_ms is None
    assert rules.timing_of(is_pressed=True) == rules.timing._replace(pressed_ms=700)
    assert rules.timing_of(is_pressed=True, is_media=True) == rules.timing_of(is_pressed=True)
    assert rules.timing_of(is_pressed=True, is_pending=True) == rules.timing_of(is_pending=True)


def test_no_part_of_an_album_ends_a_batch_by_its_count() -> None:
    assert Rules(max_messages=3).timing_of(in_album=True).max_messages == MAX_MESSAGES_IN_A_BATCH


# A layer alone


@pytest.mark.case(9)
def test_wrong_fields_of_a_layer_are_named_with_their_place() -> None:
    overrides = {"sms": {"silenceMs": 1.5, "silence": 3}, "email": 4}
    assert layer_refusal(silenceMs="1", version=-1, preset="quick", platformOverrides=overrides) == [
        "silenceMs: got '1'; use a whole number of milliseconds from 0 to 900000",
        "preset: got 'quick'; use one of assistant, customers, quickSupport, complexInquiry, highVolume",
        "version: got -1; use a whole number from 0, or nothing",
        "platformOverrides.sms.silenceMs: got 1.5; use a whole number of milliseconds from 0 to 900000",
        "platformOverrides.sms.silence: unknown field; did you mean silenceMs?",
        "platformOverrides.email: got 4; use an object of rules",
    ]
    assert layer_refusal(name="")[0].startswith("name: ")


@pytest.mark.case(9)
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"silenceMs": 2000, "maxWaitMs": 2000}, "silenceMs"),
        ({"preset": "quickSupport", "silenceMs": 5000}, "silenceMs"),
        ({"silenceMs": 6000, "platformOverrides": {"sms": {"maxWaitMs": 5000}}}, "platformOverrides.sms.silenceMs"),
        (
            {"platformOverrides": {"sms": {"preset": "highVolume", "minMessages": 11}}},
            "platformOverrides.sms.minMessages",
        ),
    ],
)
def test_a_layer_that_contradicts_itself_is_refused(fields: dict[str, Any], place: str) -> None:
    [problem] = layer_refusal(**fields)
    assert problem.startswith(f"{place}: ")


# Layers together


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("beneath", [None, *PRESETS])
def test_the_waits_of_a_preset_are_the_same_above_every_other(preset: PresetName, beneath: PresetName | None) -> None:
    resolved = resolve_rules([layer("deployed", preset=beneath), layer("tenant:acme", preset=preset)])
    assert not resolved.skipped
    waits = {name: value for name, value in PRESETS[preset].items() if name.endswith("_ms")}
    assert waits.keys() == {"silence_ms", "typing_inference_ms", "max_wait_ms"}
    assert resolved.rules.model_copy(update=waits) == resolved.rules


def test_the_nearest_layer_overrides_what_it_sets_and_nothing_else() -> None:
    below = layer("stage", silenceMs=100, maxMessages=5, minMessages=2, stopWords=["halt"], controlLanguages=["en"])
    above = [layer("tenant:acme", silenceMs=1000, maxMessages=6, stopWords=["basta"]), layer("conversation:c1")]
    resolved = resolve_rules([below, *above])
    expected = Rules(max_messages=6, min_messages=2, stop_words=("basta",), control_languages=("en",))
    assert (resolved.rules, resolved.skipped) == (expected, ())
    assert resolved.explain()["silenceMs"]["layer"] == "tenant:acme", "though its value is the default"
    hold, none = layer("stage", onHumanReply={"hold": "12h"}), layer("tenant:acme", onHumanReply=None)
    assert resolve_rules([hold]).explain()["onHumanReply"]["value"] == {"hold": "12h"}
    assert resolve_rules([hold, none]).rules.on_human_reply is None
    assert resolve_rules([]).rules == Rules()


def test_platform_overrides_hold_for_their_platform_and_beneath_every_higher_layer() -> None:
    layers = [layer("stage", silenceMs=200, platformOverrides={"sms": {"silenceMs": 900, "maxMessages": 3}})]
    assert [resolve_rules(layers, platform).rules.silence_ms for platform in ("sms", "whatsapp", "")] == [900, 200, 200]
    layers.append(layer("tenant:acme", silenceMs=300))
    assert resolve_rules(layers, "sms").rules == Rules(silence_ms=300, max_messages=3)


def test_explain_names_layer_way_and_version_of_each_field() -> None:
    of_whatsapp = {"preset": "highVolume", "silenceMs": 700}
    resolved = resolve_rules(
        [
            layer("tenant:acme", version=3, preset="quickSupport", silenceMs=800, minMessages=2),
            layer("agent:sales", version=9, platformOverrides={"whatsapp": of_whatsapp}),
        ],
        "whatsapp",
    )
    told = {field: tuple(why.values()) for field, why in resolved.explain().items()}
    assert told.keys() == Rules().model_dump().keys()
    assert told["silenceMs"] == (700, "agent:sales", "platformOverrides.whatsapp", 9)
    assert told["maxWaitMs"] == (10000, "agent:sales", "platformOverrides.whatsapp preset highVolume", 9)
    assert told["minMessages"] == (2, "tenant:acme", "set here", 3)
    assert told["pressedSilenceMs"] == (0, "defaults", "default", None)


# Layers that make no valid rules


def test_an_invalid_top_layer_is_skipped_whole_with_the_reason() -> None:
    resolved = resolve_rules([layer("stage", silenceMs=400), layer("tenant:acme", maxWaitMs=2000, maxMessages=3)])
    assert resolved.rules == Rules(silence_ms=400)
    [(skipped, reason)] = resolved.skipped
    assert skipped == "tenant:acme"
    assert reason.startswith("typingInferenceMs: 3000 is above maxWaitMs (2000); lower")
    assert {why["layer"] for why in resolved.explain().values()} == {"defaults", "stage"}


def test_a_layer_that_needs_a_higher_one_is_kept_with_it() -> None:
    tenant, agent = layer("tenant:acme", silenceMs=60000), layer("agent:sales", maxWaitMs=120000)
    resolved = resolve_rules([tenant, agent])
    assert (resolved.rules, resolved.skipped) == (Rules(silence_ms=60000, max_wait_ms=120000), ())
    # A wrong layer above them makes neither of them wrong.
    resolved = resolve_rules([tenant, agent, layer("conversation:c1", minMessages=50)])
    assert resolved.rules == Rules(silence_ms=60000, max_wait_ms=120000)
    assert [skipped.layer for skipped in resolved.skipped] == ["conversation:c1"]


def test_a_layer_is_skipped_only_on_the_platform_where_it_is_wrong() -> None:
    layers = [layer("tenant:acme", maxMessages=3, platformOverrides={"sms": {"maxWaitMs": 1000}})]
    assert [skipped.layer for skipped in resolve_rules(layers, "sms").skipped] == ["tenant:acme"]
    assert resolve_rules(layers, "whatsapp").rules == Rules(max_messages=3)


@pytest.mark.parametrize(
    ("rules", "problems"),
    [
        ({"preset": "customers", "maxMessages": 5}, []),
        ({"silenceMs": 60_000, "maxWaitMs": 90_000}, []),
        ({"silenceMs": 60_000}, ["silenceMs: 60000 is not below maxWaitMs (30000)"]),
        (
            {"platformOverrides": {"sms": {"typingInferenceMs": 40_000}}},
            ["on sms, typingInferenceMs: 40000 is above maxWaitMs (30000)"],
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
