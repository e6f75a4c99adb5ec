"""The rules: their fields with defaults and bounds, the presets, and what one layer of rules may say.

Names are camelCase on the wire (`silenceMs`) and snake_case in Python. Wrong rules raise `InvalidRules`, with a line
for each problem, which names the field by its wire name and says what to write instead.
"""

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from message_buffer.errors import InvalidInput, InvalidRules
from message_buffer.limits import (
    DAY_MS,
    HOUR_MS,
    MAX_HOLD_MS,
    MAX_MESSAGES_IN_A_BATCH,
    MAX_QUOTA,
    MAX_TRIGGER_DELAY_MS,
    MINUTE_MS,
    SECOND_MS,
)
from message_buffer.messages.conversation_id import DEFAULT_TENANT, PLATFORM_NAMES
from message_buffer.messages.wire_form import camel_case
from message_buffer.rules.control_words import (
    LANGUAGES,
    MAX_CONTROL_WORD_CHARACTERS,
    ControlWords,
    Language,
    compared_form,
    control_words,
)
from message_buffer.rules.learned import NUMBERS, packed_waits, seen
from message_buffer.rules.queues import QUEUE_NAME
from message_buffer.rules.quota import Quota
from message_buffer.rules.timing import RuleName, Timing

# The longest name of a tenant or an agent. A longer tenant name could make a conversation's id too long.
MAX_NAME_CHARACTERS = 128
MAX_SILENCE_MS = MAX_TRIGGER_DELAY_MS
# WhatsApp and Messenger allow a free-form reply only within 24 hours of the author's message.
MAX_WAIT_MS = DAY_MS
MAX_IDLE_STEPS = 5
MAX_IDLE_MS = 7 * DAY_MS
_UNREADABLE = 10**30

PresetName = Literal["assistant", "customers", "quickSupport", "complexInquiry", "highVolume"]
RuleValue: TypeAlias = "int | float | str | tuple[str, ...] | tuple[float, ...] | OnHumanReply | None"

# Each preset sets the silence, the typing wait and the longest wait, because a lower layer's silence may be longer than
# the preset's `max_wait_ms`.
PRESETS: Mapping[PresetName, Mapping[str, RuleValue]] = {
    "assistant": {"silence_ms": 1_000, "typing_inference_ms": 3_000, "max_wait_ms": 30_000, "max_messages": 20},
    "customers": {"silence_ms": 5_000, "typing_inference_ms": 8_000, "max_wait_ms": 45_000, "max_messages": 20},
    "quickSupport": {"silence_ms": 500, "typing_inference_ms": 3_000, "max_wait_ms": 5_000},
    "complexInquiry": {"silence_ms": 2_000, "typing_inference_ms": 3_000, "min_messages": 2, "max_wait_ms": 60_000},
    "highVolume": {"silence_ms": 1_000, "typing_inference_ms": 3_000, "max_messages": 10, "max_wait_ms": 10_000},
}


class _Combination(NamedTuple):
    is_broken: Callable[[Mapping[str, Any]], bool]
    problem: str


_COMBINATIONS = (
    _Combination(
        # Refuse equal values, too, because with them every batch would be due after maxWaitMs, and silence would have
        # no effect.
        lambda rules: rules["silence_ms"] >= rules["max_wait_ms"],
        "silenceMs: {silence_ms} is not below maxWaitMs ({max_wait_ms}), so no message could reset the timer;"
        " lower silenceMs or raise maxWaitMs",
    ),
    _Combination(
        lambda rules: rules["typing_inference_ms"] > rules["max_wait_ms"],
        "typingInferenceMs: {typing_inference_ms} is above maxWaitMs ({max_wait_ms});"
        " lower typingInferenceMs (0 turns it off) or raise maxWaitMs",
    ),
    _Combination(
        lambda rules: rules["min_messages"] > rules["max_messages"],
        "minMessages: {min_messages} is above maxMessages ({max_messages}); lower minMessages or raise maxMessages",
    ),
    _Combination(
        lambda rules: rules["priority"] == "vip" and rules["vip_silence_ms"] >= rules["max_wait_ms"],
        "vipSilenceMs: {vip_silence_ms} is not below maxWaitMs ({max_wait_ms}), so no message could reset the"
        " timer; lower vipSilenceMs or raise maxWaitMs",
    ),
    _Combination(
        lambda rules: rules["wait"] == "learned" and rules["learned"] is None,
        "wait: 'learned' needs a model in the rule learned; `bufferctl tune --switch-on` stores both",
    ),
    _Combination(
        lambda rules: bool({*map(compared_form, rules["stop_words"])} & {*map(compared_form, rules["flush_words"])}),
        "flushWords: has a word that is in stopWords too; keep it in one of them",
    ),
)


