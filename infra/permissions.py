"""Grants the functions all of their permissions: exactly the actions that they call. No other module grants any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aws_cdk as cdk

from .function import Function, grant, suppress_finding
from .queues import CONSUME
from .settings_and_defaults import ResponderConfig, without_profile
from .storage import BATCHES, DEAD_LETTERS, IDLE_BY_TIME, OPEN_WINDOWS, OversizeBucket, TableConstruct

if TYPE_CHECKING:
    from .buffer import BufferStack
    from .cache import CacheStack
    from .dynamodb_lane import DynamoDbLaneResources
    from .responder import ResponderStack

INVOKE, PUBLISH, SEND = "lambda:InvokeFunction", "events:PutEvents", "sqs:SendMessage"
READ_SECRET = "secretsmanager:GetSecretValue"  # noqa: S105 - the name of an action
UNKNOWN_NAMES = "Objects are named after future batches, so a policy can only name their folder."


def grant_to_entrances(stack: BufferStack) -> None:
    """Grant ingest, admin and gate access to secrets, tables, bus, dead letters and the lanes."""
    ingest, admin, gate = stack.ingest, stack.admin, stack.gate
    grant(ingest, READ_SECRET, on=stack.webhook_secrets.policy_arn)
    _grant_table(ingest, stack.rules_table, "GetItem", "Scan")
    _grant_table(ingest, stack.takeovers_table, "GetItem", "UpdateItem")
    _grant_table(ingest, stack.aliases_table, "GetItem", "PutItem")
    grant(ingest, PUBLISH, on=stack.bus.event_bus_arn)
    grant(ingest, SEND, on=stack.dead_letters.queue_arn)
    if stack.whatsapp_queues:
        grant(ingest, SEND, on=stack.whatsapp_queues.unreadable.queue_arn)

    grant(admin, INVOKE, on=stack.emitter.entrance.function_arn)
    grant(admin, INVOKE, on=ingest.entrance.function_arn)
    grant(admin, PUBLISH, on=stack.bus.event_bus_arn)
    all_dead_letters = [stack.dead_letters, *(each.dead_letters for each in stack.queues.values())]
    grant(admin, *CONSUME, on=[each.queue_arn for each in all_dead_letters])
    _grant_forget_objects(admin, stack.oversize)
    _grant_table(admin, stack.rules_table, "GetItem", "Scan", "PutItem", "DeleteItem")
    _grant_table(admin, stack.takeovers_table, "GetItem", "UpdateItem", "DeleteItem")
    _grant_table(admin, stack.aliases_table, "GetItem", "DeleteItem")
    _grant_table(admin, stack.tuning_table, "Query", "Scan")

    _grant_table(gate, stack.takeovers_table, "GetItem", "UpdateItem")
    for function in (admin, gate):
        grant(function, "dynamodb:Query", on=f"{stack.takeovers_table.table_arn}/index/{IDLE_BY_TIME}")
    grant(gate, PUBLISH, on=stack.bus.event_bus_arn)

    if valkey := stack.valkey_lane:
        for function in (ingest, admin, gate):
            grant(function, INVOKE, on=valkey.startable_arn)
    if dynamodb := stack.dynamodb_lane:
        writes = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
        _grant_table(ingest, dynamodb.table, "GetItem", "Query", *writes)
        grant(ingest, SEND, on=dynamodb.triggers.queue_arn)
        _grant_end_windows(admin, dynamodb)
        _grant_table(admin, dynamodb.table, "DeleteItem")
        _grant_table(gate, dynamodb.table, "GetItem", "UpdateItem")
        grant(gate, SEND, on=dynamodb.triggers.queue_arn)


def grant_to_lanes(stack: BufferStack) -> None:
    """Let the functions of each lane start each other, end windows, and emit batches."""
    if valkey := stack.valkey_lane:
        for function in (valkey.processor, valkey.conversation_processor, valkey.watchdog):
            grant(function, INVOKE, on=valkey.startable_arn)
        grant(valkey.processor, INVOKE, on=valkey.conversation_processor.entrance.function_arn)
        _grant_emit(valkey.conversation_processor, stack)
    if dynamodb := stack.dynamodb_lane:
        _grant_emit(dynamodb.processor, stack)
        _grant_end_windows(dynamodb.processor, dynamodb)


def grant_cache(cache: CacheStack, buffer: BufferStack) -> None:
    """Let the functions that call Valkey sign in to the cache as its user."""
    for function in buffer.functions.values():
        if function.calls_valkey:
            grant(function, "elasticache:Connect", on=cache.arns)


def grant_to_canary(stack: BufferStack) -> None:
    """Let the canary sign webhooks, and receive from its queue."""
    if canary := stack.canary:
        grant(canary.function, READ_SECRET, on=stack.webhook_secrets.policy_arn)
        grant(canary.function, "sqs:ReceiveMessage", "sqs:DeleteMessage", on=canary.queue.queue_arn)


def grant_to_responder(stack: ResponderStack, buffer: BufferStack, responder: ResponderConfig) -> None:
    """Grant the responder its own storage, its assistant, and the access to the buffer that any consumer could have."""
    function = stack.function
    _grant_table(function, stack.table, "GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query")
    grant(function, READ_SECRET, on=stack.secrets.policy_arn)
    named = stack.format_arn(
        service="secretsmanager",
        resource="secret",
        resource_name=f"{stack.secret_prefix}*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    grant(function, READ_SECRET, on=named)
    # A finding names an account that is not known yet in this way.
    named = named if stack.account.isdigit() else named.replace(stack.account, "<AWS::AccountId>")
    _suppress(function, named, "Operators create secrets for accounts and tenants, so only their prefix is known.")
    # CloudFormation looks up an output of another stack once for each reference to it, so each list is one output.
    consumed = stack.consumed.values()
    for actions, queues, output in (
        (CONSUME, [each.queue for each in consumed], "ConsumedQueueArns"),
        ((SEND,), [each.dead_letters for each in consumed], "ConsumedQueueDeadLetterArns"),
    ):
        cdk.CfnOutput(buffer, output, value=cdk.Fn.join(",", [queue.queue_arn for queue in queues]))
        # CloudFormation's schema knows no look-up in Fn::Split, but one in Fn::Sub.
        arns = cdk.Fn.sub("${arns}", {"arns": cdk.Fn.get_stack_output(buffer.stack_name, output)})
        grant(function, *actions, on=cdk.Fn.split(",", arns))
    grant(function, INVOKE, on=buffer.gate.entrance.function_arn)
    grant(function, PUBLISH, on=stack.bus.event_bus_arn)
    # Give the export a fixed name, because the finding that is suppressed contains the export's name.
    exported = f"{buffer.stack_name}-OversizeBucketArn"
    grant(function, "s3:GetObject", on=f"{buffer.export_value(buffer.oversize.bucket_arn, name=exported)}/{BATCHES}")
    _suppress(function, f"{exported}/{BATCHES}", UNKNOWN_NAMES)
    if not isinstance(responder.assistant, str):
        grant(function, INVOKE, on=responder.assistant.function)
    for arn in _model_arns(stack, responder.model) if responder.assistant == "bedrock" else ():
        grant(function, "bedrock:InvokeModel", on=arn)
        if "*" in arn:
            reason = "An inference profile forwards a request to any of its regions, so only the model can be named."
            _suppress(function, arn, reason)


def _grant_table(function: Function, table: TableConstruct, *actions: str) -> None:
    grant(function, *(f"dynamodb:{action}" for action in actions), on=table.table_arn)


def _grant_end_windows(function: Function, lane: DynamoDbLaneResources) -> None:
    """Let `function` find open windows, freeze their batches, and erase messages or mark them as emitted."""
    _grant_table(function, lane.table, "GetItem", "UpdateItem", "Query", "BatchGetItem", "BatchWriteItem")
    grant(function, "dynamodb:Query", on=f"{lane.table.table_arn}/index/{OPEN_WINDOWS}")
    grant(function, SEND, on=lane.triggers.queue_arn)


def _grant_emit(function: Function, stack: BufferStack) -> None:
    """Let `function` emit batches, dead-letter those that it cannot emit, and emit dead letters again."""
    grant(function, PUBLISH, on=stack.bus.event_bus_arn)
    _grant_table(function, stack.takeovers_table, "UpdateItem")
    _grant_table(function, stack.tuning_table, "UpdateItem")
    grant(function, SEND, on=[stack.dead_letters.queue_arn, *(each.queue.queue_arn for each in stack.queues.values())])
    grant(function, "s3:PutObject", on=stack.oversize.arn_for_objects(BATCHES))
    grant(function, "s3:PutObject", "s3:GetObject", on=stack.oversize.arn_for_objects(DEAD_LETTERS))
    for folder in (BATCHES, DEAD_LETTERS):
        _suppress(function, f"<Oversize.Arn>/{folder}", UNKNOWN_NAMES)


def _grant_forget_objects(function: Function, bucket: OversizeBucket) -> None:
    """Let `function` find the objects of a conversation and delete them. It cannot read them."""
    folders = (BATCHES, DEAD_LETTERS)
    for statement in grant(function, "s3:ListBucket", on=bucket.bucket_arn).principal_statements:
        statement.add_conditions({"StringLike": {"s3:prefix": list(folders)}})
    for folder in folders:
        grant(function, "s3:DeleteObject", on=bucket.arn_for_objects(folder))
        _suppress(function, f"<Oversize.Arn>/{folder}", UNKNOWN_NAMES)


def _suppress(function: Function, resource: str, reason: str) -> None:
    assert function.role is not None
    suppress_finding(function.role, f"AwsSolutions-IAM5[Resource::{resource}]", reason)


def _model_arns(stack: cdk.Stack, model: str) -> list[str]:
    """Return the ARNs to allow: a model in this region, or an inference profile and its model in all regions."""
    if model.startswith("arn:"):
        name = model.partition(":inference-profile/")[2]
        return [model, *(_model_arns(stack, name)[1:] if name else [])]
    target = without_profile(model)
    if target == model:
        return [f"arn:{stack.partition}:bedrock:{stack.region}::foundation-model/{model}"]
    return [
        stack.format_arn(service="bedrock", resource="inference-profile", resource_name=model),
        f"arn:{stack.partition}:bedrock:*::foundation-model/{target}",
    ]
