"""Carries out the operations that consumers may invoke. None of them reads a message or changes a rule."""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from lambdas.operations import MAX_CALLER_CHARACTERS, MAX_ID_CHARACTERS, Operation
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, MessageBufferError, StoreError, TooManyHolds
from message_buffer.events.event_bus import EventBus
from message_buffer.events.hand_offs import MAX_REASON_CHARACTERS, HandOffs, Initiator
from message_buffer.events.idle import IdleTable
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.holds import longest, shown
from message_buffer.lanes.outcomes import OnHold, ResumeOutcome, lane_of
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import MAX_HOLD_MS
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.messages.wire_form import mend_id


class Gate:
    """Carries out the operations of consumers, in each lane that the stage has."""

    def __init__(
        self,
        valkey_lane: ValkeyLane | None,
        bus: EventBus,
        takeovers: IdleTable,
        *,
        dynamodb_lane: DynamoDbLane | None = None,
        has_queue: bool = False,
        clock: Clock = system_clock,
    ) -> None:
        self._dynamodb_lane = dynamodb_lane
        # The DynamoDB lane is first, so that a hold reaches it even if Valkey is unavailable and the call fails.
        self._lanes = [lane for lane in (dynamodb_lane, valkey_lane) if lane is not None]
        self._hand_offs = HandOffs(self._lanes, bus, takeovers, has_queue=has_queue, clock=clock)
        self._takeovers = takeovers
        self._clock = clock

    def ask(self, fields: Json) -> Json:
        """Return the holds of the conversation, and whether its author has written since a consumer's batch.

        A new message or hold may arrive right after the answer. The fields `generation` and `lane` describe the
        consumer's batch. The lane is needed because each lane counts its own generations. Without `generation`, return
        only the holds, even in an outage of Valkey. If the consumer is `sending` a reply, and may, note the time.
        """
        name = _conversation(fields, "generation", "lane", "sending")
        is_of_dynamodb = lane_of(fields.get("lane", "valkey")) == "dynamodb" and self._dynamodb_lane is not None
        lane_of_batch = self._lanes[0 if is_of_dynamodb else -1]
        asked = lane_of_batch if "generation" in fields else None
        generation = _whole(fields, "generation") if asked else 0
        seen = {}
        for lane in self._lanes:
            try:
                seen[lane] = lane.generation_and_holds(name)
            except StoreError:
                # Ignore a failure of Valkey if the consumer asks only for the holds, because the first lane,
                # DynamoDB's, has the same holds.
                if lane in (asked, self._lanes[0]):
                    raise
        # A hold and a resume at the same time may leave the hold in one lane only, so ask for the longest of all lanes.
        response: Json = {"holds": shown(longest(*(hold for each in seen.values() for hold in each.holds)))}
        if asked:
            current = seen[asked].generation
            response |= {"current": current, "newer": current > generation}
        if fields.get("sending") and not (response["holds"] or response.get("newer")):
            # The counts of gaps and of silence need the time of the reply, but no consumer does.
            with suppress(MessageBufferError):
                if lane_of_batch in seen:
                    lane_of_batch.note_reply(name, at_ms=self._clock())
                if self._takeovers.is_used(self._clock()):
                    self._takeovers.note_reply(name, at_ms=self._clock())
        return response

    def hold(self, fields: Json) -> Json:
        """Put the conversation on hold for a consumer, in all lanes. Return the time at which the hold ends.

        Raise TooManyHolds, and leave a hold in no lane, if consumers may not hold another conversation.
        """
        name, by = _conversation(fields, "holdMs"), mend_id(fields["by"])
        hold_ms = _whole(fields, "holdMs", at_most=MAX_HOLD_MS)
        try:
            held = [lane.hold_buffer(name, holder="consumers", cause=by, hold_ms=hold_ms) for lane in self._lanes]
        except TooManyHolds:
            # A lane raises this only if it has no hold of consumers, and the DynamoDB lane, which is first, has by now
            # at most the hold that this call has begun.
            for lane in self._lanes[:-1]:
                lane.resume_buffer(name, holder="consumers", cause=by)
            raise
        self._takeovers.end_steps(name)
        return {"heldUntil": held[-1].held_until_ms}  # the other lane's hold ends a moment earlier

    def resume(self, fields: Json) -> Json:
        """End the caller's hold, in all lanes. Return the end of the hold that remains, or None if there is none."""
        name, by = _conversation(fields), mend_id(fields["by"])
        return _still_held([lane.resume_buffer(name, holder="consumers", cause=by) for lane in self._lanes])

    def hand_off(self, fields: Json) -> Json:
        """Hand the conversation to people. Return the end, None if there is no limit.

        Raise TooManyHolds if consumers have begun too many hand-offs in this hour.
        """
        name, initiator = _conversation(fields, "holdMs", "reason"), _initiator(fields, "reason")
        hold_ms = _whole(fields, "holdMs") if "holdMs" in fields else None
        if not self._takeovers.count_hand_off(self._clock()):
            raise TooManyHolds("consumers have begun too many hand-offs in this hour; try again later")
        until_ms = self._hand_offs.begin(parse_conversation_id(name), initiator, hold_ms=hold_ms)
        return {"handedOffUntil": until_ms}

    def hand_back(self, fields: Json) -> Json:
        """End a hand-off, also another caller's. Return the end of the hold that remains, or None if there is none."""
        name = _conversation(fields, "reason")
        outcomes, _ = self._hand_offs.end(parse_conversation_id(name), _initiator(fields, "reason"))
        return _still_held(outcomes)

    def complete(self, fields: Json) -> Json:
        """Publish that the conversation's task is done, with the messages that arrived until `at`. Return that time.

        Without `at`, it is the present time.
        """
        name, now_ms = _conversation(fields, "at", "summary"), self._clock()
        at_ms = _whole(fields, "at", at_most=now_ms) if "at" in fields else now_ms
        self._hand_offs.complete(parse_conversation_id(name), _initiator(fields, "summary"), at_ms=at_ms)
        return {"at": at_ms}


