"""Runs an event's operation and returns `{"ok": true, "result"}` or `{"ok": false, "error": {"code", "message"}}`.

Codes: `invalid` (the request is not valid), `not_found`, `conflict` (the rules have changed since they were read),
`refused` (the operation failed), `unavailable` (Valkey or AWS cannot be reached; try again), `failed` (a bug). No error
is raised for a caller's mistake.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.errors import NotFound
from lambdas.admin.forgetting import Forgetting
from lambdas.admin.gate.service import Gate
from lambdas.admin.requests import (
    AskGate,
    DeleteRules,
    ExplainRules,
    ForgetConversation,
    HoldConversation,
    ListConversations,
    ListDeadLetters,
    ListRules,
    LookUpId,
    OfConversation,
    OfDeadLetter,
    OfScope,
    R,
    Request,
    SetRules,
    ShowConversation,
    ShowDeadLetter,
    read_request,
)
from lambdas.admin.rules import RulesAdmin
from lambdas.limits import MAX_CALLER_CHARACTERS
from message_buffer.errors import InvalidInput, MessageBufferError, RulesConflict, StoreError
from message_buffer.messages.wire_form import Json
from message_buffer.telemetry import Telemetry

Operation = Callable[[Json], Json]

# The request's fields that name the caller and the subject, with their names in the log. A function cannot know who
# invoked it, so the caller's name is only a claim. CloudTrail records the true caller under the request's id.
NAMED_IN_THE_LOG = {"by": "claimedBy", "conversation": "conversation", "scope": "scope", "batchId": "batchId"}


def operations_of(
    conversations: Conversations,
    rules: RulesAdmin,
    dead_letters: DeadLetters,
    *,
    forgetting: Forgetting,
    telemetry: Telemetry,
) -> Mapping[str, Operation]:
    return {
        "status": _on(Request, conversations.status),
        "conversation.list": _on(ListConversations, conversations.list),
        "conversation.show": _on(ShowConversation, conversations.show),
        "conversation.flush": _on(OfConversation, conversations.flush),
        "conversation.cancel": _on(OfConversation, conversations.cancel),
        "conversation.resume": _on(OfConversation, conversations.resume),
        "conversation.forget": _on(ForgetConversation, forgetting.forget),
        "id.look_up": _on(LookUpId, lambda request: {"logged": telemetry.logged_id(request.id)}),
        **gate_operations_of(conversations),
        "rules.list": _on(ListRules, rules.list),
        "rules.get": _on(OfScope, rules.get),
        "rules.set": _on(SetRules, rules.set),
        "rules.delete": _on(DeleteRules, rules.delete),
        "rules.explain": _on(ExplainRules, rules.explain),
        "dead.list": _on(ListDeadLetters, dead_letters.list),
        "dead.show": _on(ShowDeadLetter, dead_letters.show),
        "dead.redrive": _on(OfDeadLetter, dead_letters.redrive),
    }


def gate_operations_of(gate: Gate) -> Mapping[str, Operation]:
    """Return the operations that consumers may invoke. They read no message and change no rule."""
    return {
        "conversation.hold": _on(HoldConversation, gate.hold),
        "gate": _on(AskGate, gate.gate),
    }


def _on(model: type[R], run: Callable[[R], Json]) -> Operation:
    return lambda fields: run(read_request(model, fields))


class Admin:
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
            self._log(name, fields, _code(error), request_id)
            return _refusal(_code(error), str(error))
        except Exception as error:  # noqa: BLE001 - the boundary: log an unforeseen error, and refuse
            self._telemetry.crash("admin failed", error, operation=name)
            return _refusal("failed", "Something went wrong here; the function's log says where.")
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
        case NotFound():
            return "not_found"
        case RulesConflict():
            return "conflict"
        case _ if error.retryable:
            return "unavailable"
    return "refused"


def _refusal(code: str, message: str) -> Json:
    return {"ok": False, "error": {"code": code, "message": message}}
