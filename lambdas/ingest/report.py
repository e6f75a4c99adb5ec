"""Reports what became of a webhook: the response's entries for conversations, the metrics, and a log line."""

from collections import Counter
from dataclasses import dataclass, field

from message_buffer.lanes import outcomes as o
from message_buffer.messages.conversation_id import ConversationId, is_trial
from message_buffer.telemetry import Telemetry

MAX_ACCOUNTS_LOGGED = 10
# The response has these counts, and that of ignored items.
IN_RESPONSE = ("accepted", "duplicates", "changed", "amended", "stopped", "flushed")


@dataclass
class Done:
    """The counts of a webhook's messages and changes, and the response's entry for each conversation."""

    ignored: Counter[str] = field(default_factory=Counter)
    """Items that are not messages to us, counted by kind."""
    counts: Counter[str] = field(default_factory=Counter)
    """The other items, counted by what became of them."""
    conversations: dict[str, dict[str, int | str | None]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    """Messages and changes that were refused for now, counted by reason."""
    limited: set[str] = field(default_factory=set)
    """The tenant and account of each message that was refused, or buffered over a quota."""
    handed_off: list[str] = field(default_factory=list)
    """Conversations that a human agent has begun to answer."""
    left_out_replies: int = 0
    """Replies that were left out, because one webhook may hand off only a limited number of conversations."""

    def count(self, what: str, value: int = 1) -> None:
        self.counts[what] += value

    def totals(self) -> dict[str, int]:
        return {name: self.counts[name] for name in IN_RESPONSE} | {"ignored": self.ignored.total()}

    def summary(self) -> dict[str, object]:
        """Return the response's body, which says what became of the messages and changes, and when buffers are due."""
        return self.totals() | {"conversations": self.conversations}

    def note_refused(self, conversation: ConversationId, reason: o.RefusalReason) -> None:
        """Count a message, change or human reply that was refused."""
        self.refused[reason] += 1
        self.note_limited(conversation)

    def note_limited(self, conversation: ConversationId) -> None:
        """Record the tenant and account of a message that was refused, or buffered over a quota."""
        self.limited.add(str(conversation).rpartition("/")[0])

    def note_wait(
        self, conversation: ConversationId, outcome: o.MessageBuffered | o.MessageDuplicate | o.BufferRetimed
    ) -> None:
        """Write into the response when the conversation's buffer is due, by which rule, and its message count."""
        wait = {"dueAt": outcome.due_at_ms, "count": outcome.count, "rule": outcome.rule}
        self.conversations[str(conversation)] = wait


def report(telemetry: Telemetry, platform: str, done: Done) -> None:
    """Publish the metrics and the log lines of a webhook. Do not count the messages of trials."""
    if not done.conversations or not all(map(is_trial, done.conversations)):
        telemetry.count_all({"Messages": done.counts["accepted"], "Duplicates": done.counts["duplicates"]})
    for kind, count in (+done.ignored).items():
        telemetry.count_by("IgnoredKinds", count, reason=kind)
    if done.counts["failed"]:
        telemetry.info("replies failed", platform=platform, replies=done.counts["failed"])
    if done.handed_off:
        telemetry.info("handed off", platform=platform, conversations=done.handed_off)
    if done.left_out_replies:
        telemetry.warn("too many conversations handed off at once", platform=platform, replies=done.left_out_replies)
    report_refused_items(telemetry, platform, done)
    telemetry.info("buffered", platform=platform, **done.totals(), conversations=list(done.conversations))


def report_refusal(telemetry: Telemetry, platform: str, *, status: int, problem: str) -> None:
    """Count and log a refused body, because some platforms do not send it again, and its messages are then lost."""
    telemetry.count("BodiesRefused")
    telemetry.warn("body refused", platform=platform, status=status, reason=problem)


def report_refused_items(telemetry: Telemetry, platform: str, done: Done) -> None:
    telemetry.count_all({"OverQuota": done.refused.total(), "Dropped": done.counts["dropped"]})
    if done.refused or done.counts["taken"]:
        telemetry.warn(
            "over quota",
            platform=platform,
            taken=done.counts["taken"],
            put_aside=done.counts["put_aside"],
            dropped=done.counts["dropped"],
            accounts=sorted(done.limited)[:MAX_ACCOUNTS_LOGGED],
            **done.refused,
        )
