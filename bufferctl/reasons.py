"""Says in words why a batch is due, or was emitted, at its time: a sentence for each rule."""

from collections.abc import Mapping
from typing import NamedTuple

from message_buffer.json_object import Json


class Words(NamedTuple):
    label: str
    """A few words that can follow "because of"."""
    sentence: str
    """`{is_emitted}` becomes "is emitted" or "was emitted", `{wait}` the time from the last message to the due time."""


WORDS: Mapping[str, Words] = {
    "silenceMs": Words("silence", "The batch {is_emitted} after {wait} of silence."),
    "typingInferenceMs": Words("a short gap", "The gap was short, so the batch {is_emitted} after {wait} of silence."),
    "mediaSilenceMs": Words("a file without words", "A caption may follow. The batch {is_emitted} after {wait}."),
    "transcriptWaitMs": Words("a pending transcript", "A transcript was pending. The batch {is_emitted} after {wait}."),
    "vipSilenceMs": Words("a VIP", "The author is a VIP. The batch {is_emitted} {wait} after the last message."),
    "pressedSilenceMs": Words("a button", "The author pressed a button. The batch {is_emitted} {wait} after that."),
    "learned": Words("the learned wait", "By the learned model, the batch {is_emitted} after {wait} of silence."),
    "typing": Words("a typing event", "The author was typing. The batch {is_emitted} {wait} after the last message."),
    "maxWaitMs": Words("the longest wait", "The batch {is_emitted} when its first message has waited that long."),
    "minMessages": Words("too few messages", "Few messages came, so the batch {is_emitted} after the longest wait."),
    "windowMs": Words("the fixed window", "The first message began a window. The batch {is_emitted} at its end."),
    "maxMessages": Words("many messages", "The rules let no more messages wait, so the batch {is_emitted} at once."),
    "maxBytes": Words("large messages", "The messages are as large as a batch may be, so it {is_emitted} at once."),
    "flushWords": Words("a flush word", "The author wrote a flush word, so the batch {is_emitted} at once."),
    "flush": Words("an operator's flush", "An operator flushed the buffer, so the batch {is_emitted} at once."),
    "resume": Words("the end of a hold", "An operator ended the hold, so the batch {is_emitted} at once."),
    "hold": Words("a hold", "People put the conversation on hold. The batch {is_emitted} at the end of the hold."),
    "split": Words("a full batch", "The batch before was full, so the rest {is_emitted} at once."),
}  # fmt: skip


def why(rule: str, wait_ms: int, *, was_emitted: bool = False) -> Json:
    """Return the rule, its label, its wait, and the sentence as `text`."""
    is_emitted = "was emitted" if was_emitted else "is emitted"
    label, sentence = WORDS.get(rule, Words(rule, f"The rule is {rule}."))
    if wait_ms <= 0 and "{wait}" in sentence:
        sentence = f"Because of {label}, the batch {{is_emitted}} at once."
    text = sentence.replace("{is_emitted}", is_emitted).replace("{wait}", f"{round(wait_ms / 1_000, 1):g} s")
    return {"rule": rule, "label": label, "waitMs": wait_ms, "text": text}


def why_due(state: Json) -> Json | None:
    """Return why the waiting messages of a conversation are due, or None if nothing waits.

    `state` is a response of `conversation.show`, or a row of `conversation.list`.
    """
    rule = state.get("rule")
    return why(rule, state.get("appliedWaitMs") or 0) if rule else None


def why_left(detail: Json) -> Json | None:
    """Return why a batch was emitted when it was, or None if its event does not contain the reason."""
    metadata = detail.get("metadata") or {}
    rule = metadata.get("rule")
    return why(rule, metadata.get("appliedWaitMs") or 0, was_emitted=True) if rule else None


def due_at_ms(detail: Json) -> int | None:
    """Return when a batch was due, or None if its event lacks the times."""
    metadata = detail.get("metadata") or {}
    first_at_ms, wait_ms = metadata.get("firstMessageAt"), metadata.get("waitMs")
    return first_at_ms + wait_ms if isinstance(first_at_ms, int) and isinstance(wait_ms, int) else None


def waiting_part(shown: Json) -> Json:
    """Return the state in the lane where messages wait, because that may be only the DynamoDB lane."""
    waits_in_valkey = shown.get("count") or shown.get("batch")
    return shown if waits_in_valkey else shown.get("dynamodb") or shown
