"""Explains why a batch is due at its due time, or why it has left then.

The stage returns only a reason, such as `silence`, which several rules share. This module finds the rule that decided.
It compares the rules' values with the time between a message and the due time, and considers what kind of message it
was: a press, a file without words, or a voice note.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from console.causes import CAUSES
from console.limits import ARRIVALS_DIFFER_BY_MS, MESSAGES_EXPLAINED, TYPING_ON_ITS_WAY_MS

Json = Mapping[str, Any]

# Types of messages that the author chose and did not type, and types of files that get no caption.
PRESSED = frozenset({"button", "interactive", "order"})
WITHOUT_CAPTION = frozenset({"contact", "location", "sticker"})
NOTHING_WAITS = {"text": "Nothing waits."}
CAME_LATE = "The last message came after the batch was due, and leaves with it."
PRESSED_LATER = "A button does not shorten the wait of the message before it."
DELETED = "A message was deleted, which does not change the due time."


class Facts(NamedTuple):
    """What is known of a batch that waits or has left."""

    reason: str
    due_at_ms: int
    first_at_ms: int | None
    last_at_ms: int | None
    message_count: int
    messages: tuple[Json, ...] = ()
    """The newest messages, as an event has them. Empty if the console does not know them."""
    taken_over: bool = False

    @property
    def waits_ms(self) -> int:
        """Return the time from the last message to the due time. It is negative if the batch was due before."""
        return 0 if self.last_at_ms is None else self.due_at_ms - self.last_at_ms


class _Found(NamedTuple):
    cause: str
    rule: str | None = None
    before: str = ""
    """A sentence before that of the cause."""


def facts_of_buffer(shown: Json) -> Facts | None:
    """Return the facts in an answer of `conversation.show`, or None if nothing waits."""
    if not shown.get("count") or shown.get("dueAt") is None:
        return None
    return Facts(
        str(shown.get("reason")),
        shown["dueAt"],
        shown.get("firstAt"),
        shown.get("lastAt"),
        shown["count"],
        _newest_messages(shown.get("messages")),
        bool(shown.get("takenOverAt")),
    )


def facts_of_batch(detail: Json) -> Facts | None:
    """Return the facts in a batch's event, or None if the event lacks them."""
    metadata = detail.get("metadata") or {}
    first_at_ms, wait_ms, last_at_ms = (metadata.get(name) for name in ("firstMessageAt", "waitMs", "lastMessageAt"))
    count = detail.get("messageCount")
    if not (isinstance(first_at_ms, int) and isinstance(wait_ms, int) and isinstance(count, int)):
        return None
    reason, messages = str(detail.get("flushReason")), _newest_messages(detail.get("messages"))
    return Facts(reason, first_at_ms + wait_ms, first_at_ms, last_at_ms, count, messages)


def _newest_messages(messages: Any) -> tuple[Json, ...]:
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return ()
    return tuple(messages[-MESSAGES_EXPLAINED:])


def why(facts: Facts | None, rules: Json, seen: Sequence[Json] = (), *, has_left: bool = False) -> dict[str, Any]:
    """Return the `cause`, its `label`, a sentence as `text` and, if a rule decided, the `rule`, its value and `layer`.

    `rules` are those in the answer of `rules.explain`. `seen` is the conversation's time line, which says whether the
    author was typing, whether an operator or a flush word hurried the batch, and whether a person took over.
    """
    if facts is None:
        return dict(NOTHING_WAITS)
    found = _find(facts, rules, seen)
    cause = CAUSES.get(found.cause)
    if cause is None:
        return {"cause": found.cause, "label": found.cause, "text": f"The reason is {found.cause}."}
    rule = found.rule or cause.rule
    in_force = rules.get(rule or "", {})
    value = in_force.get("value")
    shown = f"{value / 1_000:g} s" if str(rule).endswith("Ms") and isinstance(value, int) else value
    sentence = cause.left if has_left else cause.waits
    if value is None and "{value}" in sentence:
        sentence = f"The batch {'left' if has_left else 'leaves'} because of {cause.label}."
    # Not `format`: a value may contain braces.
    text = sentence.replace("{value}", str(shown)).replace("{waits}", _rounded(facts.waits_ms))
    before = found.before.replace("leaves", "left") if has_left else found.before
    answer = {"cause": found.cause, "label": cause.label, "text": f"{before} {text}".strip()}
    return answer | ({"rule": rule, "value": value, "shown": shown, "layer": in_force.get("layer")} if in_force else {})


