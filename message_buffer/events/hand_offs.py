"""Hands conversations to people and back, and publishes both, as well as the end of a task.

In a stage with a queue `handoff`, a hand-off is a mark, which sends the batches to that queue. In another stage it is a
hold of people. The table of takeovers remembers each hand-off, so that its beginning and its end are published at least
once, and seldom more often.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, SendFailed
from message_buffer.events.event_bus import EventBus, conversation_event
from message_buffer.events.idle import IdleTable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.holds import NO_END_MS, Holder, shown_end
from message_buffer.lanes.lane import Lane
from message_buffer.limits import HOUR_MS, MAX_HOLD_MS
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.rules.queues import HANDOFF
from message_buffer.takeovers.takeover import Takeover

HANDED_OFF = "messages.conversation.handed_off"
HANDED_BACK = "messages.conversation.handed_back"
COMPLETED = "messages.conversation.completed"
# The reason of a hand-off, or the summary of a task, has at most this many characters.
MAX_REASON_CHARACTERS = 1_000
# A human agent's answer begins a hand-off with this cause.
ANSWER = "answer"
# Try to save a takeover this many times. A save fails only if another request changes the same conversation's takeover
# at the same time.
MAX_SAVES_OF_A_TAKEOVER = 5
# The holds that a hand-back ends: the holder, and the cause if only one is meant. A hold of a stage that had no queue
# `handoff` yet is among them.
HANDED_OFF_HOLDS: Sequence[tuple[Holder, str | None]] = (("handoff", None), ("people", ANSWER), ("people", HANDOFF))


class Initiator(NamedTuple):
    """Names the cause of a hand-off, of its end, or of a completed task, and what the event says of it."""

    cause: str
    """`answer` (of a human agent, on the platform), `operator`, or the name that a consumer gave."""
    by: str | None = None
    """The name that the caller claims to have. None if a human agent has answered."""
    reason: str | None = None
    message_id: str | None = None
    """The platform's id of the human agent's answer."""
    agent: str | None = None
    """The AI agent that serves the account, if the rules name one."""


class HandOffs:
    def __init__(
        self,
        lanes: Sequence[Lane],
        bus: EventBus,
        table: IdleTable,
        *,
        has_queue: bool = False,
        clock: Clock = system_clock,
    ) -> None:
        self._lanes = lanes
        self._bus = bus
        self.table = table
        self.has_queue = has_queue
        self._clock = clock

    def begin(self, conversation: ConversationId, initiator: Initiator, *, hold_ms: int | None) -> int | None:
        """Hand the conversation to people for `hold_ms`, or without a limit. Return the end, None if there is no limit.

        A hand-off that is on already lasts until the later of both ends. Raise InvalidInput if it is too long for a
        stage without a queue `handoff`.
        """
        if not self.has_queue and (hold_ms is None or hold_ms > MAX_HOLD_MS):
            raise InvalidInput(
                f"This stage has no queue handoff, so a hand-off is a hold, and needs an end within "
                f"{MAX_HOLD_MS // HOUR_MS} h."
            )
        until_ms = NO_END_MS if hold_ms is None else min(self._clock() + hold_ms, NO_END_MS)
        takeover, _ = self.take_over(conversation, initiator, partial(Takeover.after_hand_off, until_ms=until_ms))
        return shown_end(takeover.until_ms)

    def take_over(
        self, conversation: ConversationId, initiator: Initiator, change: Callable[..., Takeover]
    ) -> tuple[Takeover, bool]:
        """Change the takeover, mark or hold the conversation until its end, and publish it if it is new.

        Return (the takeover, True if it is new). A caller may repeat this, because its first call may have died right
        after storing the takeover.
        """
        name, takeover = str(conversation), self._save(conversation, change)
        if not takeover.is_on(self._clock()):
            return takeover, False
        self._hold(name, takeover, initiator.cause)
        self.table.end_steps(name)
        if not takeover.is_published:
            about = {"messageId": initiator.message_id, "until": shown_end(takeover.until_ms)}
            self._publish(HANDED_OFF, conversation, initiator, takeover.began_at_ms, reason=initiator.reason, **about)
        if self.table.mark_published(name, began_at_ms=takeover.began_at_ms):
            return takeover, not takeover.is_published
        if not self.table.read(name).is_on(self._clock()):
            # The conversation was handed back since the takeover was stored. The hold above may have begun after that,
            # so end it.
            self._resume(name, HANDED_OFF_HOLDS)
        return takeover, False

    def end(
        self,
        conversation: ConversationId,
        initiator: Initiator,
        holds: Sequence[tuple[Holder | None, str | None]] = HANDED_OFF_HOLDS,
    ) -> tuple[list[o.ResumeOutcome], bool]:
        """End these holds, and with them a hand-off. Return (the outcomes lane by lane, True if a hand-off has ended).

        The end of a hand-off is published first, so that a caller who repeats a failed call publishes it.
        """
        name, was_on = str(conversation), False

        def change(before: Takeover, *, now_ms: int) -> Takeover:
            nonlocal was_on
            if was_on := before.is_on(now_ms):
                about = {"reason": initiator.reason, "handedOffAt": before.began_at_ms}
                self._publish(HANDED_BACK, conversation, initiator, now_ms, **about)
            return before.after_hand_back(now_ms=now_ms)

        # End the takeover before the holds, or a late delivery of a human agent's earlier reply could begin them again.
        self._save(conversation, change)
        outcomes = self._resume(name, holds)
        if (begun := self.table.read(name)).is_on(self._clock()):
            # A new hand-off has begun since the takeover ended. Its hold may have ended above, so begin it again.
            self._hold(name, begun, initiator.cause)
        return outcomes, was_on

    def complete(self, conversation: ConversationId, initiator: Initiator, *, at_ms: int) -> None:
        """Publish that the conversation's task is done, with the messages that arrived until `at_ms`."""
        self.table.end_steps(str(conversation), upto_ms=at_ms)
        self._publish(COMPLETED, conversation, initiator, at_ms, summary=initiator.reason)

    def _hold(self, name: str, takeover: Takeover, cause: str) -> None:
        left_ms = max(takeover.until_ms - self._clock(), 1)
        holder: Holder = "handoff" if self.has_queue else "people"
        cause = cause if self.has_queue or cause == ANSWER else HANDOFF
        # Bound a hold, because the clock of the host that stored the takeover may be ahead or behind.
        hold_ms = min(left_ms, MAX_HOLD_MS) if not self.has_queue else left_ms if shown_end(takeover.until_ms) else None
        for lane in self._lanes:
            lane.hold_buffer(name, holder=holder, cause=cause, hold_ms=hold_ms)

    def _resume(self, name: str, holds: Sequence[tuple[Holder | None, str | None]]) -> list[o.ResumeOutcome]:
        return [
            [lane.resume_buffer(name, holder=holder, cause=cause) for holder, cause in holds][-1]
            for lane in self._lanes
        ]

    def _save(self, conversation: ConversationId, change: Callable[..., Takeover]) -> Takeover:
        """Store the takeover that `change` returns for the stored one and the time, and return it. Raise SendFailed."""
        name = str(conversation)
        for _ in range(MAX_SAVES_OF_A_TAKEOVER):
            before, now_ms = self.table.read(name), self._clock()
            takeover = change(before, now_ms=now_ms)
            if takeover is before or self.table.save(name, takeover, now_ms=now_ms):
                return takeover
        raise SendFailed("save takeover: other requests keep changing it")

    def _publish(self, kind: str, to: ConversationId, initiator: Initiator, at_ms: int, **fields: Any) -> None:
        about = {"cause": initiator.cause, "by": initiator.by, **fields}
        self._bus.publish(kind, conversation_event(to, initiator.agent, at_ms, about))