def _conflicts(rules: Mapping[str, RuleValue]) -> list[str]:
    """Return the problems of the combinations. A combination is checked only if all its fields are set."""
    problems = []
    for is_broken, problem in _COMBINATIONS:
        with suppress(KeyError):
            if is_broken(rules):
                problems.append(problem.format_map(rules))
    return problems


class CheckedModel(BaseModel):
    """A pydantic model that raises only `InvalidRules`."""

    model_config = ConfigDict(
        # Convert nothing, because "500" or 1.5 for milliseconds is probably a mistake.
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=camel_case,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        # Build a model's validator on its first use, so that a cold start pays only for the models that it uses.
        defer_build=True,
    )

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InvalidRules("\n".join(self._problems(error))) from error

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise InvalidRules("\n".join(cls._problems(error))) from error

    @classmethod
    def _problems(cls, error: ValidationError) -> Iterator[str]:
        wire_names = cls._wire_names()
        for detail in error.errors(include_url=False):
            path = [str(part) for part in detail["loc"]]
            path[:1] = [wire_names.get(part, part) for part in path[:1]]
            where = ".".join(path)
            cause = detail.get("ctx", {}).get("error")
            # If the value is an element of a list, use the description of the list.
            field = path[:-1] if path and isinstance(detail["loc"][-1], int) else path
            if isinstance(cause, InvalidRules):
                yield from (f"{where}.{problem}" if where else problem for problem in str(cause).splitlines())
            elif isinstance(cause, InvalidInput):
                yield f"{where}: {cause}"
            elif detail["type"] == "extra_forbidden":
                given, names = str(detail["loc"][-1]), cls._model_at(path[:-1])._wire_names()
                if given in names:
                    yield f"{where}: given twice; remove it and keep {names[given]}"
                else:
                    yield f"{where}: {_unknown(given, 'field', names.values())}"
            elif detail["type"] == "missing":
                yield f"{where}: is missing; use {cls._legal(field)}"
            else:
                yield f"{where or 'rules'}: got {_shown(detail['input'])}; use {cls._legal(field)}"

    @classmethod
    def _wire_names(cls) -> dict[str, str]:
        return {name: field.alias or name for name, field in cls.model_fields.items()}

    @classmethod
    def _model_at(cls, path: Iterable[str]) -> "type[CheckedModel]":
        """Return the model at the end of this path of wire names."""
        model: type[CheckedModel] = cls
        for part in path:
            field = next((field for name, field in model.model_fields.items() if part in (name, field.alias)), None)
            # A path part that names no field is a key, such as an override's platform.
            for each in (field.annotation, *get_args(field.annotation)) if field else ():
                if isinstance(each, type) and issubclass(each, CheckedModel):
                    model = each
        return model

    @classmethod
    def _legal(cls, path: list[str]) -> str:
        """Return the description of the values that the field at this path may have."""
        fields = cls._model_at(path[:-1]).model_fields.values() if path else ()
        return next((field.description or "" for field in fields if field.alias == path[-1]), "an object of rules")


