"""From a batch to an answered customer.

A batch is worked on by one owner at a time. What is to be sent stands in the outbox before any of it is sent, each
part says when its sending begins, and all that is remembered of the batch is written at once at the end. So whoever
comes after a crash goes on where it happened; only a part whose sending had begun is left alone, and counted.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import LockLost, MessageBufferError, SendFailed
from message_buffer.limits import MAX_CALL_MS
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.telemetry import Telemetry
from responder import history
from responder.assistants.base import Assistant, Prompt
from responder.channels.base import SECONDS as CHANNEL_SECONDS
from responder.channels.base import Channel, split
from responder.conversations_table import (
    PLANNED,
    SENDING,
    SENT,
    UNCONFIRMED,
    ConversationsTable,
    Finished,
    Locked,
    Outbox,
    Record,
    Unknown,
)
from responder.environment import ResponderOptions
from responder.errors import Busy, Refused, Unconfirmed
from responder.event import Batch, Objects, read_batch
from responder.gate import MOST_PARKED_BYTES, Gate, Parked
from responder.history import ASSISTANT, USER, Turn

Json = dict[str, Any]

WITHHELD = "messages.reply.withheld"
EVENT_VERSION = 1
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 2, 300
# For writing down how it ended.
FINISH_MS = 5_000


class Later(NamedTuple):
    """The delivery is not done with: it comes back after so long."""

    seconds: int


class Delivery(NamedTuple):
    body: str
    receives: int
    time_left_ms: Callable[[], int]
    still_ours: Callable[[], None]
    """Raises if the delivery may have become visible to others."""


class Bus(Protocol):
    def publish(self, detail_type: str, detail: str) -> None: ...


class Buffer(Protocol):
    def newest(self, batch: Batch) -> int: ...

    def hold(self, conversation: str, hold_ms: int) -> None: ...


class ReplyDestinations(NamedTuple):
    """What the responder speaks to."""

    bus: Bus
    objects: Objects
    buffer: Buffer
    dead_letter: Callable[[str, str], None]
    """A delivery's body, and why."""
    assistant: Callable[[], Assistant]
    channel: Callable[[ConversationId], Channel | None]
    """None: there is none for this platform."""


@dataclass
class _Work:
    """One batch while somebody owns its conversation."""

    batch: Batch
    delivery: Delivery
    owner: str
    began_at_ms: int
    record: Record
    outbox: Outbox | None
    settings: Json

    @property
    def name(self) -> str:
        return str(self.batch.conversation)

    @property
    def parked(self) -> list[Parked]:
        return [Parked(**each) for each in self.record.parked]

    @property
    def earlier(self) -> list[Parked]:
        """Parked batches of the same lane, the oldest first."""
        batch = self.batch
        earlier = [each for each in self.parked if each.lane == batch.lane and each.generation < batch.generation]
        return sorted(earlier, key=lambda each: each.generation)

    @property
    def carried(self) -> list[Parked]:
        """Parked batches that this one answers, too: once it is planned, no other than the assistant was told of."""
        if self.outbox is None:
            return self.earlier
        return [each for each in self.earlier if each.batch_id in self.outbox.carried]

    @property
    def said_before(self) -> str:
        """By an owner that did not come to the end."""
        if self.outbox is None:
            return ""
        pairs = zip(self.outbox.parts, self.outbox.states, strict=True)
        return "\n".join(text for text, state in pairs if state != PLANNED)

    def require_ms(self, needed_ms: int) -> None:
        self.delivery.still_ours()
        if self.delivery.time_left_ms() < needed_ms + FINISH_MS:
            raise Busy("too little time is left")


