"""Responder stack: the reference consumer, which answers batches on their channels. No other stack depends on it.

It consumes all queues of the stage except `handoff`.

The responder runs outside of the stage's network, because it calls AIs and channels on the internet. It never calls
Valkey; it asks the function `gate` instead.
"""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from message_buffer.rules.queues import HANDOFF
from message_buffer.settings import ResponderOptions, ResponderSettings

from . import permissions
from .buffer import BufferStack
from .bus import SOURCE, TRIAL_TENANT, bus_name
from .function import Function, Runtime, source_code
from .queues import camel_case
from .settings_and_defaults import ResponderConfig, StageConfig
from .stack import StageStack
from .storage import SecretConstruct, TableConstruct

# The events about a conversation that change what the responder has stored.
FORGOTTEN, COMPLETED = "messages.conversation.forgotten", "messages.conversation.completed"
# The most that Lambda accepts of a FIFO queue. Batches of one conversation are one turn, and several conversations are
# answered at the same time.
BATCHES_IN_A_RUN = 10
# The most that Lambda accepts.
MAX_RETRIES = 2


class ResponderStack(StageStack):
    """The responder with its table and secret."""

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
        # After the assistant's reply, the function still calls the channel and the table, and may return the batch.
        timeout = cdk.Duration.seconds(responder.assistant_seconds + 45)
        writer = responder.assistant
        self.consumed = {name: each for name, each in buffer.queues.items() if name != HANDOFF}
        # Refer to the bus by its fixed name. If the name came from another stack, CloudFormation might replace the
        # rule.
        self.bus = events.EventBus.from_event_bus_name(self, "BufferBus", bus_name(config))
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
        # The secrets to which that secret may refer. Operators create them, so each has its own rotation and audit.
        self.secret_prefix = f"message-buffer-{config.name}/"
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
                queues={
                    name: {"url": each.queue.queue_url, "dead_letter_url": each.dead_letters.queue_url}
                    for name, each in self.consumed.items()
                },
                secret_id=self.secrets.secret_arn,
                secret_prefix=self.secret_prefix,
                gate_function=buffer.gate.function_name,
                event_bus=self.bus.event_bus_name,
                oversize_bucket=buffer.oversize.bucket_name,
                options=ResponderOptions(
                    **responder.model_dump(exclude={"assistant", "max_parallel_batches"}),
                    assistant=writer if isinstance(writer, str) else writer.function,
                    outbox_days=config.outbox_days,
                ),
            ),
            retries=MAX_RETRIES,
            # If all attempts to forget a conversation fail, this queue's alarm pages an operator.
            failures=buffer.dead_letters,
        )
        permissions.grant_to_responder(self, buffer, responder)
        for name, each in self.consumed.items():
            # Each queue has its own share of the responder, so a channel that hangs does not hold up the others.
            self.function.add_event_source_mapping(
                f"Queue{camel_case(name)}",
                event_source_arn=each.queue.queue_arn,
                batch_size=BATCHES_IN_A_RUN,
                report_batch_item_failures=True,
                max_concurrency=responder.max_parallel_batches,
            )
        events.Rule(
            self,
            "ConversationChanges",
            event_bus=self.bus,
            event_pattern=events.EventPattern(
                source=[SOURCE],
                detail_type=[FORGOTTEN, COMPLETED],
                detail={"tenant": [{"anything-but": [TRIAL_TENANT]}]},
            ),
            targets=[targets.LambdaFunction(self.function)],
        )
        self._export()

    def _export(self) -> None:
        outputs = {
            "ResponderFunction": self.function.function_name,
            "ResponderLogGroup": self.function.log_group.log_group_name,
            "ResponderSecretId": self.secrets.secret_arn,
            "ConversationsTableName": self.table.table_name,
        }
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
