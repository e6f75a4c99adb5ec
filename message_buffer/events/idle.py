"""The customers who fell silent: after each step of the rule `idleAfterMs`, an event about the conversation.

The function that emits a batch stores the time of the first step before it publishes the batch. So whatever ends the
steps comes later, and a repeated emission does not begin ended steps again. The next batch does, and a reply counts the
next step anew. Once a minute a pass of the admin function publishes the steps whose time has come.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

from message_buffer.aws.dynamodb import Item, Values, expressions, number, text
from message_buffer.clock import Clock, system_clock
from message_buffer.events.batch_ready import Content
from message_buffer.events.event_bus import MAX_ENTRIES_IN_A_CALL, EventBus, conversation_event
from message_buffer.json_object import Json
from message_buffer.lanes.holds import NO_END_MS
from message_buffer.lanes.outcomes import BatchTaken, Conversation
from message_buffer.limits import DAY_MS, MINUTE_MS, REMEMBERED_MS, SECOND_MS
from message_buffer.messages.conversation_id import parse_conversation_id, reply_until_ms
from message_buffer.takeovers.takeovers_table import TakeoversTable, key_of
from message_buffer.telemetry import Telemetry

IDLE = "messages.conversation.idle"
# The index has one partition, which takes 1,000 writes a second. A batch whose messages have steps makes two.
BY_TIME = "by_time"
# A step is published by the pass that is nearest to its time, so at most this much early.
MAX_STEP_EARLY_MS = MINUTE_MS // 2
# A pass looks at a conversation at least this often, because a lane forgets a newer message without steps after a day.
MAX_UNSEEN_MS = REMEMBERED_MS // 2
# Longer than any step, and than a takeover that has ended is kept.
STEPS_KEPT_MS = 30 * DAY_MS


class Peeks(Protocol):
    def peek_conversation(self, conversation: str, *, limit: int = 0) -> Conversation: ...


class IdleTable(TakeoversTable):
    """The table of takeovers, in which the item of a conversation also has its steps."""

    _is_used, _looked_at_ms = False, 0

    def begin_steps(self, conversation: str, taken: BatchTaken, content: Content, *, now_ms: int) -> None:
        """Begin the steps after a batch. If an earlier attempt to emit it began them, count them from now, unless they
        have ended. Leave those of a newer batch, or begin none if people have the conversation."""
        steps = content.idle_after_ms
        values: Values = {
            "idle": "yes", "at": now_ms + min(steps[0], MAX_UNSEEN_MS), "last": taken.last_at_ms, "since": now_ms,
            "step": 1, "steps": steps, "agent": content.agent or "",
            "window": reply_until_ms(parse_conversation_id(conversation), content.last_sent_at_ms) or 0,
            "expires_at": (now_ms + STEPS_KEPT_MS) // SECOND_MS,
        }  # fmt: skip
        do = "SET " + ", ".join(f"#{name} = :{name}" for name in values)
        only_if = "(attribute_not_exists(#last) OR #last < :last OR (#last = :last AND attribute_exists(#at)))"
        only_if += " AND (attribute_not_exists(#until) OR #until < :since)"
        self._update("begin steps", key_of(conversation), do, values, only_if=only_if)

    def is_used(self, now_ms: int) -> bool:
        """Return whether a conversation of the stage waits for a step. The answer may be 30 s old."""
        if not 0 <= now_ms - self._looked_at_ms < 30 * SECOND_MS:
            self._looked_at_ms = now_ms
            self._is_used = any(self._due(NO_END_MS))
        return self._is_used

    def note_reply(self, conversation: str, *, at_ms: int) -> None:
        """Measure the next step's time from this reply, unless a later reply or batch has come."""
        self._update("note reply", key_of(conversation), "SET #since = :at", {"at": at_ms}, only_if="#since < :at")

    def end_steps(self, conversation: str, *, upto_ms: int = NO_END_MS) -> None:
        """End the steps, unless the conversation's last message arrived after `upto_ms`."""
        self._update("end steps", key_of(conversation), "REMOVE #at", {"upto": upto_ms}, only_if="#last <= :upto")

    def undo_steps(self, conversation: str, *, last_at_ms: int) -> None:
        """Undo `begin_steps` for a batch that becomes a dead letter. A redrive begins the steps again."""
        do, values = "SET #last = :none REMOVE #at", {"none": 0, "last": last_at_ms}
        self._update("undo steps", key_of(conversation), do, values, only_if="#last = :last")

    def forget_steps(self, conversation: str, *, until_ms: int) -> None:
        """Delete the item that has only steps, unless a message after `until_ms` began them."""
        only_if = "attribute_not_exists(#version) AND #last <= :until"
        self._transact("forget steps", [self._delete(key_of(conversation), {"until": until_ms}, only_if=only_if)])

    def run_pass(
        self, lanes: Sequence[Peeks], bus: EventBus, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> Json:
        """Publish the steps whose time has come. If this fails or takes too long, the next pass goes on."""
        until_ms = clock() + MAX_STEP_EARLY_MS
        due = self._due(until_ms)
        while names := [*islice(due, MAX_ENTRIES_IN_A_CALL)]:
            reached = {name: item for name in names if (item := self._reached(name, lanes, until_ms))}
            # Publish before storing the next steps: if this run dies in between, the next pass publishes them again.
            bus.publish_all(IDLE, [_event(name, item) for name, item in reached.items()])
            for name, item in reached.items():
                telemetry.info("idle", conversation=name, step=number(item, "step"))
                self._schedule(name, item, step=number(item, "step") + 1)
        return {}

    def _due(self, until_ms: int) -> Iterator[str]:
        """Yield the conversations whose step comes until then."""
        found = expressions({"idle": "yes", "to": until_ms}, KeyConditionExpression="#idle = :idle AND #at <= :to")
        # Pages are small, because `is_used` reads only the first.
        for each in self._pages("list steps", "query", {"IndexName": BY_TIME, "Limit": MAX_ENTRIES_IN_A_CALL, **found}):
            yield text(each, "conversation")

    def _reached(self, name: str, lanes: Sequence[Peeks], until_ms: int) -> Item | None:
        """Return the conversation's item if its step is due. Store a later time of the step, or the steps' end."""
        item = self._get("read steps", key_of(name))
        if "at" not in item:
            return None  # the index lags behind the table
        step, seen = number(item, "step"), [lane.peek_conversation(name) for lane in lanes]
        if any(each.holds or each.count or (each.last_at_ms or 0) > number(item, "last") for each in seen):
            self._schedule(name, item, step=len(_waits(item)) + 1)
        elif number(item, "since") + _waits(item)[step - 1] > until_ms:
            self._schedule(name, item, step=step)
        elif not any(each.frozen for each in seen):  # a frozen batch is emitted again, so a later pass sees its end
            return item
        return None

    def _schedule(self, name: str, item: Item, *, step: int) -> None:
        """Store when this step comes, or the end after the last, unless the item has changed by more than a reply."""
        values, do = {each: number(item, each) for each in ("last", "step")}, "REMOVE #at"
        if step <= len(_waits(item)):
            do, at_ms = "SET #step = :next, #at = :at", number(item, "since") + _waits(item)[step - 1]
            values |= {"next": step, "at": min(at_ms, number(item, "at") + MAX_UNSEEN_MS)}
        only_if = "#last = :last AND #step = :step AND attribute_exists(#at)"
        self._update("schedule step", key_of(name), do, values, only_if=only_if)


def _waits(item: Item) -> list[int]:
    return [int(each["N"]) for each in item["steps"]["L"]]


def _event(name: str, item: Item) -> str:
    last_ms, step = number(item, "last"), number(item, "step")
    fields = {"id": f"{name}:{last_ms}:{step}", "step": step, "steps": len(_waits(item)), "lastMessageAt": last_ms}
    fields |= {"replyUntil": number(item, "window")} if number(item, "window") else {}
    return conversation_event(parse_conversation_id(name), text(item, "agent") or None, number(item, "at"), fields)