class Responder:
    def __init__(
        self,
        *,
        table: ConversationsTable,
        destinations: ReplyDestinations,
        options: ResponderOptions,
        telemetry: Telemetry,
        clock: Clock = system_clock,
        new_owner: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._table = table
        self._destinations = destinations
        self._options = options
        self._telemetry = telemetry
        self._clock = clock
        self._new_owner = new_owner
        self._gate = Gate(options.gate, destinations.buffer)

    def respond(self, delivery: Delivery) -> Later | None:
        """None: the delivery is done with. Whatever goes wrong comes back later, or is put aside with its reason."""
        batch = None
        try:
            batch = read_batch(delivery.body, self._destinations.objects)
            return self._own_and_answer(batch, delivery)
        except MessageBufferError as error:
            return self._after(error, batch, delivery)
        except Exception as error:  # noqa: BLE001 - whatever it was: it is tried again, and given up in the end
            self._telemetry.crash("responder failed", error, batch=batch.batch_id if batch else None)
            return self._after(Busy(f"unforeseen: {type(error).__name__}"), batch, delivery)

    def _after(self, error: MessageBufferError, batch: Batch | None, delivery: Delivery) -> Later | None:
        told = {"conversation": str(batch.conversation), "batch": batch.batch_id} if batch else {}
        reason = str(error)
        later = _back_off(delivery)
        if error.retryable and delivery.receives < self._options.max_attempts:
            self._telemetry.count("ReplyRetries")
            self._telemetry.warn("reply is tried again", reason=reason, attempt=delivery.receives, **told)
            return later
        try:
            if batch:
                self._let_go_of_others(batch)
            self._destinations.dead_letter(delivery.body, reason)
        except SendFailed as failed:
            self._telemetry.warn("reply could not be put aside", reason=str(failed), **told)
            return later
        self._telemetry.count("ReplyDeadLetters")
        self._telemetry.warn("reply was given up", reason=reason, attempt=delivery.receives, **told)
        return None

    def _let_go_of_others(self, batch: Batch) -> None:
        """What it would have answered beside its own is answered by itself, then."""
        record = self._table.read(str(batch.conversation))
        for each in record.parked if record else []:
            self._table.let_go(str(batch.conversation), each["batch_id"], carried_by=batch.batch_id)

    # -- the owner ---------------------------------------------------------------------------------

    def _own_and_answer(self, batch: Batch, delivery: Delivery) -> Later | None:
        name, owner, now_ms = str(batch.conversation), self._new_owner(), self._clock()
        try:
            record = self._table.acquire(
                name,
                owner,
                now_ms=now_ms,
                until_ms=now_ms + self._options.lock_ms,
                create=self._options.unknown_conversation == "create",
            )
            if isinstance(record, Locked):
                longest = FIRST_RETRY_SECONDS << min(delivery.receives, 4)
                self._telemetry.info("conversation is worked on", conversation=name, batch=batch.batch_id)
                return Later(max(1, min((record.until_ms - now_ms) // 1_000, longest)))
            if isinstance(record, Unknown):
                self._withhold_unknown(batch)
                return None
            outbox = self._table.outbox(name, batch.batch_id)
            if outbox and outbox.outcome:
                self._telemetry.info("answered before", conversation=name, batch=batch.batch_id)
                self._table.release(name, owner, status=record.status or outbox.outcome, reason="")
                return None
            settings = {**self._table.tenant_settings(batch.conversation.tenant), **record.settings}
            return self._answer(_Work(batch, delivery, owner, now_ms, record, outbox, settings))
        except Exception as error:
            self._telemetry.count("ProcessingErrors")
            reason = str(error) if isinstance(error, MessageBufferError) else type(error).__name__
            self._release_after(name, owner, reason)
            raise

    def _release_after(self, name: str, owner: str, reason: str) -> None:
        try:
            self._table.release(name, owner, status="processing_error", reason=reason)
        except SendFailed as failed:
            # It lapses by itself; what went wrong first is what matters.
            self._telemetry.warn("conversation was not released", conversation=name, reason=str(failed))

    # -- the steps ---------------------------------------------------------------------------------

    def _answer(self, work: _Work) -> Later | None:
        if work.outbox and work.outbox.carried_by:
            # It may try for as long as that one does.
            return self._wait(work, "another batch answers this one, too", _back_off(work.delivery))
        reason = self._why_not(work)
        channel = None if reason else self._destinations.channel(work.batch.conversation)
        if channel is None:
            self._withhold(work, reason or "channel_not_allowed")
            return None
        if self._gate.queues() and work.earlier and work.delivery.receives < self._options.max_attempts:
            again = Later(max(1, self._options.gate_wait_seconds // 4))
            return self._wait(work, "an earlier reply goes first", again)
        if work.outbox is None:
            if self._gate.merges() and self._is_closed(work, parts_out=0):
                return self._park(work, said="")
            self._plan(work, channel)
        said = self._send(work, channel)
        if isinstance(said, Later):
            return said
        self._finish(work, said)
        return None

    def _why_not(self, work: _Work) -> str:
        settings, platform = work.settings, work.batch.conversation.platform
        if work.record.hand_off_until_ms > self._clock():
            return "handed_to_human"
        if settings.get("projectStatus", "active") != "active":
            return "inactive_project"
        allowed = settings.get("allowedChannels") or self._options.allowed_channels
        return "channel_not_allowed" if allowed and platform not in allowed else ""

    def _plan(self, work: _Work, channel: Channel) -> None:
        """Ask, and write down what is going to be sent."""
        if self._options.typing_indicator:
            self._show_typing(work, channel)
        work.require_ms(self._options.assistant_seconds * 1_000)
        before, asked = [Turn(**each) for each in work.record.turns], self._user_turns(work)
        told = history.within_budget(before, asked, most_tokens=self._options.max_history_tokens)
        reply = self._destinations.assistant().answer(
            Prompt(
                instructions=str(work.settings.get("instructions", self._options.instructions)),
                turns=history.alternating(told),
                model=str(work.settings.get("model", self._options.model)),
                max_reply_tokens=self._options.max_reply_tokens,
                seconds=float(self._options.assistant_seconds),
            )
        )
        parts = split(reply.text, channel.longest)
        tokens = (reply.input_tokens, reply.output_tokens)
        carried = [each.batch_id for each in work.carried]
        planned = self._table.plan(
            work.name,
            work.owner,
            work.batch.batch_id,
            parts=parts,
            tokens=tokens,
            carried=carried,
            expires_at_seconds=self._expires_at_seconds(),
        )
        if not planned:
            raise LockLost("the conversation is somebody else's")
        work.outbox = Outbox(None, None, carried, parts, [PLANNED] * len(parts), *tokens)

    def _show_typing(self, work: _Work, channel: Channel) -> None:
        try:
            channel.show_typing(work.batch.conversation, work.batch.last_message_id)
        except (Busy, Refused, Unconfirmed) as error:
            self._telemetry.debug("typing was not shown", conversation=work.name, reason=str(error))

    def _send(self, work: _Work, channel: Channel) -> str | Later:
        """What was said; or the gate has closed."""
        assert work.outbox is not None
        said: list[str] = []
        for number, (text, state) in enumerate(zip(work.outbox.parts, work.outbox.states, strict=True)):
            kind = state.partition(":")[0]
            if kind == PLANNED:
                if self._is_closed(work, parts_out=len(said)):
                    return self._park(work, said="\n".join(said))
                self._send_part(work, channel, number, text)
            elif kind == SENDING:
                self._mark_unconfirmed(work, number, "its sender ended while it was sent")
            said.append(text)
        return "\n".join(said)

    def _send_part(self, work: _Work, channel: Channel, number: int, text: str) -> None:
        # A part whose sender is ended after it began is never sent: the table may take its time, too.
        work.require_ms(int(CHANNEL_SECONDS * 1_000) + MAX_CALL_MS)
        self._mark(work, number, before=PLANNED, after=SENDING)
        try:
            channel.send(work.batch.conversation, text)
        except (Busy, Refused):
            self._mark(work, number, before=SENDING, after=PLANNED)
            raise
        except Unconfirmed as error:
            self._mark_unconfirmed(work, number, str(error))
            return
        self._mark(work, number, before=SENDING, after=SENT)
        self._telemetry.count("PartsSent")

    def _mark_unconfirmed(self, work: _Work, number: int, reason: str) -> None:
        self._mark(work, number, before=SENDING, after=UNCONFIRMED)
        self._telemetry.count("UnconfirmedSends")
        self._telemetry.warn(
            "send was not confirmed", conversation=work.name, batch=work.batch.batch_id, part=number, reason=reason
        )

    def _mark(self, work: _Work, number: int, *, before: str, after: str) -> None:
        marked = self._table.mark(work.name, work.owner, work.batch.batch_id, part=number, before=before, after=after)
        if not marked:
            raise LockLost("the part is not where it was left")

    # -- the gate ----------------------------------------------------------------------------------

    def _is_closed(self, work: _Work, *, parts_out: int) -> bool:
        answered = work.record.answered.get(work.batch.lane, 0)
        try:
            return self._gate.is_closed(work.batch, parked=work.parked, answered=answered, parts_out=parts_out)
        except MessageBufferError as error:
            if work.delivery.receives < self._options.max_attempts:
                raise
            # Better a reply that may be late than none.
            self._telemetry.warn("gate could not be asked", conversation=work.name, reason=str(error))
            return False

    def _park(self, work: _Work, *, said: str) -> Later:
        batch = work.batch
        text, said = (history.shortened(each, MOST_PARKED_BYTES) for each in (batch.text, said))
        own = Parked(batch.batch_id, batch.generation, batch.lane, text, said)
        # What is planned stays: if nothing newer comes, it is what will be said.
        if not self._table.park(work.name, work.owner, [*work.record.parked, own._asdict()]):
            raise LockLost("the conversation is somebody else's")
        self._telemetry.count("RepliesParked")
        self._telemetry.info("reply waits: newer messages", conversation=work.name, batch=batch.batch_id)
        return Later(self._options.gate_wait_seconds)

    def _wait(self, work: _Work, reason: str, later: Later) -> Later:
        self._table.release(work.name, work.owner, status=work.record.status or "waiting", reason=reason)
        return later

    # -- the end -----------------------------------------------------------------------------------

    def _finish(self, work: _Work, said: str) -> None:
        assert work.outbox is not None
        turns = [*self._user_turns(work), self._turn(ASSISTANT, said, work.batch.batch_id)]
        self._write(work, turns, outcome="answered", status="reply_sent", reason="", answers_older=True)
        self._telemetry.count("Replies")
        self._telemetry.count("InputTokens", work.outbox.input_tokens)
        self._telemetry.count("OutputTokens", work.outbox.output_tokens)
        self._telemetry.info("replied", conversation=work.name, batch=work.batch.batch_id, parts=len(work.outbox.parts))

    def _write(
        self, work: _Work, turns: list[Turn], *, outcome: str, status: str, reason: str, answers_older: bool
    ) -> None:
        batch, record, now_ms = work.batch, work.record, self._clock()
        new = [turn._replace(text=history.shortened(turn.text)) for turn in turns]
        kept = history.kept([*(Turn(**each) for each in record.turns), *new])
        over = {each.batch_id for each in work.carried} if answers_older else set()
        processing_ms = now_ms - work.began_at_ms
        done = self._table.finish(
            work.name,
            work.owner,
            Finished(
                batch_id=batch.batch_id,
                outcome=outcome,
                status=status,
                reason=reason,
                turns=[turn._asdict() for turn in kept.recent],
                rolled=[turn._asdict() for turn in kept.rolled],
                rolled_before=record.rolled,
                parked=[each for each in record.parked if each["batch_id"] not in over | {batch.batch_id}],
                carried=sorted(over),
                answered=record.answered | {batch.lane: max(record.answered.get(batch.lane, 0), batch.generation)},
                input_tokens=work.outbox.input_tokens if work.outbox else 0,
                output_tokens=work.outbox.output_tokens if work.outbox else 0,
                processing_ms=processing_ms,
                now_ms=now_ms,
                expires_at_seconds=self._expires_at_seconds(),
            ),
        )
        if not done:
            raise LockLost("the conversation is somebody else's")
        self._telemetry.measure_ms("ProcessingMs", processing_ms)

    def _user_turns(self, work: _Work) -> list[Turn]:
        """What was parked, with what was said of it, and then this batch."""
        turns: list[Turn] = []
        for each in work.carried:
            turns.append(self._turn(USER, each.text, each.batch_id))
            if each.said:
                turns.append(self._turn(ASSISTANT, each.said, each.batch_id))
        return [*turns, self._turn(USER, work.batch.text, work.batch.batch_id)]

    def _turn(self, role: str, text: str, batch_id: str) -> Turn:
        return Turn(role, text, self._clock(), batch_id)

    def _withhold(self, work: _Work, reason: str) -> None:
        """Nobody answers this batch here: told on the bus, and kept in the history for whoever answers next."""
        outcome = getattr(self._options, reason)
        if work.outbox:
            self._break_off(work, work.outbox)
        if outcome == "hold":
            until_ms = work.record.hand_off_until_ms - self._clock()
            hold_ms = until_ms if reason == "handed_to_human" else self._options.hold_seconds * 1_000
            self._destinations.buffer.hold(work.name, hold_ms)
        self._tell_withheld(work.batch, reason, outcome)
        turns = [self._turn(USER, work.batch.text, work.batch.batch_id)]
        if said := work.said_before:
            turns.append(self._turn(ASSISTANT, said, work.batch.batch_id))
        self._write(work, turns, outcome="withheld", status="reply_withheld", reason=reason, answers_older=False)

    def _break_off(self, work: _Work, outbox: Outbox) -> None:
        """A reply that an owner before has begun."""
        for number, state in enumerate(outbox.states):
            if state.startswith(SENDING):
                self._mark_unconfirmed(work, number, "its sender ended while it was sent")
        self._let_go_of_others(work.batch)

    def _withhold_unknown(self, batch: Batch) -> None:
        self._tell_withheld(batch, "unknown_conversation", "drop")
        self._table.finish_unknown(str(batch.conversation), batch.batch_id, "withheld", self._expires_at_seconds())

    def _tell_withheld(self, batch: Batch, reason: str, outcome: str) -> None:
        detail = {
            "version": EVENT_VERSION,
            "batchId": batch.batch_id,
            "conversationId": str(batch.conversation),
            "tenant": batch.conversation.tenant,
            "reason": reason,
            "outcome": outcome,
        }
        self._destinations.bus.publish(WITHHELD, json.dumps(detail))
        self._telemetry.count_by("RepliesWithheld", reason=reason)
        self._telemetry.info("reply withheld", conversation=str(batch.conversation), reason=reason, outcome=outcome)

    def _expires_at_seconds(self) -> int:
        return self._clock() // 1_000 + self._options.outbox_days * 86_400


def _back_off(delivery: Delivery) -> Later:
    return Later(min(FIRST_RETRY_SECONDS << min(delivery.receives, 10), LONGEST_RETRY_SECONDS))
