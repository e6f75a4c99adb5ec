"""Says in words why a batch is due at its due time, or why it has left then: a sentence for each rule."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]


class Words(NamedTuple):
    label: str
    """A few words that may follow "because of"."""
    sentence: str
    """`{leaves}` stands for "leaves" or "left", and `{wait}` for the time from the last message to the due time."""


WORDS: Mapping[str, Words] = {
    "silenceMs": Words("silence", "The batch {leaves} after {wait} of silence."),
    "typingInferenceMs": Words(
        "a short gap", "The gap before the last message was short, so the batch {leaves} after {wait} of silence."
    ),
    "mediaSilenceMs": Words(
        "a file without words", "A caption may follow the last message's file, so the batch {leaves} {wait} after it."
    ),
    "transcriptWaitMs": Words(
        "a pending transcript", "A transcript was pending, so the batch {leaves} {wait} after the last message."
    ),
    "vipSilenceMs": Words("a VIP", "The author is a VIP. The batch {leaves} {wait} after the last message."),
    "pressedSilenceMs": Words("a button", "The author pressed a button. The batch {leaves} {wait} after that."),
    "adaptive": Words("the author's rhythm", "By the author's own rhythm, the batch {leaves} after {wait} of silence."),
    "adaptiveFloorMs": Words(
        "a quick author", "The batch {leaves} after {wait} of silence, the shortest wait by the author's rhythm."
    ),
    "adaptiveCeilingMs": Words(
        "a slow author", "The batch {leaves} after {wait} of silence, the longest wait by the author's rhythm."
    ),
    "typing": Words(
        "a typing event",
        "The platform reported that the author was typing. The batch {leaves} {wait} after the last message.",
    ),
    "maxWaitMs": Words(
        "the longest wait", "The batch {leaves} when its first message has waited as long as the rules allow."
    ),
    "minMessages": Words(
        "too few messages", "Too few messages came, so the batch {leaves} when the longest wait of the first is over."
    ),
    "windowMs": Words(
        "the fixed window", "A fixed window began with the first message. The batch {leaves} when it ends."
    ),
    "maxMessages": Words(
        "many messages", "As many messages came as the rules let wait, so the batch {leaves} at once."
    ),
    "maxBytes": Words("large messages", "The messages are as large as a batch may be, so it {leaves} at once."),
    "flushWords": Words("a flush word", "The author wrote a flush word, so the batch {leaves} at once."),
    "flush": Words("an operator's flush", "An operator flushed the buffer, so the batch {leaves} at once."),
    "resume": Words("the end of a hold", "An operator ended the hold, so the batch {leaves} at once."),
    "hold": Words(
        "a hold",
        "An operator, or a human agent who answered, put the conversation on hold. The batch {leaves} at the"
        " end of the hold.",
    ),
    "split": Words("a full batch", "The batch before was full, so the rest {leaves} at once."),
}


def why(rule: str, wait_ms: int, *, has_left: bool = False) -> Json:
    """Return the rule, its label, its wait, and the sentence as `text`."""
    leaves = "left" if has_left else "leaves"
    label, sentence = WORDS.get(rule, Words(rule, f"The rule is {rule}."))
    if wait_ms <= 0 and "{wait}" in sentence:
        sentence = f"Because of {label}, the batch {{leaves}} at once."
    text = sentence.replace("{leaves}", leaves).replace("{wait}", f"{round(wait_ms / 1_000, 1):g} s")
    return {"rule": rule, "label": label, "waitMs": wait_ms, "text": text}


def why_due(state: Json) -> Json | None:
    """Return why the waiting messages of a conversation are due, or None if nothing waits.

    `state` is an answer of `conversation.show`, or a row of `conversation.list`.
    """
    rule = state.get("rule")
    return why(rule, state.get("appliedWaitMs") or 0) if rule else None


def why_left(detail: Json) -> Json | None:
    """Return why a batch has left, or None if its event does not say it."""
    metadata = detail.get("metadata") or {}
    rule = metadata.get("rule")
    return why(rule, metadata.get("appliedWaitMs") or 0, has_left=True) if rule else None