def nearest_name(given: str, names: Mapping[str, str]) -> str | None:
    """Return the name that was probably meant. `names` maps each name in lower case to its usual form."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a refusal needs it, so a cold start does not pay

    found = get_close_matches(given.lower(), names, n=1)
    return names[found[0]] if found else None


def _unknown(given: str, kind: str, names: Iterable[str]) -> str:
    nearest = nearest_name(given, {name.lower(): name for name in names})
    return f"unknown {kind}; " + (f"did you mean {nearest}?" if nearest else f"use one of {', '.join(names)}")


def _shown(value: object) -> str:
    # Python refuses to print very long integers.
    if isinstance(value, int) and abs(value) >= _UNREADABLE:
        return "a number of more than 30 digits"
    return reprlib.repr(value)


def _legal_ms(low: int, high: int) -> Any:
    return Field(ge=low, le=high, description=f"a whole number of milliseconds from {low} to {high}")


def _legal_name(what: str) -> Any:
    return Field(
        min_length=1, max_length=MAX_NAME_CHARACTERS, description=f"{what} of at most {MAX_NAME_CHARACTERS} characters"
    )


_Silence = Annotated[int, _legal_ms(0, MAX_SILENCE_MS)]
_Window = Annotated[int, _legal_ms(1, MAX_SILENCE_MS)]
_Count = Annotated[
    int, Field(ge=1, le=MAX_MESSAGES_IN_A_BATCH, description=f"a whole number from 1 to {MAX_MESSAGES_IN_A_BATCH}")
]


def _legal_word(word: str) -> str:
    if not compared_form(word):
        raise ValueError("nothing is left of it to compare")
    return word


_Word = Annotated[str, Field(max_length=MAX_CONTROL_WORD_CHARACTERS), AfterValidator(_legal_word)]
# Store JSON's lists as tuples, which cannot be changed, because the rules are cached.
_Words = Annotated[
    tuple[_Word, ...],
    Field(
        strict=False,
        max_length=50,
        description="a list of at most 50 strings"
        f" of at most {MAX_CONTROL_WORD_CHARACTERS} characters, each with a letter,"
        " a digit or a sign",
    ),
]
_Languages = Annotated[
    tuple[Language, ...],
    Field(strict=False, max_length=len(LANGUAGES), description=f"a list of some of {', '.join(LANGUAGES)}"),
]


_UNITS_MS = {"s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS}


def _legal_duration(duration: str) -> str:
    if not 0 < _duration_ms(duration) <= MAX_HOLD_MS:
        raise ValueError("it is zero, or too long")
    return duration


def _duration_ms(duration: str) -> int:
    return int(duration[:-1]) * _UNITS_MS[duration[-1]]


_Duration = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{1,5}[smh]$",
        description=f"a time such as '30m' or '12h', at most '{MAX_HOLD_MS // HOUR_MS}h'",
    ),
    AfterValidator(_legal_duration),
]


class OnHumanReply(CheckedModel):
    """Puts a conversation on hold when a human agent replies."""

    hold: _Duration

    @property
    def hold_ms(self) -> int:
        return _duration_ms(self.hold)


# More extreme logarithms mean nothing, and the exponential of their sum could overflow.
_Model = Annotated[
    tuple[Annotated[float, Field(ge=-30, le=30)], ...], Field(strict=False, min_length=NUMBERS, max_length=NUMBERS)
]
UNNAMED_APP = "unnamed"
# Meta's app ids have 15 or 16 digits today.
_App = Annotated[str, Field(pattern=rf"^(?:[0-9]{{1,32}}|{UNNAMED_APP})$")]
_Apps = Annotated[
    tuple[_App, ...],
    Field(
        strict=False,
        max_length=20,
        description=f"a list of at most 20 ids of Meta's apps, as strings of digits, or '{UNNAMED_APP}'",
    ),
]


_Steps = Annotated[
    tuple[Annotated[int, Field(ge=MINUTE_MS, le=MAX_IDLE_MS)], ...],
    Field(
        strict=False,
        max_length=MAX_IDLE_STEPS,
        description=f"a list of at most {MAX_IDLE_STEPS} numbers of milliseconds from {MINUTE_MS} to {MAX_IDLE_MS}",
    ),
    AfterValidator(lambda steps: tuple(sorted({*steps}))),
]


class _RuleFields(CheckedModel):
    silence_ms: _Silence = 1_000
    typing_inference_ms: _Silence = 3_000
    # At least 1, because only this bound ends a batch whose author never pauses, or never reaches minMessages.
    max_wait_ms: Annotated[int, _legal_ms(1, MAX_WAIT_MS)] = 30_000
    max_messages: _Count = 20
    min_messages: _Count = 1
    priority: Annotated[Literal["normal", "vip"], Field(description="'normal' or 'vip'")] = "normal"
    vip_silence_ms: _Silence = 0
    # A photo often arrives a moment before its caption.
    media_silence_ms: _Silence = 2_000
    transcript_wait_ms: _Silence = 15_000
    # Do not wait after a press, because a customer who presses a button has finished a thought.
    pressed_silence_ms: _Silence = 0
    # With `window`, a batch is due `windowMs` after its first message, however many follow.
    wait: Annotated[Literal["silence", "window", "learned"], Field(description="'silence', 'window' or 'learned'")] = (
        "silence"
    )
    window_ms: _Window = 10_000
    learned: Annotated[_Model | None, Field(description=f"null, or a model: {NUMBERS} numbers from -30 to 30")] = None
    stop_words: _Words = ()
    flush_words: _Words = ()
    control_languages: _Languages = ()
    on_human_reply: Annotated[OnHumanReply | None, Field(description='null, or {"hold": a time}')] = None
    inbox_apps: _Apps = ()
    idle_after_ms: _Steps = ()
    # Overrides the conditions of the stage's queues.
    queue: Annotated[
        str | None, Field(pattern=QUEUE_NAME, description="null, or the name of one of the stage's queues")
    ] = None


RULE_FIELDS: Mapping[str, str] = {name: camel_case(name) for name in _RuleFields.model_fields}
"""Python name -> wire name of every rule."""


class Rules(_RuleFields):
    """A complete, valid set of rules."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if problems := _conflicts(self.__dict__):
            raise InvalidRules("\n".join(problems))
        return self

    @property
    def timing(self) -> Timing:
        """Return the rules in the lanes' form. For a VIP, `vip_silence_ms` replaces `silence_ms`, and typing does not
        extend the wait. In a fixed window, the silence is the longest wait, so no message can prolong the wait."""
        vip = self.priority == "vip"
        if self.effective_wait == "window":
            window_ms = min(self.window_ms, self.max_wait_ms)
            return Timing(
                silence_ms=window_ms,
                typing_ms=0,
                max_wait_ms=window_ms,
                max_messages=self.max_messages,
                min_messages=1,
                flush_reason="",
                silence_rule="windowMs" if self.window_ms <= self.max_wait_ms else "maxWaitMs",
            )
        return Timing(
            silence_ms=self.vip_silence_ms if vip else self.silence_ms,
            # Turn typing inference off if it would not lengthen the wait.
            typing_ms=0 if vip or self.typing_inference_ms <= self.silence_ms else self.typing_inference_ms,
            max_wait_ms=self.max_wait_ms,
            max_messages=self.max_messages,
            min_messages=1 if vip else self.min_messages,
            flush_reason="priority" if vip and self.vip_silence_ms == 0 else "",
            silence_rule="vipSilenceMs" if vip else "silenceMs",
        )

    def timing_of(
        self,
        text: str = "",
        at_ms: int = 0,
        *,
        is_media: bool = False,
        is_pending: bool = False,
        in_album: bool = False,
        is_pressed: bool = False,
    ) -> Timing:
        """Return the timing of one message. The batch waits longer for the caption of a file and for a transcript, and
        after a button press for neither typing nor a caption. Only other messages have a learned wait. A VIP's wait and
        a fixed window ignore all this."""
        timing = self.timing
        if self.learned and self.effective_wait == "learned":
            timing = timing._replace(learned=packed_waits(self.learned, seen(text, at_ms)))
        if in_album:
            # Do not end the batch by its count, which could split the album.
            timing = timing._replace(max_messages=MAX_MESSAGES_IN_A_BATCH)
        if self.priority == "vip" or self.wait == "window":
            return timing
        if is_pressed and not is_pending:
            return timing._replace(pressed_ms=self.pressed_silence_ms)
        waits: list[tuple[int, RuleName]] = [
            (self.media_silence_ms * is_media, "mediaSilenceMs"),
            (self.transcript_wait_ms * is_pending, "transcriptWaitMs"),
        ]
        least_ms, rule = max(waits)
        if not least_ms:
            return timing
        if least_ms > timing.silence_ms:
            timing = timing._replace(silence_ms=least_ms, silence_rule=rule)
        return timing._replace(typing_ms=timing.typing_ms if timing.typing_ms > least_ms else 0, learned="")

    def is_inbox(self, app: str) -> bool:
        """Return whether human agents type in this app. `UNNAMED_APP` stands for the app of an Instagram message that
        names none."""
        return app in self.inbox_apps

    @property
    def effective_wait(self) -> str:
        """Return the rule `wait`, which has no effect for a VIP."""
        return "silence" if self.priority == "vip" else self.wait

    @cached_property
    def control_words(self) -> ControlWords:
        return control_words(stop=self.stop_words, flush=self.flush_words, languages=self.control_languages)


