"""Decides whether a reply may still be sent. A human agent may have taken over, or the customer may have written again.

While the conversation is on hold, nothing is sent, whatever the policy. Otherwise:

| policy | the gate may close | then an unsent reply |
|---|---|---|
| deliver | never | |
| discard_and_merge | before the first part | is discarded; the next batch's reply answers both |
| interrupt | before any part | is discarded; the parts that were sent stay in the history |

If the gate closes, the batch is parked for a bounded time. If no newer batch has been answered by then,
the reply is sent after all, because the newer messages may have been cancelled.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lambdas.responder.batch import Batch
from lambdas.responder.errors import CallBusy
from message_buffer.aws.functions import Functions
from message_buffer.json_object import Json

# The function `gate` may need a cold start, and then calls Valkey or DynamoDB.
MAX_GATE_ANSWER_SECONDS = 6.0
# If this many batches are parked, the next batch is answered at once, so that customers who never stop writing get a
# reply, too.
MAX_PARKED_BATCHES = 5
DELIVER, DISCARD_AND_MERGE, INTERRUPT = "deliver", "discard_and_merge", "interrupt"


class ActiveHold(NamedTuple):
    """A hold by people or by a consumer, or a hand-off mark. If it is a consumer's, `cause` is the consumer's name."""

    holder: str
    cause: str
    until_ms: int | None
    """None if a hand-off mark has no limit."""


class ParkedBatch(NamedTuple):
    """A batch whose reply the gate has stopped, and which waits for the next batch."""

    batch_id: str
    generation: int
    lane: str
    text: str
    sent_text: str
    """The parts of the reply that were sent before the gate closed."""


class GateCheck(NamedTuple):
    """The buffer's response to the question whether a part may be sent."""

    hold: ActiveHold | None
    newer: bool
    """The customer has written messages after the batch, and the policy lets them close the gate."""


class BufferClient:
    """Calls the function `gate`, the only function of the message buffer that consumers may call.

    Raises CallBusy if the function refuses, and SendFailed if it cannot be reached.
    """

    def __init__(self, functions: Functions, gate_function: str, *, by: str) -> None:
        self._functions = functions
        self._gate_function = gate_function
        self._by = by

    def newest_generation(self, batch: Batch) -> tuple[int, ActiveHold | None]:
        """Return the conversation's newest generation in the batch's lane, and its hold, if any."""
        fields = {"conversation": str(batch.conversation), "generation": batch.generation, "lane": batch.lane}
        seen = self._ask(**fields)
        return int(seen["current"]), _hold(seen)

    def current_hold(self, batch: Batch) -> ActiveHold | None:
        """Return a hold, or None. Unlike `newest_generation`, this works in an outage of Valkey."""
        return _hold(self._ask(conversation=str(batch.conversation)))

    def _ask(self, **fields: object) -> Json:
        event = {"operation": "gate", "by": self._by, **fields}
        response = self._functions.call(self._gate_function, event, response_seconds=MAX_GATE_ANSWER_SECONDS)
        if response.get("ok"):
            result: Json = response["result"]
            return result
        raise CallBusy(f"gate: {response.get('error', {}).get('code', 'failed')}")


def _hold(seen: Json) -> ActiveHold | None:
    return next((ActiveHold(each["holder"], each["cause"], each["until"]) for each in seen["holds"]), None)


class ReplyGate:
    def __init__(self, policy: str, buffer: BufferClient) -> None:
        self._buffer = buffer
        self._policy = policy

    def check(self, batch: Batch, *, parked: Sequence[ParkedBatch], answered: int, parts_sent: int) -> GateCheck:
        """Ask the buffer whether the next part may be sent. The result may be outdated at once.

        `answered` is the highest generation of the batch's lane that has been answered. Messages of a higher generation
        will arrive in a later batch.
        """
        if not self._obeys_newer_messages(batch, parked, parts_sent):
            return GateCheck(self._buffer.current_hold(batch), newer=False)
        newest, hold = self._buffer.newest_generation(batch)
        # If `answered` is higher than `newest`, ignore it, because the buffer has forgotten the conversation since then
        # and counts from 1 again.
        return GateCheck(hold, newer=newest > max(batch.generation, answered if answered <= newest else 0))

    def _obeys_newer_messages(self, batch: Batch, parked: Sequence[ParkedBatch], parts_sent: int) -> bool:
        if self._policy == DELIVER or len(parked) >= MAX_PARKED_BATCHES:
            return False
        waits_only_once = any(each.batch_id == batch.batch_id for each in parked)
        return not waits_only_once and (not parts_sent or self._policy == INTERRUPT)
