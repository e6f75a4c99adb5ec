"""Decides whether a reply may still be sent. A human agent may have taken over, or the customer may have written again.

While the conversation is on hold, or handed off to people, nothing is sent, whatever the policy. Otherwise:

| policy | the gate may close | then the turn |
|---|---|---|
| deliver | never | |
| discard_and_merge | before the first part | goes back to the queue, and is answered with the newer batch as one turn |
| interrupt | before any part | before the first part, as above; later, the turn ends with the parts that were sent |

A turn goes back for a bounded time. After that its reply is sent without asking for newer messages, because these may
have been cancelled, or the customer may never stop writing.
"""

from typing import NamedTuple

from lambdas.responder.batch import Batch
from lambdas.responder.errors import CallBusy
from message_buffer.aws.functions import Functions
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId

# The function `gate` may need a cold start, and then calls Valkey or DynamoDB.
MAX_GATE_ANSWER_SECONDS = 6.0
# The gate refuses a longer reason or summary.
MAX_REASON_CHARACTERS = 1_000
DELIVER, DISCARD_AND_MERGE, INTERRUPT = "deliver", "discard_and_merge", "interrupt"


class GateCheck(NamedTuple):
    """The buffer's response to the question whether a part may be sent."""

    hold: Json | None
    """A hold by people or by a consumer, or the mark that people have the conversation, as the gate describes it."""
    newer: bool
    """The customer has written messages after the turn, and the policy lets them close the gate."""


class BufferClient:
    """Calls the function `gate`, the only function of the message buffer that consumers may call.

    Raises CallBusy if the function refuses, and SendFailed if it cannot be reached.
    """

    def __init__(self, functions: Functions, gate_function: str, *, by: str) -> None:
        self._functions = functions
        self._gate_function = gate_function
        self._by = by

    def call(self, operation: str, conversation: ConversationId, **fields: object) -> Json:
        """Return the result of an operation on the conversation. docs/responder.md lists the operations."""
        event = {"operation": operation, "by": self._by, "conversation": str(conversation), **fields}
        response = self._functions.call(self._gate_function, event, response_seconds=MAX_GATE_ANSWER_SECONDS)
        if response.get("ok"):
            result: Json = response["result"]
            return result
        raise CallBusy(f"{operation}: {response.get('error', {}).get('code', 'failed')}")


def check_gate(
    buffer: BufferClient, policy: str, batch: Batch, *, parts_sent: int, has_waited: bool, sending: bool = True
) -> GateCheck:
    """Ask the buffer whether the next part may be sent. The result may be outdated at once.

    `batch` is the newest batch of the turn. `has_waited` says that the turn went back for long enough, and `sending`
    that the part is ready, so the buffer notes the time of a reply.
    """
    fields: Json = {"lane": batch.lane, "sending": True} if sending else {}
    if not has_waited and policy != DELIVER and (not parts_sent or policy == INTERRUPT):
        fields |= {"generation": batch.generation, "lane": batch.lane}
    # Without the generation, the gate answers even in an outage of Valkey.
    seen = buffer.call("gate", batch.conversation, **fields)
    return GateCheck(next(iter(seen["holds"]), None), newer=seen.get("newer", False))
