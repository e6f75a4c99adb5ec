"""Runs the operation that an event names: for operators in the admin function, for consumers in the gate.

An event is `{"operation": "conversation.show", "by": "arn:…", "conversation": "…"}`. The response is
`{"ok": true, "result"}` or `{"ok": false, "error": {"code", "message"}}`.

Codes: `invalid` (the request is not valid), `not_found`, `conflict` (the rules have changed since they were read),
`refused` (the operation failed), `unavailable` (Valkey or AWS cannot be reached; try again), `failed` (a bug). A
caller's mistake is returned, not raised.
"""

from collections.abc import Callable, Mapping
from typing import Any

from message_buffer.errors import InvalidInput, MessageBufferError, RulesConflict, StoreError
from message_buffer.json_object import Json
from message_buffer.telemetry import Telemetry

# The maximum length of a name in a request. The longest names are scopes that consist of a short prefix and a
# conversation id.
MAX_ID_CHARACTERS = 1_100
# The ARN of an assumed role has at most 168 characters. A log line shows this many characters of every name.
MAX_CALLER_CHARACTERS = 256
# A schedule runs these each minute. Only their failures are logged, with the reason, since nobody reads the response.
OF_EVERY_MINUTE = frozenset({"idle.pass"})
Operation = Callable[[Json], Json]

# The request's fields that name the caller and the subject, with their names in the log. A function cannot know who
# invoked it, so the caller's name is only a claim. CloudTrail records the true caller under the request's id.
NAMED_IN_THE_LOG = {
    "by": "claimedBy", "conversation": "conversation", "tenant": "tenant", "scope": "scope", "batchId": "batchId",
}  # fmt: skip


class SubjectNotFound(MessageBufferError):
    """The conversation, the rules or the dead letter do not exist."""


class OperationRefused(MessageBufferError):
    """The operation failed, and the error's text says why."""


class Operations:
    def __init__(self, operations: Mapping[str, Operation], telemetry: Telemetry) -> None:
        self._operations = operations
        self._telemetry = telemetry

    def answer(self, event: Any, *, request_id: str) -> Json:
        fields = dict(event) if isinstance(event, dict) else {}
        name = fields.pop("operation", None)
        operation = self._operations.get(name) if isinstance(name, str) else None
        if operation is None:
            return _refusal("invalid", f"There is no such operation; valid: {', '.join(self._operations)}.")
        assert isinstance(name, str)
        try:
            result = operation(fields)
        except MessageBufferError as error:
            if isinstance(error, StoreError):
                self._telemetry.count("StoreFailures")
            if name in OF_EVERY_MINUTE:
                self._telemetry.warn("idle pass failed", reason=str(error))
            else:
                self._log(name, fields, _code(error), request_id)
            return _refusal(_code(error), str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: log an unforeseen error, and refuse
            self._telemetry.crash("admin failed", error, operation=name)
            return _refusal("failed", "Something went wrong here; the function's log says where.")
        if name not in OF_EVERY_MINUTE:
            self._log(name, fields, "ok", request_id)
        return {"ok": True, "result": result}

    def _log(self, operation: str, fields: Json, outcome: str, request_id: str) -> None:
        """Log the operation, its caller and its subject; never texts or rules, since these may contain anything."""
        named = {
            logged: str(fields[name])[:MAX_CALLER_CHARACTERS]
            for name, logged in NAMED_IN_THE_LOG.items()
            if name in fields
        }
        self._telemetry.info("operator", operation=operation, outcome=outcome, requestId=request_id, **named)


def _code(error: MessageBufferError) -> str:
    match error:
        case InvalidInput():
            return "invalid"
        case SubjectNotFound():
            return "not_found"
        case RulesConflict():
            return "conflict"
        case _ if error.retryable:
            return "unavailable"
    return "refused"


def _refusal(code: str, message: str) -> Json:
    return {"ok": False, "error": {"code": code, "message": message}}