def operations_of(gate: Gate) -> Mapping[str, Operation]:
    return {
        "conversation.hold": gate.hold,
        "conversation.resume": gate.resume,
        "conversation.handoff": gate.hand_off,
        "conversation.handback": gate.hand_back,
        "conversation.complete": gate.complete,
        "gate": gate.ask,
    }


def _still_held(outcomes: Iterable[ResumeOutcome]) -> Json:
    return {"heldUntil": max((each.held_until_ms for each in outcomes if isinstance(each, OnHold)), default=None)}


# Check the requests without pydantic, whose import would make the gate's cold start a third longer.


def _conversation(fields: Json, *more: str) -> str:
    """Return the conversation's id in the form that ingest uses. Raise InvalidInput if the request is not valid."""
    valid = ("by", "conversation", *more)
    for name in fields:
        if name not in valid:
            raise InvalidInput(f"{name} is unknown here; valid: {', '.join(valid)}.")
    _text(fields, "by", MAX_CALLER_CHARACTERS)
    return str(parse_conversation_id(_text(fields, "conversation", MAX_ID_CHARACTERS)))


def _initiator(fields: Json, reason: str) -> Initiator:
    by = mend_id(fields["by"])
    return Initiator(by, by, _text(fields, reason, MAX_REASON_CHARACTERS) if reason in fields else None)


def _text(fields: Json, name: str, most: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise InvalidInput(f"{name}: must be a text of 1 to {most} characters.")
    return value


def _whole(fields: Json, name: str, *, at_most: int | None = None) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (at_most and value > at_most):
        raise InvalidInput(f"{name}: must be a whole number, {f'from 1 to {at_most}' if at_most else '1 or more'}.")
    return value
