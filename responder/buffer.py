"""The message buffer as its consumers may ask it: through the admin function."""

from collections.abc import Mapping
from typing import Any, Protocol

from responder.errors import Busy
from responder.event import Batch

Json = dict[str, Any]

ANSWER_SECONDS = 6.0
# What the admin function allows.
LONGEST_HOLD_MS = 86_400_000


class Calls(Protocol):
    def call(self, function: str, payload: Mapping[str, object], *, answer_seconds: float) -> Json: ...


class MessageBuffer:
    def __init__(self, functions: Calls, admin_function: str, *, by: str) -> None:
        self._functions = functions
        self._admin_function = admin_function
        self._by = by

    def newest(self, batch: Batch) -> int:
        """The generation that its conversation has come to."""
        asked = {"conversation": str(batch.conversation), "generation": batch.generation, "lane": batch.lane}
        return int(self._ask("gate", **asked)["current"])

    def hold(self, conversation: str, hold_ms: int) -> None:
        self._ask("conversation.hold", conversation=conversation, holdMs=min(max(hold_ms, 1), LONGEST_HOLD_MS))

    def _ask(self, operation: str, **fields: object) -> Json:
        event = {"operation": operation, "by": self._by, **fields}
        answer = self._functions.call(self._admin_function, event, answer_seconds=ANSWER_SECONDS)
        if answer.get("ok"):
            result: Json = answer["result"]
            return result
        raise Busy(f"{operation}: {answer.get('error', {}).get('code', 'failed')}")