_PerMinute = Annotated[int | None, Field(ge=1, le=MAX_QUOTA, description=f"a whole number from 1 to {MAX_QUOTA}")]


class PartialQuota(CheckedModel):
    """The quota that the rules set for an account or a tenant. A number that they do not set is None."""

    messages_per_minute: _PerMinute = None
    conversations_per_minute: _PerMinute = None

    def on_top_of(self, quota: Quota) -> Quota:
        return Quota(
            self.messages_per_minute or quota.messages_per_minute,
            self.conversations_per_minute or quota.conversations_per_minute,
        )


_PartialQuota = Annotated[PartialQuota | None, Field(description="an object of quotas")]


class Owner(CheckedModel):
    """The owner of an account: its tenant, and the agent that serves it."""

    tenant: Annotated[str, _legal_name("a tenant's name")] = DEFAULT_TENANT
    agent: Annotated[str | None, _legal_name("nothing, or an agent's name")] = None
    per_author: Annotated[bool, Field(description="true or false")] = False
    """Give each author of a group a buffer of their own."""
    quota: _PartialQuota = None
    """Replaces the stage's quota for this account."""


class PartialRules(_RuleFields):
    """A subset of the rules, which may build on a preset.

    A field that was not set reads as its default. `own` has the fields that were set.
    """

    preset: Annotated[PresetName | None, Field(description=f"one of {', '.join(PRESETS)}")] = None

    @cached_property
    def own(self) -> Mapping[str, RuleValue]:
        return {name: getattr(self, name) for name in RULE_FIELDS if name in self.model_fields_set}

    def steps(self, where: str = "") -> Iterator[tuple[str, Mapping[str, RuleValue]]]:
        """Yield the preset's rules, if there is a preset, and then the fields that were set. Name each step for
        `explain`."""
        if self.preset:
            yield f"{where} preset {self.preset}".lstrip(), PRESETS[self.preset]
        yield where or "set here", self.own

    @model_validator(mode="after")
    def _check_own_combinations(self) -> Self:
        if problems := _conflicts(_applied(self.steps())):
            raise InvalidRules("\n".join(problems))
        return self


