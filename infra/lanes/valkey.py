"""The Valkey lane: the processor of each shard, the conversation processors, and the watchdog that repairs what a crash
left behind.
"""

import math

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from infra.cache import CacheStack
from infra.function import Function, Runtime, grant
from infra.limits import (
    MAX_NOTICE_RECEIVES,
    MAX_NOTICES_IN_A_BATCH,
    MAX_WATCHDOG_PASSES_IN_A_BATCH,
    MAX_WATCHDOGS_WITH_NOTICES,
    NOTICE_RETENTION_DAYS,
    RULE_SECONDS,
    SECOND_PASS_RETENTION_SECONDS,
    VISIBILITY_TIMEOUTS,
    WATCHDOG_SECOND_PASS_DELAY_SECONDS,
    WATCHDOG_TIMEOUT_SECONDS,
)
from infra.settings_and_defaults import StageConfig
from infra.storage import EventDestinations, Queue, WindowStorage
from message_buffer.settings import (
    ConnectionSettings,
    ConversationProcessorSettings,
    ProcessorSettings,
    StoreSettings,
    ValkeySettings,
    WatchdogSettings,
)


def valkey_settings(config: StageConfig, cache: CacheStack | None) -> ValkeySettings:
    """Return what a function that calls Valkey must know. Without a cache, the stage is local and has Valkey's URL."""
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
            token_ms=timings.token_ms,
            max_waiting=config.limits.max_waiting_messages,
            max_waiting_bytes=config.limits.max_waiting_bytes,
        ),
        # The processor starts its successor, and a conversation processor may start a processor. CloudFormation can
        # resolve this circular reference only if the name is fixed in advance.
        processor_function=f"message-buffer-{config.name}-processor",
    )


class ValkeyLane:
    """The lane's resources. In a scope of their own they would get new ids, and CloudFormation would replace them."""

    def __init__(
        self,
        scope: Construct,
        *,
        runtime: Runtime,
        valkey: ValkeySettings,
        destinations: EventDestinations,
        windows: WindowStorage | None,
    ) -> None:
        self._scope, self._runtime, self._config, self._valkey = scope, runtime, runtime.config, valkey
        self.undelivered = Queue(
            scope, "Undelivered", config=self._config, no_dead_letters_because="It is itself a queue of dead letters."
        )
        self.notices = Queue(
            scope,
            "Notices",
            config=self._config,
            retention=cdk.Duration.days(NOTICE_RETENTION_DAYS),
            visibility=cdk.Duration.seconds(VISIBILITY_TIMEOUTS * WATCHDOG_TIMEOUT_SECONDS),
            dead_letters=sqs.DeadLetterQueue(queue=self.undelivered, max_receive_count=MAX_NOTICE_RECEIVES),
        )
        self._startable = lambda_.Function.from_function_name(scope, "StartableProcessor", valkey.processor_function)
        self.conversation_processor = self._make_conversation_processor(destinations, windows)
        self.processor = self._make_processor()
        self.watchdog = self._make_watchdog()
        # CloudFormation does not see a reference by name as a dependency, and might create the watchdog first.
        self.watchdog.node.add_dependency(self.processor)
        self._schedule_watchdog()
        self._give_notices_to_watchdog()

    def grant_start_processor(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` start the processor of a shard."""
        return grant(grantee, "lambda:InvokeFunction", on=self._startable.function_arn)

    def _make_processor(self) -> Function:
        return Function(
            self._scope,
            "processor",
            name=self._valkey.processor_function,
            runtime=self._runtime,
            memory_mb=self._config.memory.processor,
            timeout=cdk.Duration.seconds(self._config.timings.processor_life_seconds),
            settings=ProcessorSettings(
                log=self._runtime.log,
                valkey=self._valkey,
                conversation_processor_function=self.conversation_processor.function_name,
                idle_ms=self._config.timings.processor_idle_ms,
                handover_ms=self._config.timings.processor_handover_ms,
            ),
            in_a_loop=True,
            notices=self.notices,
        )

    def _make_conversation_processor(self, destinations: EventDestinations, windows: WindowStorage | None) -> Function:
        return Function(
            self._scope,
            "conversation_processor",
            runtime=self._runtime,
            memory_mb=self._config.memory.conversation_processor,
            timeout=cdk.Duration.seconds(math.ceil(self._config.timings.conversation_processor_timeout_ms / 1_000)),
            settings=ConversationProcessorSettings(
                log=self._runtime.log,
                valkey=self._valkey,
                dynamodb_lane=windows.settings if windows else None,
                emission=destinations.settings(self._config.limits),
            ),
            in_a_loop=True,
            notices=self.notices,
        )

    def _make_watchdog(self) -> Function:
        return Function(
            self._scope,
            "watchdog",
            runtime=self._runtime,
            memory_mb=self._config.memory.watchdog,
            timeout=cdk.Duration.seconds(WATCHDOG_TIMEOUT_SECONDS),
            settings=WatchdogSettings(
                log=self._runtime.log, valkey=self._valkey, notice_queue_url=self.notices.queue_url
            ),
            # The watchdog starts processors, and is invoked with notices of processors that failed.
            in_a_loop=True,
        )

    def _schedule_watchdog(self) -> None:
        """Invoke the watchdog every minute by a rule, and for the pass in between by a queue with a delay."""
        rate = cdk.Duration.seconds(RULE_SECONDS)
        second_pass = Queue(
            self._scope,
            # The logical id of a queue cannot change without replacing it.
            "WatchdogEcho",
            config=self._config,
            delay=cdk.Duration.seconds(WATCHDOG_SECOND_PASS_DELAY_SECONDS),
            visibility=cdk.Duration.seconds(VISIBILITY_TIMEOUTS * WATCHDOG_TIMEOUT_SECONDS),
            retention=cdk.Duration.seconds(SECOND_PASS_RETENTION_SECONDS),
            no_dead_letters_because="A late pass is useless. Alarms report passes that fail or do not happen.",
        )
        self.watchdog.add_event_source(SqsEventSource(second_pass, batch_size=MAX_WATCHDOG_PASSES_IN_A_BATCH))
        events.Rule(
            self._scope,
            "EveryMinute",
            schedule=events.Schedule.rate(rate),
            targets=[
                targets.LambdaFunction(self.watchdog, retry_attempts=0, max_event_age=rate),
                targets.SqsQueue(second_pass, retry_attempts=0, max_event_age=rate),
            ],
        )

    def _give_notices_to_watchdog(self) -> None:
        """Invoke the watchdog with notices, because its passes keep it warm, and it already may start processors."""
        self.watchdog.add_event_source(
            SqsEventSource(
                self.notices,
                batch_size=MAX_NOTICES_IN_A_BATCH,
                report_batch_item_failures=True,
                max_concurrency=MAX_WATCHDOGS_WITH_NOTICES,
            )
        )
