"""Says in a sentence why a conversation is due when it is."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

# The rules that may have set the wait of the last message, in the order in which they are tried.
WAITS = (
    ("typingInferenceMs", "The gap before the last message was short, so the author is probably still typing"),
    ("silenceMs", "The author has to be silent"),
    ("mediaSilenceMs", "The last message is a file without words, whose caption may follow"),
    ("transcriptWaitMs", "The last message has a file whose transcript is pending"),
    ("vipSilenceMs", "The author is a VIP"),
    ("pressedSilenceMs", "The last message is a pressed button"),
    ("windowMs", "The stage waits for a fixed time from the first message"),
)
REASONS = {
    "max_wait": "The first message has waited for as long as a message may",
    "max_messages": "So many messages wait that the batch is due at once",
    "max_bytes": "The waiting messages are so large that the batch is due at once",
    "hold": "The conversation is on hold until then, because a person has taken over",
    "flush": "The author wrote a flush word, or an operator made it due at once",
    "priority": "The author is a VIP, whose messages are due at once",
    "window": "The stage collects for a fixed time from the first message",
}


def why(conversation: Json, rules: Json) -> Json:
    """Return `text`, and the `rule`, its `value` and its `layer`, where a rule decided.

    `conversation` is the answer of `conversation.show`, `rules` those of `rules.explain`.
    """
    reason, due_at_ms = conversation.get("reason"), conversation.get("dueAt")
    if not conversation.get("count") or due_at_ms is None:
        return {"text": "Nothing waits."}
    if reason == "silence" and conversation.get("lastAt") is not None:
        return _of_silence(due_at_ms - conversation["lastAt"], rules)
    text = REASONS.get(str(reason), f"The reason is {reason}")
    rule = {"max_wait": "maxWaitMs", "max_messages": "maxMessages", "window": "windowMs"}.get(str(reason))
    return _by_rule(text, rule, rules) if rule else {"text": f"{text}."}


def _of_silence(waits_ms: int, rules: Json) -> Json:
    if rules.get("adaptive", {}).get("value"):
        text = f"The author's own rhythm says to wait for {_seconds(waits_ms)} of silence"
        return _by_rule(text, "adaptive", rules)
    for name, text in WAITS:
        # Rules that say the same number cannot be told apart. The first in the list is the one that usually decides.
        if rules.get(name, {}).get("value") == waits_ms:
            return _by_rule(text, name, rules)
    return {"text": f"It is due {_seconds(waits_ms)} after the last message."}


def _by_rule(text: str, name: str, rules: Json) -> Json:
    found = rules.get(name, {})
    value = found.get("value")
    shown = _seconds(value) if name.endswith("Ms") and isinstance(value, int) else value
    return {"text": f"{text}: {name} is {shown}.", "rule": name, "value": value, "layer": found.get("layer")}


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1_000:g} s"
