"""Carries out the two operations that consumers may invoke."""

from lambdas.admin.requests import AskGate, HoldConversation
from message_buffer.clock import Clock, system_clock
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.messages.wire_form import Json


class Gate:
    """Works on the conversations of a stage with the Valkey lane, the DynamoDB lane, or both."""

    def __init__(
        self,
        valkey_lane: ValkeyLane | None,
        *,
        dynamodb_lane: DynamoDbLane | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._valkey_lane = valkey_lane
        self._dynamodb_lane = dynamodb_lane
        self._lanes = [lane for lane in (valkey_lane, dynamodb_lane) if lane is not None]
        self._clock = clock

    def gate(self, request: AskGate) -> Json:
        """Return whether the author has written again since a consumer's batch. A later message may still follow."""
        name = str(parse_conversation_id(request.conversation))
        lane = self._dynamodb_lane if request.lane == "dynamodb" and self._dynamodb_lane else self._lanes[0]
        current = lane.generation(name)
        return {"current": current, "newer": current > request.generation}

    def hold(self, request: HoldConversation) -> Json:
        """Keep the conversation's messages back, in all lanes. Return when the hold ends."""
        name = str(parse_conversation_id(request.conversation))
        held = [lane.hold_buffer(name, hold_ms=request.hold_ms) for lane in self._lanes]
        return {"heldUntil": held[0].held_until_ms}  # as `show` returns it; the other lane's hold ends a moment later
