"""The customers who fell silent: after each step of the rule `idleAfterMs`, an event about the conversation.

The function that emits a batch stores an item with the time of the first step. The next batch replaces the item, and a
reply moves its time. Passes publish the steps whose time has come. A cancel replaces the item with a mark, so that a
repeated emission of an older batch does not begin the steps again.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2s
from itertools import islice
from typing import Protocol
from zlib import crc32

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, expressions, number, text
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreError
from message_buffer.events.batch_ready import Content
from message_buffer.events.event_bus import MAX_ENTRIES_IN_A_CALL, EventBus, conversation_event
from message_buffer.lanes.outcomes import BatchTaken, Conversation
from message_buffer.limits import DAY_MS, SECOND_MS, WATCHDOG_PASS_MS
from message_buffer.messages.conversation_id import is_trial, parse_conversation_id, reply_until_ms
from message_buffer.telemetry import Telemetry

IDLE = "messages.conversation.idle"
BY_TIME = "by_time"
# DynamoDB allows 1,000 writes a second per index partition, so the index is split into this many parts.
INDEX_PARTS = 4
# A pass handles at most this many conversations, those whose time came first.
MAX_STEPS_IN_A_PASS = 1_000
# A step is published by the pass that is nearest to its time, so at most this much early.
MAX_STEP_EARLY_MS = WATCHDOG_PASS_MS // 2
# An item that no pass removes expires after this time, and a cancel's mark after a day.
IDLE_ITEM_KEPT_MS = 30 * DAY_MS


class Peeks(Protocol):
    def peek_conversation(self, conversation: str, *, limit: int = 0) -> Conversation: ...


class IdleTable(Table):
    def __init__(
        self, name: str, telemetry: Telemetry, *, patience: aws.Patience = aws.PATIENT, clock: Clock = system_clock
    ) -> None:
        super().__init__(name, patience=patience)
        self._telemetry = telemetry
        self._clock = clock
        self._is_used, self._looked_at_ms = False, 0

    def begin(self, conversation: str, taken: BatchTaken, content: Content, *, before: Callable[[], None]) -> None:
        """Begin the steps after a batch was emitted, unless its messages have none, or people have the conversation.

        `before` raises an error if the caller may make no further call. A failed call is only logged, because the batch
        is already emitted.
        """
        steps = content.idle_after_ms
        if not steps or taken.handoff or is_trial(conversation):
            return
        before()
        now_ms, until_ms = self._clock(), reply_until_ms(parse_conversation_id(conversation), content.last_sent_at_ms)
        item: Values = {
            **_key(conversation), "part": crc32(conversation.encode()) % INDEX_PARTS, "at": now_ms + steps[0],
            "last": taken.last_at_ms, "since": now_ms, "wait": steps[0], "step": 1, "steps": steps,
            "end": (now_ms + IDLE_ITEM_KEPT_MS) // SECOND_MS,
            **({"agent": content.agent} if content.agent else {}), **({"until": until_ms} if until_ms else {}),
        }  # fmt: skip
        # A batch that was due before a cancel may be emitted again after it.
        only_if = "(attribute_not_exists(#last) OR #last < :last) AND (attribute_not_exists(#cut) OR #cut < :due"
        new = self._new(
            item, {"last": taken.last_at_ms, "due": taken.due_at_ms}, only_if=f"{only_if} OR #upto < :last)"
        )
        try:
            self._asked("begin idle", "put_item", new["Put"])
        except SendFailed as error:
            self._fail(error, conversation=conversation)

    def is_used(self) -> bool:
        """Return whether any conversation of the stage waits for a step, as it was at most 30 s ago."""
        if not 0 <= self._clock() - self._looked_at_ms < WATCHDOG_PASS_MS:
            self._is_used = any(self._pages("look for idle", "scan", {"IndexName": BY_TIME, "Limit": 1}))
            self._looked_at_ms = self._clock()
        return self._is_used

    def move(self, conversation: str, at_ms: int) -> None:
        """Count the next step from this reply, if it is later than all before. A failed call is only logged."""
        values = {"reply": min(at_ms, self._clock())}
        try:
            do = "SET #since = :reply, #at = :reply + #wait"
            self._update("move idle", _key(conversation), do, values, only_if="#since < :reply")
        except SendFailed as error:
            self._fail(error, conversation=conversation)

    def cancel(self, conversation: str, *, upto_ms: int | None = None) -> None:
        """End the steps. With `upto_ms`, do nothing if the conversation's last message arrived after that time."""
        now_ms, values = self._clock(), None if upto_ms is None else {"upto": upto_ms}
        mark: Values = {"cut": now_ms, "upto": upto_ms or now_ms, "end": (now_ms + DAY_MS) // SECOND_MS}
        only_if = "attribute_not_exists(#last) OR #last <= :upto" if values else ""
        self._asked(
            "cancel idle", "put_item", self._new({**_key(conversation), **mark}, values, only_if=only_if)["Put"]
        )

    def count(self, conversation: str) -> int:
        """Return the number of items that `forget` would delete: 0 or 1."""
        return int(bool(self._get("read idle", _key(conversation))))

    def forget(self, conversation: str, *, until_ms: int | None = None) -> int:
        """Delete the item, unless a message after `until_ms` began its steps. Return 1, or 0 if none was deleted."""
        values = None if until_ms is None else {"until": until_ms}
        only_if = "attribute_not_exists(#last) OR #last <= :until" if values else ""
        found = self.count(conversation)
        return found * self._transact("forget idle", [self._delete(_key(conversation), values, only_if=only_if)])

    def run_pass(self, lanes: Sequence[Peeks], bus: EventBus, has_time: Callable[[], bool]) -> None:
        """Publish the steps whose time has come. If a lane, the table or the bus fails, the next pass goes on."""
        try:
            due = self._due()
            while names := [*islice(due, MAX_ENTRIES_IN_A_CALL)]:
                if not has_time():
                    self._telemetry.warn("idle pass cut")
                    break
                reached = {name: item for name in names if (item := self._reached(name, lanes))}
                # Publish before moving the items: if this run dies in between, the next pass publishes them again.
                bus.publish_all(IDLE, [_event(name, item) for name, item in reached.items()])
                self._telemetry.count("IdleSteps", len(reached))
                for name, item in reached.items():
                    self._telemetry.info("idle", conversation=name, step=number(item, "step"))
                    self._end_steps(name, item, before=number(item, "step") + 1)
        except (SendFailed, StoreError) as error:
            self._fail(error)

    def _due(self) -> Iterator[str]:
        until_ms, limit = self._clock() + MAX_STEP_EARLY_MS, MAX_STEPS_IN_A_PASS // INDEX_PARTS
        for part in range(INDEX_PARTS):
            found = expressions(
                {"part": part, "until": until_ms}, KeyConditionExpression="#part = :part AND #at <= :until"
            )
            pages = self._pages("list idle", "query", {"IndexName": BY_TIME, "Limit": limit, **found})
            yield from (text(each, "conversation") for each in islice(pages, limit))

    def _reached(self, name: str, lanes: Sequence[Peeks]) -> Item | None:
        """Return the conversation's item if its step is reached. If something has ended its steps, delete the item."""
        item = self._get("read idle", _key(name))  # the index lags behind the table
        if "at" not in item or number(item, "at") > self._clock() + MAX_STEP_EARLY_MS:
            return None
        seen = [lane.peek_conversation(name) for lane in lanes]
        if any(each.holds or each.count or (each.last_at_ms or 0) > number(item, "last") for each in seen):
            self._end_steps(name, item)
            return None
        # A batch that is being emitted is tried again, so a later pass finds out how it ended.
        return None if any(each.frozen for each in seen) else item

    def _end_steps(self, name: str, item: Item, *, before: int | None = None) -> None:
        """End the steps before this one, or all, unless the item has changed by more than a reply."""
        steps = [int(each["N"]) for each in item["steps"]["L"]]
        same, values = "#last = :last AND #step = :step", {each: number(item, each) for each in ("last", "step")}
        if before is None or before > len(steps):
            self._transact("end idle", [self._delete(_key(name), values, only_if=same)])
        else:
            do, values = "SET #step = :next, #wait = :wait, #at = #since + :wait", values | {"next": before}
            self._update("move idle", _key(name), do, values | {"wait": steps[before - 1]}, only_if=same)

    def _fail(self, error: Exception, **about: str) -> None:
        self._telemetry.count("TablesUnreachable")
        self._telemetry.warn("idle failed", reason=str(error), **about)


def _key(conversation: str) -> dict[str, str]:
    return {"conversation": conversation}


def _event(name: str, item: Item) -> str:
    last_at_ms, step = number(item, "last"), number(item, "step")
    event_id = blake2s(json.dumps((name, last_at_ms, step)).encode(), digest_size=16).hexdigest()
    fields = {"id": f"i-{event_id}", "step": step, "steps": len(item["steps"]["L"]), "lastMessageAt": last_at_ms}
    fields |= {"replyUntil": number(item, "until")} if "until" in item else {}
    return conversation_event(parse_conversation_id(name), text(item, "agent") or None, number(item, "at"), fields)
