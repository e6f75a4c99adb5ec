"""The DynamoDB lane: a table, a queue of triggers, and the function that empties windows.

A stage has it instead of Valkey, or as the fallback while Valkey is unavailable.
"""

from dataclasses import replace

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from message_buffer.limits import RULE_SECONDS
from message_buffer.settings import DynamoDbLaneSettings, DynamoDbProcessorSettings, EmissionSettings

from .function import Function, Runtime
from .storage import MessageTableConstruct, QueueConstruct

TIMEOUT = cdk.Duration.seconds(30)
# The most that Lambda accepts without a batching window. A batching window would delay each batch.
TRIGGERS_IN_A_RUN = 10
# How often the rule starts a sweep, which finds windows whose trigger was lost. Each such sweep asks for a second one,
# half a minute later (SECOND_SWEEP_DELAY_MS in lambdas/dynamodb_processor/service.py).
SWEEP_RATE = cdk.Duration.seconds(RULE_SECONDS)


class DynamoDbLaneResources:
    """Creates the lane's resources in the scope of the stack.

    In a scope of their own they would get new ids, and CloudFormation would replace them.
    """

    def __init__(self, scope: Construct, *, runtime: Runtime, emission: EmissionSettings) -> None:
        config = runtime.config
        self.table = MessageTableConstruct(scope, "Holding", config=config)
        self.triggers = QueueConstruct(
            scope,
            "Triggers",
            config=config,
            # After a crash of the processor, the queue delivers the trigger again when a run would have ended. A
            # processor that finds the conversation locked need not wait for that: it lets the queue deliver the trigger
            # again in a few seconds.
            visibility=TIMEOUT,
            no_dead_letters_because="A trigger contains no message, is received again each time its window is not due "
            "yet, and is sent again by the sweep. A batch that cannot be emitted becomes a dead letter with its "
            "messages.",
        )
        self.settings = DynamoDbLaneSettings(table=self.table.table_name, queue_url=self.triggers.queue_url)
        self.processor = Function(
            scope,
            "dynamodb_processor",
            # This processor never calls Valkey, even in a stage that has it, so it does not run in the cache's network.
            runtime=replace(runtime, placement=None),
            timeout=TIMEOUT,
            settings=DynamoDbProcessorSettings(
                log=runtime.log,
                dynamodb_lane=self.settings,
                emission=emission,
            ),
            # Messages that arrive while the processor empties a window are stored in the next window, so a lively
            # conversation causes a chain of triggers without end, which Lambda would mistake for a loop.
            in_a_loop=True,
        )
        # A run receives several triggers. Lambda begins with five runs at once and adds five a second, so with one
        # trigger a run, many windows that are due at the same time would wait for more runs.
        self.processor.add_event_source(
            SqsEventSource(self.triggers, batch_size=TRIGGERS_IN_A_RUN, report_batch_item_failures=True)
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
