"""Lambda entry of the admin function, which only `bufferctl` invokes.

The API has no route to it. IAM decides who may invoke it. For events and responses see `lambdas/operations.py`.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from lambdas.admin import requests as r
from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import BUFFER, DeadLetters
from lambdas.admin.forgetting import Forgetting, Places
from lambdas.admin.requests import R, read_request
from lambdas.admin.rules import RulesAdmin
from lambdas.admin.tuning import Tuning
from lambdas.operations import Operation, Operations
from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.aws import clients as aws
from message_buffer.aws.functions import Functions
from message_buffer.aws.object_store import ObjectStore
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EVENT_VERSION, EventBus
from message_buffer.events.hand_offs import HandOffs
from message_buffer.events.idle import IdleTable
from message_buffer.json_object import Json, to_json
from message_buffer.lanes.opening import open_dynamodb_lane, open_valkey_lane
from message_buffer.rules.queues import HANDOFF
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_table import RulesTable
from message_buffer.settings import AdminSettings, read_settings
from message_buffer.telemetry import Telemetry
from message_buffer.tuning.tuning_table import TuningTable

ACTED = "messages.operator.acted"
# The operations that change nothing. Each of the others publishes an event, so that teams have an audit trail.
READS = {
    "status", "conversation.list", "conversation.show", "id.look_up", "rules.list", "rules.get", "rules.explain",
    "dead.list", "dead.show", "tune.read", "idle.pass",
}  # fmt: skip


class _Call:
    """The current call. A Lambda instance works on only one call at a time."""

    context: Any = None

    def time_left(self) -> int:
        left: int = self.context.get_remaining_time_in_millis()
        return left


@cache
def _parts() -> tuple[Operations, Telemetry, _Call]:
    settings = read_settings(AdminSettings)
    telemetry, call = Telemetry(settings.log), _Call()
    valkey_lane = open_valkey_lane(settings.valkey, telemetry) if settings.valkey else None
    dynamodb_lane = open_dynamodb_lane(settings.dynamodb_lane) if settings.dynamodb_lane else None
    bus, rules_table = EventBus(settings.event_bus), RulesTable(settings.rules_table)
    takeovers = IdleTable(settings.takeovers_table, patience=aws.PATIENT)
    dead_letters = {BUFFER: DeadLetterQueue(settings.dead_letter_queue_url)}
    dead_letters |= zip(settings.queues, map(DeadLetterQueue, settings.queue_dead_letter_urls), strict=True)
    # The DynamoDB lane is first, so that a command reaches it even if Valkey is unavailable.
    lanes = [lane for lane in (dynamodb_lane, valkey_lane) if lane is not None]
    hand_offs = HandOffs(lanes, bus, takeovers, has_queue=HANDOFF in settings.queues)

    rules = RulesAdmin(
        table=rules_table,
        book_of=partial(
            RuleBook,
            stage_rules=settings.rules,
            telemetry=telemetry,
            has_platform_numbers=settings.platform_numbers,
        ),
        queues=settings.queues,
        valkey_lane=valkey_lane,
        dynamodb_lane=dynamodb_lane,
        time_left=call.time_left,
    )
    operations = operations_of(
        Conversations(valkey_lane, bus, hand_offs, dynamodb_lane=dynamodb_lane, agent_of=rules.agent_of),
        rules,
        DeadLetters(dead_letters, Functions(), (settings.redrive_function, settings.ingest_function), call.time_left),
        forgetting=Forgetting(
            [lane for lane in (valkey_lane, dynamodb_lane) if lane is not None],
            Places(
                rules=rules_table,
                objects=ObjectStore(settings.oversize_bucket),
                dead_letters=[*dead_letters.values()],
                takeovers=takeovers,
                ages_out=[{"place": place, "days": days} for place, days in settings.ages_out.items()],
                aliases=AliasesTable(settings.aliases_table),
            ),
            bus=bus,
            time_left=call.time_left,
        ),
        tuning=Tuning(TuningTable(settings.tuning_table), rules, telemetry, call.time_left),
        idle_pass=lambda _request: takeovers.run_pass(lanes, bus, telemetry),
        telemetry=telemetry,
    )
    return Operations(audited(operations, bus, telemetry), telemetry), telemetry, call


def operations_of(
    conversations: Conversations,
    rules: RulesAdmin,
    dead_letters: DeadLetters,
    *,
    forgetting: Forgetting,
    tuning: Tuning,
    idle_pass: Callable[[r.Request], Json],
    telemetry: Telemetry,
) -> Mapping[str, Operation]:
    return {
        "status": _on(r.Request, conversations.status),
        "conversation.list": _on(r.ListConversations, conversations.list),
        "conversation.show": _on(r.ShowConversation, conversations.show),
        "conversation.flush": _on(r.OfConversation, conversations.flush),
        "conversation.cancel": _on(r.OfConversation, conversations.cancel),
        "conversation.hold": _on(r.HoldConversation, conversations.hold),
        "conversation.resume": _on(r.ResumeConversation, conversations.resume),
        "conversation.handoff": _on(r.HandOffConversation, conversations.hand_off),
        "conversation.complete": _on(r.CompleteConversation, conversations.complete),
        "conversation.forget": _on(r.ForgetConversation, forgetting.forget),
        "id.look_up": _on(r.LookUpId, lambda request: {"logged": telemetry.logged_id(request.id)}),
        "rules.list": _on(r.ListRules, rules.list),
        "rules.get": _on(r.OfScope, rules.get),
        "rules.set": _on(r.SetRules, rules.set),
        "rules.undo": _on(r.OfScope, rules.undo),
        "rules.delete": _on(r.DeleteRules, rules.delete),
        "rules.explain": _on(r.ExplainRules, rules.explain),
        "dead.list": _on(r.ListDeadLetters, dead_letters.list),
        "dead.show": _on(r.ShowDeadLetter, dead_letters.show),
        "dead.redrive": _on(r.OfDeadLetter, dead_letters.redrive),
        "tune.read": _on(r.ReadTuning, tuning.read),
        "tune.weekly": _on(r.MoveWaits, tuning.move),
        "idle.pass": _on(r.Request, idle_pass),
    }


def audited(
    operations: Mapping[str, Operation], bus: EventBus, telemetry: Telemetry, *, clock: Clock = system_clock
) -> Mapping[str, Operation]:
    """Return the operations. Those that change something also publish who did it, after they have taken effect."""

    def run(name: str, operation: Operation, fields: Json) -> Json:
        result = operation(fields)
        subject = next(fields[each] for each in ("conversation", "scope", "batchId") if each in fields)
        # Publish the request's numbers and the reason, but no rules, and no words of customers.
        event = {each: value for each, value in fields.items() if isinstance(value, int) or each == "reason"}
        event |= {"moves": result["moves"]} if "moves" in result else {}
        event |= {"version": EVENT_VERSION, "operation": name, "subject": subject, "by": fields["by"], "at": clock()}
        try:
            if not fields.get("dryRun"):
                bus.publish(ACTED, to_json(event).decode())
        except SendFailed as error:  # do not raise: the command has taken effect
            telemetry.warn("command not published", operation=name, reason=str(error))
        return result

    return {name: each if name in READS else partial(run, name, each) for name, each in operations.items()}


def _on(model: type[R], run: Callable[[R], Json]) -> Operation:
    return lambda fields: run(read_request(model, fields))


def handler(event: Any, context: Any) -> dict[str, Any]:
    operations, telemetry, call = _parts()
    call.context = context
    try:
        return operations.answer(event, request_id=context.aws_request_id)
    finally:
        telemetry.flush()
