"""Explains in a sentence why a conversation is due at its due time."""

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]

# The rules that may have set the wait of the last message, in the order in which they are tried.
WAITS = (
    (
        "typingInferenceMs",
        "The gap was short, so the author is probably still typing. The batch leaves after {value} of silence.",
    ),
    ("silenceMs", "The batch leaves after {value} of silence. Another message begins the wait again."),
    (
        "mediaSilenceMs",
        "The caption of the last message's file may follow. The batch leaves after {value} of silence.",
    ),
    ("transcriptWaitMs", "The transcript of the last message is pending. The batch waits for it for {value}."),
    ("vipSilenceMs", "The author is a VIP. The batch leaves after {value} of silence."),
    ("pressedSilenceMs", "The author pressed a button. The batch leaves after {value} of silence."),
)
# Each reason with its sentence, and with the rule whose value the sentence names, if there is one.
REASONS: Mapping[str, tuple[str, str | None]] = {
    "max_wait": ("The first message has then waited for {value}, the longest wait that the rules allow.", "maxWaitMs"),
    "max_messages": ("{value} messages wait, the most that the rules allow. The batch leaves at once.", "maxMessages"),
    "max_bytes": ("The waiting messages are as large as a batch may be. The batch leaves at once.", None),
    "hold": ("An operator keeps the conversation on hold. The batch leaves when the hold ends.", None),
    "resume": ("The hold has ended, so the batch leaves at once.", None),
    "flush": ("The author wrote a flush word, or an operator flushed the buffer. The batch leaves at once.", None),
    "priority": ("The author is a VIP, so the batch leaves at once.", None),
    "window": ("The DynamoDB lane collects messages for {value}. Then the batch leaves.", "windowMs"),
}


def why(conversation: Json, rules: Json) -> Json:
    """Return `text` and, if a rule decided, the `rule` with its `value` and its `layer`.

    `conversation` is the answer of `conversation.show`. `rules` are the rules in the answer of `rules.explain`.
    """
    reason, due_at_ms = conversation.get("reason"), conversation.get("dueAt")
    if not conversation.get("count") or due_at_ms is None:
        return {"text": "Nothing waits."}
    if reason == "silence" and conversation.get("lastAt") is not None:
        return _of_silence(due_at_ms - conversation["lastAt"], rules)
    if reason == "hold" and conversation.get("takenOverAt"):
        return {"text": "A person of the business has taken over. The batch leaves when that hold ends."}
    text, rule = REASONS.get(str(reason), (f"The reason is {reason}.", None))
    return _by_rule(text, rule, rules) if rule else {"text": text}


def _of_silence(waits_ms: int, rules: Json) -> Json:
    if waits_ms < 0:
        return {
            "text": "The batch is due. The last message came before a processor took the batch, and leaves with it."
        }
    if rules.get("adaptive", {}).get("value"):
        text = f"By the author's own rhythm, the batch leaves after {_seconds(waits_ms)} of silence."
        return _by_rule(text, "adaptive", rules)
    for name, text in WAITS:
        # Two rules may have the same number. The first in the list is the one that usually decides.
        if rules.get(name, {}).get("value") == waits_ms:
            return _by_rule(text, name, rules)
    return {"text": f"The batch leaves {_seconds(waits_ms)} after the last message."}


def _by_rule(text: str, name: str, rules: Json) -> Json:
    found = rules.get(name, {})
    value = found.get("value")
    shown = _seconds(value) if name.endswith("Ms") and isinstance(value, int) else value
    # Not `format`: a text may contain braces.
    return {
        "text": text.replace("{value}", str(shown)),
        "rule": name,
        "value": value,
        "shown": shown,
        "layer": found.get("layer"),
    }


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1_000:g} s"