def without_rules(facts: Facts) -> dict[str, Any]:
    """Return what is known of a batch's cause from its reason alone."""
    cause = CAUSES.get(facts.reason)
    return {"cause": facts.reason, "label": cause.label if cause else facts.reason, "text": ""}


def _find(facts: Facts, rules: Json, seen: Sequence[Json]) -> _Found:
    values = {name: told.get("value") for name, told in rules.items()}
    match facts.reason:
        case "silence":
            return _of_silence(facts, values, seen)
        case "max_wait":
            return _of_longest_wait(facts, values)
        case "hold" if facts.taken_over or _newest_kind(seen, "messages.conversation.taken_over", "operator: hold") == (
            "messages.conversation.taken_over"
        ):
            return _Found("takeover")
        case "flush":
            by = _newest_kind(seen, "operator: flush", "sent flush word")
            return _Found({"operator: flush": "operator's flush", "sent flush word": "flush word"}.get(by, "flush"))
    return _Found(facts.reason)


def _of_longest_wait(facts: Facts, values: Json) -> _Found:
    is_vip = values.get("priority") == "vip"
    if values.get("wait") == "window" and not is_vip:
        # The longest wait cuts a longer window.
        is_cut = (values.get("windowMs") or 0) > (values.get("maxWaitMs") or math.inf)
        return _Found("windowMs", "maxWaitMs" if is_cut else None)
    has_too_few = facts.message_count < (values.get("minMessages") or 0)
    return _Found("minMessages" if has_too_few and not is_vip else "max_wait")


def _newest_kind(seen: Sequence[Json], *kinds: str) -> str:
    return next((entry["kind"] for entry in reversed(seen) if entry["kind"] in kinds), "")


def _of_silence(facts: Facts, values: Json, seen: Sequence[Json]) -> _Found:
    is_late = facts.waits_ms < 0
    before = CAME_LATE if is_late else ""
    return (
        (None if is_late else _by_value(facts, values))
        or _by_typing_event(facts, values, seen, before)
        or _by_an_earlier_message(facts, values, before)
        or _by_a_deleted_message(facts, values, seen)
        or _Found(_without_a_value(facts, values), before=before)
    )


def _without_a_value(facts: Facts, values: Json) -> str:
    """Return the cause of a due time that no rule's value explains."""
    if facts.waits_ms < 0:
        return "late"
    if values.get("priority") == "vip":
        return "silence"
    newest = facts.messages[-1] if facts.messages else {}
    if (
        newest.get("attachments")
        and _is_edited(newest, facts)
        and facts.waits_ms < (values.get("transcriptWaitMs") or 0)
    ):
        return "transcript"
    return "adaptive" if values.get("adaptive") else "silence"


def _is_edited(newest: Json, facts: Facts) -> bool:
    """Return whether the newest message was edited. Not each edit says when, but all arrive after the message."""
    received_at_ms, last_at_ms = newest.get("receivedAt"), facts.last_at_ms
    came_again = isinstance(received_at_ms, int) and last_at_ms is not None and received_at_ms > last_at_ms
    return bool(newest.get("editedAt")) or came_again


def _by_value(facts: Facts, values: Json) -> _Found | None:
    """Return the rule whose value is the time from the newest message to the due time."""
    message = facts.messages[-1] if facts.messages else None
    is_first = facts.message_count == 1
    for name in _rules_after(message, values, is_first=is_first):
        if values.get(name) == facts.waits_ms:
            return _Found("pressed at once" if (name, facts.waits_ms) == ("pressedSilenceMs", 0) else name)
    return None


