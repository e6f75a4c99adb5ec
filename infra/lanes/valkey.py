"""The Valkey lane on Valkey: a processor a shard, conversation processors, and the watchdog that puts right what a
crash left.
"""

import math

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from infra import environment
from infra.environment import EventDestinations, TableAndTriggers
from infra.function import Function, Runtime
from infra.storage import Queue, grant_emit

WATCHDOG_TIMEOUT = cdk.Duration.seconds(25)
# A rule cannot run more often than once a minute: the queue repeats each pass half a minute later.
WATCHDOG_RATE = cdk.Duration.minutes(1)
WATCHDOG_ECHO = cdk.Duration.seconds(30)


class ValkeyLane:
    """Its parts are in the stack itself, where they have always been: in a scope of its own they would be replaced."""

    def __init__(
        self,
        scope: Construct,
        *,
        runtime: Runtime,
        destinations: EventDestinations,
        table_and_triggers: TableAndTriggers | None,
    ) -> None:
        self._scope, self._runtime, self._config = scope, runtime, runtime.config
        self.undelivered = Queue(
            scope, "Undelivered", config=self._config, no_dead_letters_because="It holds the starts that failed."
        )
        # The processor starts itself, and is started by the function it starts: only a name that is known
        # beforehand breaks that circle.
        self._name = f"message-buffer-{self._config.name}-processor"
        self.startable = lambda_.Function.from_function_name(scope, "StartableProcessor", self._name)
        self.conversation_processor = self._make_conversation_processor(destinations, table_and_triggers)
        self.processor = self._make_processor()
        self.watchdog = self._make_watchdog()
        for function in (self.processor, self.conversation_processor, self.watchdog):
            self.grant_start(function)
        # A name is no dependency: without it the watchdog might come before there is a processor.
        self.watchdog.node.add_dependency(self.processor)
        self._wind_up_watchdog()

    def grant_start(self, function: Function) -> None:
        function.allow("lambda:InvokeFunction", on=self.startable.function_arn)

    def _make_processor(self) -> Function:
        function = Function(
            self._scope,
            "processor",
            name=self._name,
            runtime=self._runtime,
            memory_mb=self._config.memory.processor,
            timeout=cdk.Duration.seconds(self._config.timings.processor_life_seconds),
            environment=environment.processor(config=self._config, conversation_processor=self.conversation_processor),
            in_a_loop=True,
            undelivered=self.undelivered,
        )
        function.allow("lambda:InvokeFunction", on=self.conversation_processor.function_arn)
        return function

    def _make_conversation_processor(
        self, destinations: EventDestinations, table_and_triggers: TableAndTriggers | None
    ) -> Function:
        function = Function(
            self._scope,
            "conversation_processor",
            runtime=self._runtime,
            memory_mb=self._config.memory.conversation_processor,
            timeout=cdk.Duration.seconds(math.ceil(self._config.timings.conversation_processor_timeout_ms / 1_000)),
            environment=environment.conversation_processor(
                config=self._config,
                processor=self.startable,
                table_and_triggers=table_and_triggers,
                destinations=destinations,
            ),
            in_a_loop=True,
            undelivered=self.undelivered,
        )
        grant_emit(function, destinations)
        return function

    def _make_watchdog(self) -> Function:
        return Function(
            self._scope,
            "watchdog",
            runtime=self._runtime,
            memory_mb=self._config.memory.watchdog,
            timeout=WATCHDOG_TIMEOUT,
            environment=environment.watchdog(processor=self.startable),
        )

    def _wind_up_watchdog(self) -> None:
        echo = Queue(
            self._scope,
            "WatchdogEcho",
            config=self._config,
            delay=WATCHDOG_ECHO,
            visibility=cdk.Duration.seconds(6 * WATCHDOG_TIMEOUT.to_seconds()),
            # A pass that is late is one too many: the rule brings the next within the minute.
            retention=cdk.Duration.minutes(5),
            no_dead_letters_because="A late pass is worth nothing; that passes fail or stay away has an alarm.",
        )
        self.watchdog.add_event_source(SqsEventSource(echo, batch_size=1))
        events.Rule(
            self._scope,
            "EveryMinute",
            schedule=events.Schedule.rate(WATCHDOG_RATE),
            targets=[
                targets.LambdaFunction(self.watchdog, retry_attempts=0, max_event_age=WATCHDOG_RATE),
                targets.SqsQueue(echo, retry_attempts=0, max_event_age=WATCHDOG_RATE),
            ],
        )
