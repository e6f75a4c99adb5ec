"""Returns the operations that operators may invoke, each with the model of its request."""

from collections.abc import Callable, Mapping

from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.forgetting import Forgetting
from lambdas.admin.requests import (
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
from lambdas.operations import Operation
from message_buffer.json_object import Json
from message_buffer.telemetry import Telemetry


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
        "conversation.hold": _on(HoldConversation, conversations.hold),
        "conversation.resume": _on(OfConversation, conversations.resume),
        "conversation.forget": _on(ForgetConversation, forgetting.forget),
        "id.look_up": _on(LookUpId, lambda request: {"logged": telemetry.logged_id(request.id)}),
        "rules.list": _on(ListRules, rules.list),
        "rules.get": _on(OfScope, rules.get),
        "rules.set": _on(SetRules, rules.set),
        "rules.delete": _on(DeleteRules, rules.delete),
        "rules.explain": _on(ExplainRules, rules.explain),
        "dead.list": _on(ListDeadLetters, dead_letters.list),
        "dead.show": _on(ShowDeadLetter, dead_letters.show),
        "dead.redrive": _on(OfDeadLetter, dead_letters.redrive),
    }


def _on(model: type[R], run: Callable[[R], Json]) -> Operation:
    return lambda fields: run(read_request(model, fields))
