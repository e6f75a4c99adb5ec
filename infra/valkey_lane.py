"""The Valkey lane: the processor of each shard, the conversation processors, and the watchdog that repairs what a crash
left behind.
"""

import math

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from message_buffer.limits import PROCESSOR_LIFE_SECONDS, RULE_SECONDS, SECOND_MS, VISIBILITY_TIMEOUTS, WATCHDOG_PASS_MS
from message_buffer.settings import (
    ConnectionSettings,
    ConversationProcessorSettings,
    EmissionSettings,
    ProcessorSettings,
    StoreSettings,
    ValkeySettings,
    WatchdogSettings,
)

from .cache import CacheStack
from .function import ALIAS, Function, Runtime
from .settings_and_defaults import StageConfig
from .storage import QueueConstruct

# Less than the time between two passes, so that passes rarely overlap.
WATCHDOG_TIMEOUT_SECONDS = 25
# This is enough to take a batch from Valkey, publish it, and complete it or put it back, even if each call is slow.
CONVERSATION_PROCESSOR_TIMEOUT_SECONDS = 24


def valkey_settings(config: StageConfig, cache: CacheStack | None) -> ValkeySettings:
    """Return the settings of a function that calls Valkey. Without a cache, the stage is local and names a URL."""
    timings = config.timings
    return ValkeySettings(
        connection=ConnectionSettings(
            url=cache.url if cache else str(config.valkey_url),
            connect_timeout_ms=timings.connect_ms,
            answer_timeout_ms=timings.answer_ms,
        ),
        iam=cache.iam if cache else None,
        store=StoreSettings(
            shards=config.shards,
            start_ms=timings.start_ms,
            lease_ms=timings.lease_ms,
            claim_ms=timings.claim_timeout_ms,
            slots=config.slots_of_a_shard,
            max_waiting=config.limits.max_waiting_messages,
        ),
        # The processor starts its successor and conversation processors, and these may start a processor. So their
        # settings refer to each other, which CloudFormation accepts only if the processor's name is fixed in advance.
        processor_function=_processor_name(config) + (f":{ALIAS}" if "processor" in config.warmth else ""),
    )


def _processor_name(config: StageConfig) -> str:
    return f"message-buffer-{config.name}-processor"


class ValkeyLaneResources:
    """Creates the lane's resources in the scope of the stack.

    In a scope of their own they would get new ids, and CloudFormation would replace them.
    """

    def __init__(
        self, scope: Construct, *, runtime: Runtime, valkey: ValkeySettings, emission: EmissionSettings
    ) -> None:
        self._scope, self._config = scope, runtime.config
        # After a processor has failed, start a pass of the watchdog a second after the lease has expired.
        self._failures = self._passes_after(
            "ProcessorFailures", seconds=math.ceil(self._config.timings.lease_ms / 1_000) + 1
        )
        startable = lambda_.Function.from_function_name(scope, "StartableProcessor", valkey.processor_function)
        self.startable_arn = startable.function_arn
        self.conversation_processor = Function(
            scope,
            "conversation_processor",
            runtime=runtime,
            timeout=cdk.Duration.seconds(CONVERSATION_PROCESSOR_TIMEOUT_SECONDS),
            settings=ConversationProcessorSettings(log=runtime.log, valkey=valkey, emission=emission),
            in_a_loop=True,
        )
        self.processor = Function(
            scope,
            "processor",
            name=_processor_name(self._config),
            runtime=runtime,
            timeout=cdk.Duration.seconds(PROCESSOR_LIFE_SECONDS),
            settings=ProcessorSettings(
                log=runtime.log,
                valkey=valkey,
                conversation_processor_function=self.conversation_processor.entrance.function_name,
                idle_ms=self._config.timings.processor_idle_ms,
                handover_ms=self._config.timings.processor_handover_ms,
            ),
            in_a_loop=True,
            failures=self._failures,
        )
        self.watchdog = Function(
            scope,
            "watchdog",
            runtime=runtime,
            timeout=cdk.Duration.seconds(WATCHDOG_TIMEOUT_SECONDS),
            settings=WatchdogSettings(log=runtime.log, valkey=valkey),
            # The watchdog starts processors, and is invoked when one of them has failed.
            in_a_loop=True,
        )
        # The watchdog refers to the processor by a fixed name, in which CloudFormation sees no dependency. Without this
        # line, CloudFormation might create the watchdog first.
        self.watchdog.node.add_dependency(self.processor)
        self._schedule_watchdog()

    def _schedule_watchdog(self) -> None:
        """Invoke the watchdog twice a minute, and after each failure of a processor."""
        rate = cdk.Duration.seconds(RULE_SECONDS)
        # A rule runs once a minute at most. So the rule also sends a message to a queue, which delivers it later and so
        # starts the second pass. The queue keeps its old id, because CloudFormation would replace a queue with another
        # id.
        second_pass = self._passes_after("WatchdogEcho", seconds=RULE_SECONDS - WATCHDOG_PASS_MS // SECOND_MS)
        self.watchdog.add_event_source(SqsEventSource(second_pass, batch_size=1))
        # Start one pass for several failed processors, because a pass repairs all shards. Lambda accepts no
        # `max_concurrency` below 2.
        self.watchdog.add_event_source(SqsEventSource(self._failures, batch_size=10, max_concurrency=2))
        events.Rule(
            self._scope,
            "EveryMinute",
            schedule=events.Schedule.rate(rate),
            targets=[
                targets.LambdaFunction(self.watchdog, retry_attempts=0, max_event_age=rate),
                targets.SqsQueue(second_pass, retry_attempts=0, max_event_age=rate),
            ],
        )

    def _passes_after(self, construct_id: str, *, seconds: int) -> QueueConstruct:
        """Create a queue that delivers each message to the watchdog after `seconds`, and so starts a pass."""
        return QueueConstruct(
            self._scope,
            construct_id,
            config=self._config,
            delay=cdk.Duration.seconds(seconds),
            visibility=cdk.Duration.seconds(VISIBILITY_TIMEOUTS * WATCHDOG_TIMEOUT_SECONDS),
            retention=cdk.Duration.minutes(5),
            no_dead_letters_because="A late pass is useless. Alarms report passes that fail or do not happen.",
        )