class RuleLayer(PartialRules):
    """The rules that one scope (stage, tenant, agent, conversation) sets.

    The model checks types and bounds. It checks a combination of fields only if this layer sets all of them. It checks
    the combinations again with each platform's override. Other combinations depend on the layers beneath: silenceMs
    60000 is valid above a tenant that raised maxWaitMs, and invalid above the defaults. Code that stores a layer must
    therefore resolve it on top of the layers beneath it, and refuse the layer if `skipped` names it.
    """

    name: Annotated[str, Field(min_length=1, description="the owner's name, such as 'stage' or 'tenant:acme'")]
    version: Annotated[int | None, Field(ge=0, description="a whole number from 0, or nothing")] = None
    platform_overrides: Annotated[
        dict[str, PartialRules], Field(description="an object with the rules of each platform")
    ] = Field(default_factory=dict)
    quota: _PartialQuota = None
    """The quota of all accounts of the tenant together. Only a tenant's layer may have a quota."""

    def steps_on(self, platform: str) -> Iterator[tuple[str, Mapping[str, RuleValue]]]:
        yield from self.steps()
        override = self.platform_overrides.get(platform)
        if override is not None:
            yield from override.steps(f"platformOverrides.{platform}")

    @model_validator(mode="after")
    def _check_combinations_on_platforms(self) -> Self:
        problems = [
            f"platformOverrides.{platform}.{problem}"
            for platform in self.platform_overrides
            for problem in _conflicts(_applied(self.steps_on(platform)))
        ]
        if problems:
            raise InvalidRules("\n".join(problems))
        return self


def check_platform_names(names: Iterable[str]) -> None:
    """Raise InvalidRules if a name is not that of a platform. Call it only to write rules. Code that reads rules would
    skip an entire layer because of one wrong name."""
    problems = [f"{name}: {_unknown(name, 'platform', PLATFORM_NAMES)}" for name in names if name not in PLATFORM_NAMES]
    if problems:
        raise InvalidRules("\n".join(problems))


def _applied(steps: Iterable[tuple[str, Mapping[str, RuleValue]]]) -> dict[str, RuleValue]:
    return {name: value for _, values in steps for name, value in values.items()}
