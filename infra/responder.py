"""Responder stack: the reference consumer, which answers batches on their channels. No other stack depends on it.

The responder runs outside of the stage's network, because it calls AIs and channels on the internet. It never calls
Valkey; it asks the function `gate` instead.
"""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from message_buffer.limits import VISIBILITY_TIMEOUTS
from message_buffer.settings import ResponderOptions, ResponderSettings

from . import permissions
from .buffer import BufferStack
from .bus import SOURCE, TRIAL_TENANT, bus_name
from .function import Function, Runtime, source_code
from .settings_and_defaults import ResponderConfig, StageConfig
from .stack import StageStack
from .storage import QueueConstruct, SecretConstruct, TableConstruct

# How long a queue hides a delivery from other runs. While the responder works on the delivery, it extends this time.
HIDDEN_SECONDS = 30
CONSUMED = ["messages.batch.ready", "messages.conversation.forgotten"]


class ResponderStack(StageStack):
    """The responder with its queue, table and secret."""

    def __init__(
        self,
        scope: Construct,
        config: StageConfig,
        responder: ResponderConfig,
        *,
        source: Path,
        layer: Path,
        buffer: BufferStack,
    ) -> None:
        super().__init__(scope, "Responder", config=config)
        # Weak references to the buffer stack are read only during a deployment. So the buffer stack can remove an
        # output that an older responder stack has used.
        cdk.CrossStackReferences.of(self).consume(cdk.ReferenceStrength.WEAK)
        # After the assistant's reply, the function still calls the channel and the table, and may return the delivery.
        timeout = cdk.Duration.seconds(responder.assistant_seconds + 45)
        self.dead_letters = QueueConstruct(
            self, "ReplyDeadLetters", config=config, no_dead_letters_because="It contains the replies that failed."
        )
        self.queue = QueueConstruct(
            self,
            "Batches",
            config=config,
            # Lambda may receive a delivery some time before it invokes the responder. For this time the queue hides the
            # delivery. A responder that runs hides its delivery for shorter periods.
            visibility=cdk.Duration.seconds(VISIBILITY_TIMEOUTS * timeout.to_seconds()),
            # A delivery that waits for its turn is received many times. Only a delivery that crashes its function each
            # time reaches this number.
            dead_letters=sqs.DeadLetterQueue(queue=self.dead_letters, max_receive_count=100),
        )
        # `lambdas/responder/conversations_table.py` defines the items.
        self.table = TableConstruct(
            self, "Conversations", config=config, partition_key="id", sort_key="part", expires_by="expiresAt"
        )
        self.secrets = SecretConstruct(
            self,
            "ResponderSecrets",
            config=config,
            description="JSON: keys of the AI and of the channels; lambdas/responder/credentials.py says which.",
            not_rotated_because="The AI and the channels issue these keys, so only a person can rotate them there.",
        )
        # Import the secret's ARN, because CloudFormation can then resolve the secret. Whether it can resolve a secret
        # behind a weak reference is not known.
        log = buffer.log
        if log.id_key:
            key = secretsmanager.Secret.from_secret_complete_arn(self, "LogIdKey", buffer.imported_log_id_key)
            log = log._replace(id_key=key.secret_value.unsafe_unwrap())
        self.function = Function(
            self,
            "responder",
            runtime=Runtime(
                config=config,
                code=source_code(source),
                # This stack has a layer of its own, because every change makes a new version, and CloudFormation cannot
                # replace a version that another stack imports.
                layer=lambda_.LayerVersion(self, "Dependencies", code=lambda_.Code.from_asset(str(layer))),
                placement=None,
                log=log,
            ),
            timeout=timeout,
            settings=ResponderSettings(
                log=log,
                conversations_table=self.table.table_name,
                queue_url=self.queue.queue_url,
                dead_letter_queue_url=self.dead_letters.queue_url,
                secret_id=self.secrets.secret_arn,
                gate_function=buffer.gate.function_name,
                event_bus=buffer.bus.event_bus_name,
                oversize_bucket=buffer.oversize.bucket_name,
                options=ResponderOptions(
                    **responder.model_dump(exclude={"max_parallel_batches"}),
                    outbox_days=config.outbox_days,
                    # A lock outlasts the function that holds it, even if two hosts' clocks differ by five seconds.
                    lock_ms=(int(timeout.to_seconds()) + 5) * 1_000,
                    hidden_seconds=HIDDEN_SECONDS,
                ),
            ),
        )
        model = responder.model if responder.assistant == "bedrock" else None
        permissions.grant_to_responder(self, buffer, model=model)
        # A reply takes as long as the assistant, so several deliveries in one run would wait for each other.
        self.function.add_event_source(
            SqsEventSource(
                self.queue,
                batch_size=1,
                report_batch_item_failures=True,
                max_concurrency=responder.max_parallel_batches,
            )
        )
        events.Rule(
            self,
            "BatchesReady",
            # Refer to the bus by its fixed name. If the name came from another stack, CloudFormation might replace the
            # rule.
            event_bus=events.EventBus.from_event_bus_name(self, "BufferBus", bus_name(config)),
            event_pattern=events.EventPattern(
                source=[SOURCE], detail_type=CONSUMED, detail={"tenant": [{"anything-but": [TRIAL_TENANT]}]}
            ),
            targets=[targets.SqsQueue(self.queue, dead_letter_queue=self.dead_letters)],
        )
        self._export()

    def _export(self) -> None:
        outputs = {
            "ResponderFunction": self.function.function_name,
            "ResponderLogGroup": self.function.log_group.log_group_name,
            "ResponderQueueUrl": self.queue.queue_url,
            "ReplyDeadLetterQueueUrl": self.dead_letters.queue_url,
            "ResponderSecretId": self.secrets.secret_arn,
            "ConversationsTableName": self.table.table_name,
        }
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
