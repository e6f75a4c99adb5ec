"""The words for everything that can decide when a batch leaves.

The page shows these words, and tests demand them for every reason that a stage can give.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Cause(NamedTuple):
    """The words for one cause.

    In its sentences, `{value}` is replaced by the value of `rule`, and `{waits}` by the time from the last message to
    the due time.
    """

    label: str
    """A few words that may follow "because of"."""
    waits: str
    """A sentence for a batch that waits."""
    left: str
    """A sentence for a batch that has left."""
    rule: str | None = None


CAUSES: Mapping[str, Cause] = {
    # -- the reason `silence` -------------------------------------------------------------------------
    "silenceMs": Cause(
        "silence",
        "The batch leaves after {value} of silence. Another message begins the wait again.",
        "The author was silent for {value}.",
        "silenceMs",
    ),
    "typingInferenceMs": Cause(
        "a short gap",
        "The gap was short, so the author is probably still typing. The batch leaves after {value} of silence.",
        "The gap before the last message was short, so the batch waited for {value} of silence.",
        "typingInferenceMs",
    ),
    "mediaSilenceMs": Cause(
        "a file without words",
        "The caption of the last message's file may follow. The batch leaves after {value} of silence.",
        "The last message was a file without words, so the batch waited for its caption for {value}.",
        "mediaSilenceMs",
    ),
    "transcriptWaitMs": Cause(
        "a pending transcript",
        "The transcript of the last message is pending. The batch waits for it for {value}.",
        "The batch waited for the transcript of the last message for {value}, and none came.",
        "transcriptWaitMs",
    ),
    "transcript": Cause(
        "a transcript",
        "The transcript of the last message has arrived, so the batch waits no longer.",
        "The transcript of the last message arrived, which ended the wait of at most {value}.",
        "transcriptWaitMs",
    ),
    "vipSilenceMs": Cause(
        "a VIP's silence",
        "The author is a VIP. The batch leaves after {value} of silence.",
        "The author is a VIP, and was silent for {value}.",
        "vipSilenceMs",
    ),
    "pressedSilenceMs": Cause(
        "a button",
        "The author pressed a button. The batch leaves {value} after that.",
        "The author pressed a button, and the batch left {value} after that.",
        "pressedSilenceMs",
    ),
    "pressed at once": Cause(
        "a button",
        "The author pressed a button, so the batch leaves at once.",
        "The author pressed a button, so the batch left at once.",
        "pressedSilenceMs",
    ),
    "adaptive": Cause(
        "the author's rhythm",
        "By the author's own rhythm, the batch leaves after {waits} of silence.",
        "By the author's own rhythm, the batch left after {waits} of silence.",
        "adaptive",
    ),
    "typing": Cause(
        "a typing event",
        "The platform reported that the author is typing. The batch leaves {value} after that.",
        "The platform reported that the author was typing, and the batch left {value} after that.",
    ),
    "deleted": Cause(
        "silence",
        "A message was deleted while it waited, which does not change the due time.",
        "A message was deleted while it waited, which did not change the due time.",
    ),
    "silence": Cause(
        "silence",
        "The batch leaves {waits} after the last message. No rule has this value: a typing event, a press, or changed "
        "rules may have moved the due time.",
        "The batch was due {waits} after the last message. No rule has this value: a typing event, a press, or changed "
        "rules may have moved the due time.",
    ),
    "late": Cause(
        "silence",
        "The batch is due, and leaves as soon as a processor takes it.",
        "The silence after the earlier messages was over.",
    ),
    # -- the reason `max_wait` ------------------------------------------------------------------------
    "max_wait": Cause(
        "the longest wait",
        "The first message has then waited for {value}, the longest wait that the rules allow.",
        "The first message had waited for {value}, the longest wait that the rules allow.",
        "maxWaitMs",
    ),
    "minMessages": Cause(
        "too few messages",
        "Fewer than {value} messages wait, so the batch waits for more, at most until the longest wait is over.",
        "Fewer than {value} messages came, so the batch waited for more until the longest wait was over.",
        "minMessages",
    ),
    "windowMs": Cause(
        "the fixed window",
        "A fixed window of {value} began with the first message. The batch leaves when it ends.",
        "The fixed window of {value}, which began with the first message, had ended.",
        "windowMs",
    ),
    # -- the other reasons ----------------------------------------------------------------------------
    "max_messages": Cause(
        "many messages",
        "{value} messages wait, the most that the rules allow. The batch leaves at once.",
        "{value} messages waited, the most that the rules allow, so the batch left at once.",
        "maxMessages",
    ),
    "max_bytes": Cause(
        "large messages",
        "The waiting messages are as large as a batch may be. The batch leaves at once.",
        "The waiting messages were as large as a batch may be, so the batch left at once.",
    ),
    "priority": Cause(
        "a VIP",
        "The author is a VIP, so the batch leaves at once.",
        "The author is a VIP, so the batch left at once.",
        "vipSilenceMs",
    ),
    "flush": Cause(
        "a flush",
        "The author wrote a flush word, or an operator flushed the buffer. The batch leaves at once.",
        "The author wrote a flush word, or an operator flushed the buffer, so the batch left at once.",
    ),
    "flush word": Cause(
        "a flush word",
        "The author wrote a flush word. The batch leaves at once.",
        "The author wrote a flush word, so the batch left at once.",
    ),
    "operator's flush": Cause(
        "an operator's flush",
        "An operator flushed the buffer. The batch leaves at once.",
        "An operator flushed the buffer, so the batch left at once.",
    ),
    "hold": Cause(
        "a hold",
        "An operator keeps the conversation on hold. The batch leaves when the hold ends.",
        "The conversation was on hold, and the batch left when the hold ended.",
    ),
    "takeover": Cause(
        "a person who took over",
        "A person of the business has taken over. The batch leaves when that hold ends.",
        "A person of the business had taken over, and the batch left when that hold ended.",
    ),
    "resume": Cause(
        "the end of a hold",
        "An operator ended the hold, so the batch leaves at once.",
        "An operator ended the hold, so the batch left at once.",
    ),
}
LABELS: Mapping[str, str] = {name: cause.label for name, cause in CAUSES.items()}
