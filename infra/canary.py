"""The canary: a function that tries the stage every five minutes as a customer, and the queue of its events."""

from dataclasses import replace

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from constructs import Construct

from message_buffer.limits import CANARY_RUN_MS
from message_buffer.settings import CanarySettings

from .bus import SOURCE, TRIAL_TENANT, BatchBus
from .function import Function, Runtime
from .storage import QueueConstruct, SecretConstruct

# This time is longer than the longest default wait of a buffer plus the time to repair any single crash.
CANARY_TIMEOUT_SECONDS = 120
# The beginning of the ids of the canary's conversations.
CONVERSATIONS = f"{TRIAL_TENANT}/generic/canary/"


class CanaryResources:
    """The canary. Its function is not in the stage's network, because it calls the API by its public address."""

    def __init__(
        self, scope: Construct, runtime: Runtime, bus: BatchBus, *, api_url: str, secrets: SecretConstruct
    ) -> None:
        config = runtime.config
        rate = cdk.Duration.millis(CANARY_RUN_MS)
        self.queue = QueueConstruct(
            scope,
            "CanaryEvents",
            config=config,
            # An event that arrives after its run has ended is useless to later runs.
            retention=rate,
            no_dead_letters_because="It contains only the canary's own events.",
        )
        self.function = Function(
            scope,
            "canary",
            runtime=replace(runtime, placement=None),
            timeout=cdk.Duration.seconds(CANARY_TIMEOUT_SECONDS),
            settings=CanarySettings(
                log=runtime.log,
                api_endpoint=api_url,
                webhook_secret_id=secrets.secret_arn,
                queue_url=self.queue.queue_url,
            ),
        )
        events.Rule(
            scope,
            "CanaryBatches",
            event_bus=bus,
            event_pattern=events.EventPattern(
                source=[SOURCE],
                detail_type=["messages.batch.ready"],
                detail={"conversationId": [{"prefix": CONVERSATIONS}]},
            ),
            targets=[targets.SqsQueue(self.queue)],
        )
        events.Rule(
            scope,
            "EveryFiveMinutes",
            schedule=events.Schedule.rate(rate),
            targets=[targets.LambdaFunction(self.function, retry_attempts=0, max_event_age=rate)],
        )
