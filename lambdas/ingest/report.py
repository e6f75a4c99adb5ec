"""Reports what became of a webhook: the response's entries for conversations, the metrics, and a log line."""

from collections import Counter
from dataclasses import dataclass, field

from message_buffer.lanes import outcomes as o
from message_buffer.messages.conversation_id import ConversationId, is_trial
from message_buffer.telemetry import Telemetry

MAX_ACCOUNTS_LOGGED = 10


@dataclass
class Done:
    """The counts of a webhook's messages and changes, and the response's entry for each conversation."""

    ignored: Counter[str]
    """Items that are not messages to us, counted by kind."""
    conversations: dict[str, dict[str, int | str | None]] = field(default_factory=dict)
    accepted: int = 0
    duplicates: int = 0
    stopped: int = 0
    flushed: int = 0
    changed: int = 0
    """Messages that were edited or deleted in their buffer."""
    refused: Counter[str] = field(default_factory=Counter)
    """Messages and changes that were refused for now, counted by reason."""
    limited: set[str] = field(default_factory=set)
    """The tenant and account of each message that was refused, or buffered over a quota."""
    over_quota: int = 0
    """Messages that were buffered over a quota, because their platform would not send them again."""
    put_aside: int = 0
    """Refused messages that were put into the dead-letter queue, because their platform punishes refusals."""
    amended: int = 0
    """Changes that were published, because the message was not waiting, or because the change was a reaction."""

    taken_over: list[str] = field(default_factory=list)
    """Conversations that a human agent has begun to answer."""
    left_out_value: str | None = None
    """The reason why a door left out a value, with the pointer to it. Only the first such reason is kept."""
    left_out_replies: int = 0
    """Replies that were left out, because one webhook may put only a limited number of conversations on hold."""

    def summary(self) -> dict[str, object]:
        """Return the response's body, which says what became of the messages and changes, and when buffers are due."""
        return {
            "accepted": self.accepted,
            "duplicates": self.duplicates,
            "changed": self.changed,
            "amended": self.amended,
            "stopped": self.stopped,
            "flushed": self.flushed,
            "ignored": self.ignored.total(),
            "conversations": self.conversations,
        }

    def note_refused(self, conversation: ConversationId, reason: o.RefusalReason) -> None:
        """Count a message, change or human reply that was refused because another message was refused."""
        self.refused[reason] += 1
        self.note_limited(conversation)

    def note_limited(self, conversation: ConversationId) -> None:
        """Record the tenant and account of a message that was refused, or buffered over a quota."""
        self.limited.add(str(conversation).rpartition("/")[0])

    def note_wait(
        self, conversation: ConversationId, outcome: o.MessageBuffered | o.MessageDuplicate | o.BufferRetimed
    ) -> None:
        """Write into the response when the conversation's buffer is due, by which rule, and its message count."""
        self.conversations[str(conversation)] = {
            "dueAt": outcome.due_at_ms,
            "count": outcome.count,
            "rule": outcome.rule,
        }


def report(telemetry: Telemetry, platform: str, done: Done) -> None:
    """Publish the metrics and the log line of a webhook. Omit most counts of zero, since each metric costs money.

    Do not count the messages of trials.
    """
    if not (done.conversations and all(map(is_trial, done.conversations))):
        telemetry.count("Messages", done.accepted)
        if done.duplicates:
            telemetry.count("Duplicates", done.duplicates)
    if ignored := done.ignored.total():
        telemetry.count("Ignored", ignored)
    for kind, count in done.ignored.items():
        if count:
            telemetry.count_by("IgnoredKinds", count, reason=kind)
    if done.changed or done.amended:
        telemetry.count("Changed", done.changed)
        telemetry.count("Amended", done.amended)
    if done.stopped or done.flushed:
        telemetry.count("Stopped", done.stopped)
        telemetry.count("Flushed", done.flushed)
    if done.left_out_value:
        telemetry.warn("value left out", platform=platform, reason=done.left_out_value)
    _report_takeovers(telemetry, platform, done)
    _report_refusals(telemetry, platform, done)
    telemetry.info(
        "buffered",
        platform=platform, accepted=done.accepted, duplicates=done.duplicates, changed=done.changed,
        amended=done.amended, stopped=done.stopped, flushed=done.flushed, ignored=done.ignored.total(),
        conversations=list(done.conversations),
    )  # fmt: skip


def report_refusal(telemetry: Telemetry, platform: str, *, status: int, problem: str) -> None:
    """Count and log a refused body, because some platforms do not send it again, and its messages are then lost."""
    telemetry.count("BodiesRefused")
    telemetry.warn("body refused", platform=platform, status=status, reason=problem)


def _report_takeovers(telemetry: Telemetry, platform: str, done: Done) -> None:
    if done.taken_over:
        telemetry.count("TakenOver", len(done.taken_over))
        telemetry.info("taken over", platform=platform, conversations=done.taken_over)
    if done.left_out_replies:
        telemetry.warn("too many conversations taken over at once", platform=platform, replies=done.left_out_replies)


def _report_refusals(telemetry: Telemetry, platform: str, done: Done) -> None:
    if over_quota := done.refused.total() - done.refused["waiting"]:
        telemetry.count("OverQuota", over_quota)
    if done.refused["waiting"]:
        telemetry.count("ConversationsFull", done.refused["waiting"])
    if done.over_quota:
        telemetry.count("OverQuotaTaken", done.over_quota)
    if done.put_aside:
        telemetry.count("PutAside", done.put_aside)
    if done.refused or done.over_quota:
        accounts = sorted(done.limited)[:MAX_ACCOUNTS_LOGGED]
        telemetry.warn(
            "over quota",
            platform=platform,
            taken=done.over_quota,
            put_aside=done.put_aside,
            accounts=accounts,
            **done.refused,
        )
