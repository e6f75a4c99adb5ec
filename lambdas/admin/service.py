"""Returns the operations that operators may invoke, each with the model of its request."""

from collections.abc import Callable, Mapping

from lambdas.admin import requests as r
from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.forgetting import Forgetting
from lambdas.admin.requests import R, read_request
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
        "status": _on(r.Request, conversations.status),
        "conversation.list": _on(r.ListConversations, conversations.list),
        "conversation.show": _on(r.ShowConversation, conversations.show),
        "conversation.flush": _on(r.OfConversation, conversations.flush),
        "conversation.cancel": _on(r.OfConversation, conversations.cancel),
        "conversation.hold": _on(r.HoldConversation, conversations.hold),
        "conversation.resume": _on(r.OfConversation, conversations.resume),
        "conversation.forget": _on(r.ForgetConversation, forgetting.forget),
        "id.look_up": _on(r.LookUpId, lambda request: {"logged": telemetry.logged_id(request.id)}),
        "rules.list": _on(r.ListRules, rules.list),
        "rules.get": _on(r.OfScope, rules.get),
        "rules.set": _on(r.SetRules, rules.set),
        "rules.delete": _on(r.DeleteRules, rules.delete),
        "rules.explain": _on(r.ExplainRules, rules.explain),
        "dead.list": _on(r.ListDeadLetters, dead_letters.list),
        "dead.show": _on(r.ShowDeadLetter, dead_letters.show),
        "dead.redrive": _on(r.OfDeadLetter, dead_letters.redrive),
    }


def _on(model: type[R], run: Callable[[R], Json]) -> Operation:
    return lambda fields: run(read_request(model, fields))
