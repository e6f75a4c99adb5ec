"""The message buffer as its consumers see it: they may ask the function `gate`."""

from collections.abc import Mapping
from typing import Protocol

from responder.batch import Batch
from responder.errors import Busy
from responder.json_object import Json
from responder.limits import MAX_GATE_ANSWER_SECONDS, MAX_HOLD_MS


class Buffer(Protocol):
    def newest_generation(self, batch: Batch) -> int: ...

    def hold(self, conversation: str, hold_ms: int) -> None: ...


class CallsFunctions(Protocol):
    def call(self, function: str, payload: Mapping[str, object], *, answer_seconds: float) -> Json: ...


class BufferClient:
    """Asks the function `gate`. Raises Busy if it refuses, and SendFailed if it cannot be reached."""

    def __init__(self, functions: CallsFunctions, gate_function: str, *, by: str) -> None:
        self._functions = functions
        self._gate_function = gate_function
        self._by = by

    def newest_generation(self, batch: Batch) -> int:
        """Return the generation that the batch's conversation now has in the batch's lane."""
        fields = {"conversation": str(batch.conversation), "generation": batch.generation, "lane": batch.lane}
        return int(self._ask("gate", **fields)["current"])

    def hold(self, conversation: str, hold_ms: int) -> None:
        """Hold the conversation's buffer for `hold_ms`, but at most for the longest hold that the gate accepts."""
        self._ask("conversation.hold", conversation=conversation, holdMs=min(max(hold_ms, 1), MAX_HOLD_MS))

    def _ask(self, operation: str, **fields: object) -> Json:
        event = {"operation": operation, "by": self._by, **fields}
        answer = self._functions.call(self._gate_function, event, answer_seconds=MAX_GATE_ANSWER_SECONDS)
        if answer.get("ok"):
            result: Json = answer["result"]
            return result
        raise Busy(f"{operation}: {answer.get('error', {}).get('code', 'failed')}")
