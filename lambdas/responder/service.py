"""Answers a turn: the batches of a conversation that the queue delivers together.

The queue delivers nothing else of the conversation meanwhile. A run stores the whole reply as a plan before it sends
the first part, records each part before and after it sends it, and at the end stores the turn and marks its batches in
one transaction. So after a crash the next run continues where the last one stopped. Only a part that was being sent at
that moment is not sent again, but marked as unconfirmed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

from lambdas.responder import history, trace
from lambdas.responder.assistants import HAND_OFF, TOOLS, Assistant, Prompt
from lambdas.responder.batch import Batch, read_batch
from lambdas.responder.channels import MAX_SEND_SECONDS, Channel, split
from lambdas.responder.conversations_table import PLANNED, SENDING, SENT, UNCONFIRMED, ConversationsTable, Part, Plan
from lambdas.responder.dead_letters import put_dead_letter
from lambdas.responder.errors import CallBusy, CallRefused, CallUnconfirmed, MalformedEvent
from lambdas.responder.gate import DELIVER, MAX_REASON_CHARACTERS, BufferClient, GateCheck, check_gate
from lambdas.responder.history import USER, Turn
from lambdas.responder.owned_turn import OwnedTurn
from message_buffer.aws.object_store import ObjectStore
from message_buffer.clock import Clock, system_clock
from message_buffer.consumer import turns
from message_buffer.consumer.turns import Entry, TryAgain
from message_buffer.errors import LockLost, MessageBufferError, SendFailed
from message_buffer.events.event_bus import EventBus
from message_buffer.json_object import Json
from message_buffer.limits import MAX_CALL_MS, MAX_HOLD_MS
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.settings import ResponderOptions
from message_buffer.telemetry import Telemetry

REPLY_SENT, REPLY_WITHHELD = "messages.reply.sent", "messages.reply.withheld"
EVENT_VERSION = 1
# The outcomes of a turn.
ANSWERED, WITHHELD = "reply_sent", "reply_withheld"
# The reasons to withhold a reply.
ON_HOLD = "on_hold"
INACTIVE_PROJECT = "inactive_project"
CHANNEL_NOT_ALLOWED = "channel_not_allowed"
QUESTION_TOO_LONG = "question_too_long"
TOO_MANY_REPLIES = "too_many_replies"
TOO_MANY_OF_TENANT = "too_many_replies_of_tenant"
# A longer reply is cut. In its event, which has at most 256 KB, each quote and each line end takes two bytes.
MAX_REPLY_BYTES = 100_000
# If the gate closes, the first pause. Each further pause is twice as long.
MIN_GATE_PAUSE_SECONDS = 2
# If a run ends after it has recorded `sending`, the part is never sent again. So there must be time to send the part,
# and also to write to the table.
MIN_TIME_TO_SEND_MS = int(MAX_SEND_SECONDS * 1_000) + MAX_CALL_MS


class Collaborators(NamedTuple):
    """Everything that the responder calls."""

    table: ConversationsTable
    bus: EventBus
    objects: ObjectStore
    buffer: BufferClient
    dead_letter_urls: Mapping[str, str]
    """The URL of each queue -> the URL of its dead-letter queue."""
    assistant: Callable[[str], Assistant]
    """Returns the assistant with the keys of a tenant."""
    channel: Callable[[ConversationId], Channel | None]
    """Returns None if there is no channel for the conversation's platform."""


