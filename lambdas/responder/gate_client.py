"""Calls the function `gate`, the only function of the message buffer that consumers may call."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from lambdas.responder.batch import Batch
from lambdas.responder.errors import CallBusy
from message_buffer.json_object import Json

# The function `gate` may need a cold start, and then calls Valkey or DynamoDB.
MAX_GATE_ANSWER_SECONDS = 6.0


class OthersHold(NamedTuple):
    """A hold by people or by another consumer. If it is a consumer's, `cause` is the consumer's name."""

    holder: str
    cause: str
    until_ms: int


class Buffer(Protocol):
    def newest_generation(self, batch: Batch) -> tuple[int, OthersHold | None]: ...

    def hold_of_another(self, batch: Batch) -> OthersHold | None: ...

    def hold(self, conversation: str, hold_ms: int) -> None: ...


class CallsFunctions(Protocol):
    def call(self, function: str, payload: Mapping[str, object], *, response_seconds: float) -> Json: ...


class BufferClient:
    """Asks the function `gate`. Raises CallBusy if it refuses, and SendFailed if it cannot be reached."""

    def __init__(self, functions: CallsFunctions, gate_function: str, *, by: str) -> None:
        self._functions = functions
        self._gate_function = gate_function
        self._by = by

    def newest_generation(self, batch: Batch) -> tuple[int, OthersHold | None]:
        """Return the conversation's present generation in the batch's lane, and a hold that is not ours, or None."""
        fields = {"conversation": str(batch.conversation), "generation": batch.generation, "lane": batch.lane}
        seen = self._ask("gate", **fields)
        return int(seen["current"]), self._of_another(seen)

    def hold_of_another(self, batch: Batch) -> OthersHold | None:
        """Return a hold that is not ours, or None. Unlike `newest_generation`, this works in an outage of Valkey."""
        return self._of_another(self._ask("gate", conversation=str(batch.conversation)))

    def _of_another(self, seen: Json) -> OthersHold | None:
        for each in seen["holds"]:
            if (each["holder"], each["cause"]) != ("consumers", self._by):
                return OthersHold(each["holder"], each["cause"], int(each["until"]))
        return None

    def hold(self, conversation: str, hold_ms: int) -> None:
        self._ask("conversation.hold", conversation=conversation, holdMs=hold_ms)

    def _ask(self, operation: str, **fields: object) -> Json:
        event = {"operation": operation, "by": self._by, **fields}
        response = self._functions.call(self._gate_function, event, response_seconds=MAX_GATE_ANSWER_SECONDS)
        if response.get("ok"):
            result: Json = response["result"]
            return result
        raise CallBusy(f"{operation}: {response.get('error', {}).get('code', 'failed')}")
