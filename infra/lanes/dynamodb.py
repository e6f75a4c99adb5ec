"""The DynamoDB lane on DynamoDB and SQS: for a stage without Valkey, and for when Valkey cannot be reached."""

from dataclasses import replace

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from infra import environment
from infra.environment import EventDestinations, TableAndTriggers
from infra.function import Function, Runtime
from infra.storage import MessageTable, Queue, grant_emit

TIMEOUT = cdk.Duration.seconds(30)
SWEEP_RATE = cdk.Duration.minutes(1)
# One that takes long keeps no other waiting, whose time in the queue would run out meanwhile.
TRIGGERS_AT_ONCE = 1

# What each function asks of the table.
ACTIONS = {
    "ingest": ("GetItem", "PutItem", "UpdateItem", "Query", "BatchWriteItem"),
    "admin": ("GetItem", "UpdateItem", "Query", "BatchWriteItem"),
    "conversation_processor": ("GetItem", "PutItem", "UpdateItem", "BatchGetItem"),
    "dynamodb_processor": ("GetItem", "UpdateItem", "Query", "BatchWriteItem"),
}
READ_THE_INDEX = {"admin", "dynamodb_processor"}


class DynamoDbLane:
    def __init__(self, scope: Construct, *, runtime: Runtime, destinations: EventDestinations) -> None:
        config = runtime.config
        self._table = MessageTable(scope, "Holding", config=config)
        triggers = Queue(
            scope,
            "Triggers",
            config=config,
            # Whoever finds the conversation taken gives the trigger back for some seconds: it must not rest for longer.
            visibility=TIMEOUT,
            no_dead_letters_because="A trigger holds no message, and the sweep sends it again; what cannot be emitted "
            "becomes a dead letter with its messages.",
        )
        self.table_and_triggers = TableAndTriggers(self._table, triggers)
        self.processor = Function(
            scope,
            "dynamodb_processor",
            # It asks the table alone, whatever Valkey has: it needs neither the cache nor its network.
            runtime=replace(runtime, valkey=None, placement=None),
            memory_mb=config.memory.dynamodb_processor,
            timeout=TIMEOUT,
            environment=environment.dynamodb_processor(
                config=config, table_and_triggers=self.table_and_triggers, destinations=destinations
            ),
            # What came during a window gets the next one: a conversation in which people go on is a chain without end.
            in_a_loop=True,
        )
        grant_emit(self.processor, destinations)
        self.grant_table(self.processor, "dynamodb_processor")
        self.processor.add_event_source(
            SqsEventSource(triggers, batch_size=TRIGGERS_AT_ONCE, report_batch_item_failures=True)
        )
        events.Rule(
            scope,
            "SweepEveryMinute",
            schedule=events.Schedule.rate(SWEEP_RATE),
            targets=[
                targets.LambdaFunction(
                    self.processor,
                    event=events.RuleTargetInput.from_object({"sweep": True}),
                    retry_attempts=0,
                    max_event_age=SWEEP_RATE,
                )
            ],
        )

    def grant_table(self, function: Function, role: str) -> None:
        """Read and write what is held, and end windows."""
        function.allow(*(f"dynamodb:{action}" for action in ACTIONS[role]), on=self._table.table_arn)
        if role in READ_THE_INDEX:
            function.allow("dynamodb:Query", on=self._table.open_arn)
        function.allow("sqs:SendMessage", on=self.table_and_triggers.triggers.queue_arn)