class Responder:
    def __init__(
        self,
        collaborators: Collaborators,
        options: ResponderOptions,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
        new_owner: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._collaborators = collaborators
        self._table = collaborators.table
        self._options = options
        self._telemetry = telemetry
        self._clock = clock
        self._new_owner = new_owner

    def respond(self, delivered: turns.Turn, *, time_left_ms: Callable[[], int]) -> None:
        """Answer the entries of a conversation. Raise TryAgain if the queue has to deliver them again.

        An entry that is given up is put into the dead-letter queue, and is not delivered again.
        """
        owned = None
        try:
            batches = self._read(delivered)
            if batches:
                owned = self._own(delivered, batches, time_left_ms)
                while owned.waiting:
                    self._answer(owned)
        except TryAgain:
            raise
        except Exception as error:  # noqa: BLE001 - any bug is retried, and dead-lettered in the end
            self._after_failure(error, delivered, owned)

    # -- what is delivered -------------------------------------------------------------------------

    def _read(self, delivered: turns.Turn) -> dict[str, Batch]:
        """Return the batch of each entry, by the entry's id. Give up what is not a batch."""
        batches = {}
        for entry in delivered.entries:
            try:
                batches[entry.id] = read_batch(entry.body, self._collaborators.objects)
            except MalformedEvent as error:
                self._give_up([entry], delivered, str(error))
        return batches

    def _own(self, delivered: turns.Turn, batches: dict[str, Batch], time_left_ms: Callable[[], int]) -> OwnedTurn:
        """Acquire the conversation, and leave out the batches that were finished before, or forgotten."""
        conversation, owner, now_ms = next(iter(batches.values())).conversation, self._new_owner(), self._clock()
        name = str(conversation)
        record = self._table.acquire(name, owner, now_ms=now_ms)
        settings = {**self._table.tenant_settings(conversation.tenant), **record.settings}
        plan = self._table.take_plan(name, owner) if record.has_plan else None
        owned = OwnedTurn(
            self._table, delivered, batches, conversation, owner, now_ms, time_left_ms, record, settings, plan
        )
        trace.follow(owned.newest.traceparent)
        forgotten = {each.batch_id for each in owned.waiting if each.last_message_at_ms <= record.forgotten_at_ms}
        for batch_id in forgotten:
            self._telemetry.info("batch was forgotten", conversation=name, batch=batch_id)
        finished = self._table.finished(name, [each.batch_id for each in owned.waiting]) - forgotten
        for batch_id in finished:
            self._telemetry.info("batch was finished before", conversation=name, batch=batch_id)
        owned.leave_out(forgotten | finished)
        return owned

    def _after_failure(self, error: Exception, delivered: turns.Turn, owned: OwnedTurn | None) -> None:
        """Give up the entries for which another attempt is pointless, and return the others to the queue."""
        self._telemetry.count("ProcessingErrors")
        if not isinstance(error, MessageBufferError):
            self._telemetry.crash("responder failed", error, **_ids(owned))
            error = CallBusy(f"unexpected error: {type(error).__name__}")
        reason, given_up = str(error), self._hopeless(error, delivered, owned)
        try:
            if owned and given_up:
                self._fail(owned, reason)
            self._give_up(given_up, delivered, reason, **_ids(owned))
        except (SendFailed, LockLost) as failed:
            self._telemetry.warn("reply could not be dead-lettered", reason=str(failed), **_ids(owned))
        if delivered.entries:
            self._telemetry.warn(
                "reply is tried again", reason=reason, attempt=delivered.entries[0].receives, **_ids(owned)
            )
            raise TryAgain(delivered.pause_seconds)

    def _hopeless(self, error: MessageBufferError, delivered: turns.Turn, owned: OwnedTurn | None) -> list[Entry]:
        """Return the entries that were delivered often enough, or, if a retry is pointless, those that it was about.

        If a reply was begun, return all of its entries, too, because a new reply would repeat what was sent.
        """
        if isinstance(error, LockLost):
            return []  # the run that owns the conversation decides
        hopeless = {each.id for each in delivered.entries if each.receives >= self._options.max_attempts}
        if owned is None:
            return [each for each in delivered.entries if not error.retryable or each.id in hopeless]
        asked = owned.plan.question if owned.plan else self._question(owned)
        batch_ids = {turn.batch_id for turn in asked}
        if not error.retryable or (hopeless and owned.plan and owned.plan.has_effects):
            hopeless |= {each.id for each in delivered.entries if owned.batches[each.id].batch_id in batch_ids}
        return [each for each in delivered.entries if each.id in hopeless]

    def _give_up(self, entries: Sequence[Entry], delivered: turns.Turn, reason: str, **ids: str) -> None:
        for entry in entries:
            put_dead_letter(entry, self._collaborators.dead_letter_urls[entry.queue_url], reason=reason)
            self._telemetry.warn("reply was given up", reason=reason, attempt=entry.receives, **ids)
        delivered.finish(entries)

    # -- the steps of a turn -----------------------------------------------------------------------

    def _answer(self, owned: OwnedTurn) -> None:
        """Finish the plan of an earlier run, or else plan a reply to the batches that wait, and finish that."""
        self._drop_outdated_plan(owned)
        for number, part in enumerate(owned.plan.parts if owned.plan else ()):
            if part.state == SENDING and not part.tool:
                self._mark_unconfirmed(owned, number, "the run that sent it ended before the channel answered")
        if not (owned.plan and owned.plan.withheld):
            self._reply(owned)
        self._finish(owned)

    def _drop_outdated_plan(self, owned: OwnedTurn) -> None:
        waiting, plan = {batch.batch_id for batch in owned.waiting}, owned.plan
        if plan and not waiting & set(plan.batch_ids):
            # The plan's batches are in the dead-letter queue. A person may move them back, and they are answered then.
            self._fail(owned, "its batches were given up")
        elif plan and not plan.has_effects and self._options.gate != DELIVER and not waiting <= set(plan.batch_ids):
            owned.plan = None

    def _reply(self, owned: OwnedTurn) -> None:
        reason = self._reason_to_withhold(owned)
        channel = None if reason else self._collaborators.channel(owned.conversation)
        if channel is None:
            self._withhold(owned, reason or CHANNEL_NOT_ALLOWED)
            return
        if owned.plan is None:
            self._plan(owned, channel)
        if owned.plan and not owned.plan.withheld:
            self._send_parts(owned, channel)

    def _plan(self, owned: OwnedTurn, channel: Channel) -> None:
        """Ask the assistant, or withhold the reply."""
        if history.estimate_tokens(owned.waiting[0].text) > self._options.max_question_tokens:
            self._withhold(owned, QUESTION_TOO_LONG)
        elif owned.record.reply_count.at(self._clock()).replies >= self._options.max_replies_an_hour:
            self._withhold(owned, TOO_MANY_REPLIES)
        elif hold := self._pass_gate(owned, parts_sent=0, sending=False).hold:
            self._withhold(owned, ON_HOLD, hold)
        elif not self._count_for_tenant(owned):
            self._withhold(owned, TOO_MANY_OF_TENANT)
        else:
            self._ask(owned, channel)

    def _question(self, owned: OwnedTurn) -> list[Turn]:
        """Return, as turns, the oldest waiting batches: as many as fit into one question, but at least one."""
        sizes = [history.estimate_tokens(batch.text) for batch in owned.waiting]
        fitting = len(sizes) - history.first_that_fits(sizes[::-1], self._options.max_question_tokens)
        return [
            Turn(USER, each.text, each.last_message_at_ms, each.batch_id, history.newest_ids(each.message_ids))
            for each in owned.waiting[: max(1, fitting)]
        ]

    def _ask(self, owned: OwnedTurn, channel: Channel) -> None:
        """Ask the assistant, and store its reply in parts."""
        if self._options.typing_indicator:
            with suppress(CallBusy, CallRefused, CallUnconfirmed):
                channel.show_typing(owned.newest.recipient, owned.newest.message_ids[-1])
        owned.require_time(self._options.assistant_seconds * 1_000)
        question, most = self._question(owned), self._options.max_history_tokens
        earlier = history.of_episode(owned.record.turns, owned.record.episode_from_ms)
        model = str(owned.settings.get("model", self._options.model))
        reply = self._collaborators.assistant(owned.conversation.tenant).answer(
            Prompt(
                instructions=str(owned.settings.get("instructions", self._options.instructions)),
                turns=history.alternate(history.fit_into_budget(earlier, question, max_tokens=most)),
                model=model,
                max_reply_tokens=self._options.max_reply_tokens,
                seconds=float(self._options.assistant_seconds),
                conversation=owned.conversation,
                batch_ids=[turn.batch_id for turn in question],
                tools=[TOOLS[name] for name in self._options.tools],
            )
        )
        self._telemetry.count("InputTokens", reply.input_tokens)
        self._telemetry.count("OutputTokens", reply.output_tokens)
        texts = split(history.shorten(reply.text, MAX_REPLY_BYTES), channel.max_part_characters)
        parts = [Part(text) for text in texts if text]
        parts += [Part(history.shorten(said, MAX_REASON_CHARACTERS), tool=name) for name, said in reply.tools.items()]
        plan = Plan(question, parts, model, reply.input_tokens, reply.output_tokens)
        owned.store(plan, replies=1, now_ms=self._clock())

    def _count_for_tenant(self, owned: OwnedTurn) -> bool:
        """Count the reply, even if the assistant then fails. Return False if the tenant has reached its limit."""
        tenant, at_most = owned.conversation.tenant, self._options.max_tenant_replies_an_hour
        return self._table.count_reply(tenant, now_ms=self._clock(), at_most=at_most)

    def _pass_gate(self, owned: OwnedTurn, *, parts_sent: int, sending: bool) -> GateCheck:
        """Ask the gate. Raise TryAgain if it is closed before the first part."""
        oldest = owned.delivered.entries[0]
        left_ms = oldest.first_received_at_ms + self._options.gate_wait_seconds * 1_000 - self._clock()
        buffer, policy, has_waited = self._collaborators.buffer, self._options.gate, left_ms <= 0
        check = check_gate(buffer, policy, owned.newest, parts_sent=parts_sent, has_waited=has_waited, sending=sending)
        if check.newer and not check.hold and not parts_sent:
            self._telemetry.info("reply waits: newer messages", **_ids(owned))
            raise TryAgain(min(MIN_GATE_PAUSE_SECONDS << (oldest.receives - 1), left_ms // 1_000 + 1))
        return check

    # -- the parts of a reply, each sent at most once, and then its tools, each used at least once -----

    def _send_parts(self, owned: OwnedTurn, channel: Channel) -> None:
        """Send the planned parts and use the tools, until a hold begins or the customer interrupts."""
        assert owned.plan is not None
        for number, part in enumerate(owned.plan.parts):
            if part.state not in (PLANNED, SENDING):
                continue
            # After the whole text was sent, a tool is used whatever the gate says. A tool that an earlier run has used
            # may itself be the reason of a hold.
            if part.state == PLANNED and not (part.tool and number):
                check = self._pass_gate(owned, parts_sent=number, sending=not part.tool)
                if check.hold:
                    self._withhold(owned, ON_HOLD, check.hold)
                if check.hold or check.newer:
                    return
            if part.tool:
                self._use_tool(owned, number, part)
            else:
                self._send(owned, channel, number, part.text)

    def _use_tool(self, owned: OwnedTurn, number: int, part: Part) -> None:
        assert owned.plan is not None
        owned.require_time(MIN_TIME_TO_SEND_MS)
        owned.mark(number, SENDING)
        said = {TOOLS[part.tool].argument: part.text} if part.text else {}
        if part.tool == HAND_OFF:
            # Without an end, people who forget to hand the conversation back would silence the AI for ever.
            self._collaborators.buffer.call("conversation.handoff", owned.conversation, holdMs=MAX_HOLD_MS, **said)
        else:
            at_ms = max(turn.at_ms for turn in owned.plan.question)
            self._collaborators.buffer.call("conversation.complete", owned.conversation, at=at_ms, **said)
            owned.end_episode(at_ms, now_ms=self._clock())
        owned.mark(number, SENT)
        self._telemetry.info("tool used", tool=part.tool, **_ids(owned))

    def _send(self, owned: OwnedTurn, channel: Channel, number: int, text: str) -> None:
        """Send a planned part. If the channel raises CallBusy or CallRefused, mark the part as planned again."""
        owned.require_time(MIN_TIME_TO_SEND_MS)
        owned.mark(number, SENDING, at_ms=self._clock())
        try:
            message_id = channel.send(owned.newest.recipient, text)
        except (CallBusy, CallRefused):
            owned.mark(number, PLANNED)
            raise
        except CallUnconfirmed as error:
            self._mark_unconfirmed(owned, number, str(error))
            return
        owned.mark(number, SENT, message_id=message_id, at_ms=self._clock())

    def _mark_unconfirmed(self, owned: OwnedTurn, number: int, reason: str) -> None:
        owned.mark(number, UNCONFIRMED)
        self._telemetry.count("UnconfirmedSends")
        self._telemetry.warn("send was not confirmed", **_ids(owned), part=number, reason=reason)

    # -- replies that are not sent -------------------------------------------------------------------

    def _reason_to_withhold(self, owned: OwnedTurn) -> str | None:
        """Return why the settings forbid a reply to the conversation, or None if they allow one."""
        if owned.settings.get("projectStatus", "active") != "active":
            return INACTIVE_PROJECT
        allowed = owned.settings.get("allowedChannels") or self._options.allowed_channels
        return CHANNEL_NOT_ALLOWED if allowed and owned.conversation.platform not in allowed else None

    def _withhold(self, owned: OwnedTurn, reason: str, hold: Json | None = None) -> None:
        """Store that no reply, or no rest of one, is sent. From now on no run sends a part of it."""
        event = {
            "version": EVENT_VERSION,
            "conversationId": str(owned.conversation),
            "tenant": owned.conversation.tenant,
            "reason": reason,
            **({"hold": hold} if hold else {}),
        }
        plan = owned.plan or Plan(self._question(owned))
        owned.store(plan._replace(withheld=json.dumps(event)), now_ms=self._clock())

    # -- the end of a turn ---------------------------------------------------------------------------

    def _finish(self, owned: OwnedTurn) -> None:
        """Finish the plan. Even if it was withheld, keep the customer's words, for a person or a later reply."""
        plan, ids = owned.plan, _ids(owned)
        assert plan is not None
        self._publish_sent(owned)
        if plan.withheld is None:
            owned.finish(ANSWERED, now_ms=self._clock())
            self._telemetry.count("Replies")
            self._telemetry.info("replied", **ids, parts=len(plan.parts))
            return
        event = json.loads(plan.withheld)
        for batch_id in plan.batch_ids:
            self._collaborators.bus.publish(REPLY_WITHHELD, json.dumps(event | {"batchId": batch_id}))
            self._telemetry.count_by("RepliesWithheld", reason=event["reason"])
            self._telemetry.info("reply withheld", conversation=str(owned.conversation), reason=event["reason"])
        owned.finish(WITHHELD, reason=event["reason"], now_ms=self._clock())

    def _fail(self, owned: OwnedTurn, reason: str) -> None:
        """Drop the plan, if there is one, so that its batches may be answered later."""
        self._publish_sent(owned)
        owned.fail(reason, now_ms=self._clock())

    def _publish_sent(self, owned: OwnedTurn) -> None:
        """Publish the parts that were sent, if any. If this run then fails, the next one publishes them again."""
        plan = owned.plan
        if plan is None or not plan.sent:
            return
        event = {
            "version": EVENT_VERSION,
            "replyId": plan.reply_id,
            "conversationId": str(owned.conversation),
            "tenant": owned.conversation.tenant,
            "batchIds": plan.batch_ids,
            "parts": [{"text": part.text, "messageId": part.message_id or None} for part in plan.sent],
            "at": plan.sent[-1].at_ms,
        }
        self._collaborators.bus.publish(REPLY_SENT, json.dumps(event, ensure_ascii=False))


def _ids(owned: OwnedTurn | None) -> dict[str, str]:
    """Return the fields by which a log line is found."""
    if owned is None:
        return {}
    waiting = owned.waiting
    return {"conversation": str(owned.conversation), **({"batch": waiting[-1].batch_id} if waiting else {})}