def _rules_after(message: Json | None, values: Json, *, is_first: bool) -> list[str]:
    """Return the rules that may set the wait after a message, the likeliest first."""
    typed = ["silenceMs"]
    # A short gap changes nothing if its wait is not longer.
    if not is_first and (values.get("typingInferenceMs") or 0) > (values.get("silenceMs") or 0):
        typed = ["typingInferenceMs", *typed]
    if values.get("priority") == "vip":
        return ["vipSilenceMs"]
    if message is None:
        return [*typed, "mediaSilenceMs", "transcriptWaitMs", "pressedSilenceMs"]
    files = [each for each in message.get("attachments") or () if isinstance(each, dict)]
    if any(each.get("pending") for each in files):
        return ["transcriptWaitMs", *typed]
    if message.get("type") in PRESSED:
        # A press waits as a typed message if it reaches `minMessages`.
        return ["pressedSilenceMs", *typed]
    if not message.get("text") and any(each.get("type") not in WITHOUT_CAPTION for each in files):
        return ["mediaSilenceMs", *typed]
    return typed


def _by_typing_event(facts: Facts, values: Json, seen: Sequence[Json], before: str) -> _Found | None:
    """Return the rule by which a typing event set the due time. The console knows those of its own customers only."""
    possible = ("vipSilenceMs",) if values.get("priority") == "vip" else ("silenceMs", "typingInferenceMs")
    rule = max(possible, key=lambda name: values.get(name) or 0)
    came_at_ms = facts.due_at_ms - (values.get(rule) or 0)
    sent = (entry["at"] for entry in seen if entry["kind"] == "sent typing")
    if any(0 <= came_at_ms - at_ms <= TYPING_ON_ITS_WAY_MS for at_ms in sent):
        return _Found("typing", rule, before)
    return None


def _by_an_earlier_message(facts: Facts, values: Json, before: str) -> _Found | None:
    """Return the rule by which an earlier message set the due time, if all later ones are presses or came too late."""
    for place, at_ms in _arrivals_from_the_newest(facts):
        message, waits_ms = facts.messages[place], facts.due_at_ms - at_ms
        is_newest = place == len(facts.messages) - 1
        for name in [] if is_newest else _rules_after(message, values, is_first=_is_first(facts, place)):
            wait_ms = values.get(name)
            if isinstance(wait_ms, int) and abs(wait_ms - waits_ms) <= ARRIVALS_DIFFER_BY_MS:
                return _Found(name, before=before or PRESSED_LATER)
        if waits_ms >= 0 and message.get("type") not in PRESSED:
            return None
    return None


def _by_a_deleted_message(facts: Facts, values: Json, seen: Sequence[Json]) -> _Found | None:
    """Return the rule that set the due time while a message waited that is now deleted."""
    if facts.waits_ms < 0 or not _has_lost_a_message(facts, seen):
        return None
    for entry in reversed(seen):
        said = entry.get("cause") or {}
        if entry["kind"] == "look" and entry.get("dueAt") == facts.due_at_ms and said.get("rule"):
            return _Found(said["cause"], said["rule"], DELETED)
    for name in _rules_after(None, values, is_first=False):
        if values.get(name) == facts.waits_ms:
            return _Found(name, before=DELETED)
    return _Found("deleted")


def _has_lost_a_message(facts: Facts, seen: Sequence[Json]) -> bool:
    """Return whether a message was deleted while it waited. The buffer still keeps the time of its last message."""
    since_ms = facts.first_at_ms or facts.due_at_ms
    if any(entry["kind"] == "sent delete" and entry["at"] >= since_ms for entry in seen):
        return True
    received_at_ms = facts.messages[-1].get("receivedAt") if facts.messages else None
    if isinstance(received_at_ms, int) and facts.last_at_ms is not None:
        return facts.last_at_ms - received_at_ms > ARRIVALS_DIFFER_BY_MS
    return False


def _arrivals_from_the_newest(facts: Facts) -> Iterator[tuple[int, int]]:
    """Yield the place of each message, and its arrival. The first and the last arrival are exact."""
    for place in reversed(range(len(facts.messages))):
        at_ms = facts.messages[place].get("receivedAt")
        if place == len(facts.messages) - 1:
            at_ms = facts.last_at_ms
        elif _is_first(facts, place):
            at_ms = facts.first_at_ms
        if isinstance(at_ms, int):
            yield place, at_ms


def _is_first(facts: Facts, place: int) -> bool:
    return place == 0 and len(facts.messages) == facts.message_count


def _rounded(milliseconds: int) -> str:
    """Return the time in seconds, rounded to a tenth of a second."""
    return f"{round(milliseconds / 1_000, 1):g} s"
