"""Responder stack: the reference consumer, from the bus to the channel. Nothing else of a stage depends on it.

It runs outside of the stage's network: it calls AIs and channels on the internet, and reaches Valkey through nobody
but the admin function.
"""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from infra import environment
from infra.buffer import BufferStack
from infra.bus import SOURCE
from infra.config import Responder, StageConfig
from infra.function import Function, Runtime, acknowledge, source_code
from infra.storage import BATCHES, ConversationsTable, Queue, ResponderSecrets

BATCH_READY = "messages.batch.ready"
# A delivery that waits its turn is received again and again: only crashes are to end here.
MOST_RECEIVES = 100
# By which inference profiles that span regions begin.
PROFILES = ("us.", "us-gov.", "eu.", "apac.", "jp.", "au.", "ca.", "global.")


class ResponderStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        responder: Responder,
        env: cdk.Environment,
        source: Path,
        layer: Path,
        buffer: BufferStack,
    ) -> None:
        synthesizer = cdk.CliCredentialsStackSynthesizer() if config.is_local else None
        super().__init__(scope, construct_id, env=env, synthesizer=synthesizer)
        timeout = cdk.Duration.seconds(environment.responder_seconds(responder))
        self.dead_letters = Queue(
            self, "ReplyDeadLetters", config=config, no_dead_letters_because="It holds the replies that failed."
        )
        self.queue = Queue(
            self,
            "Batches",
            config=config,
            # What Lambda holds back; what is worked on is hidden for less, again and again.
            visibility=cdk.Duration.seconds(6 * timeout.to_seconds()),
            dead_letters=sqs.DeadLetterQueue(queue=self.dead_letters, max_receive_count=MOST_RECEIVES),
        )
        self.table = ConversationsTable(self, "Conversations", config=config)
        self.secrets = ResponderSecrets(self, "ResponderSecrets", config=config)
        self.function = Function(
            self,
            "responder",
            room="responder",
            runtime=Runtime(
                config=config,
                code=source_code(source),
                # Of its own: a layer's version is another one after every change, and nothing may import it.
                layer=lambda_.LayerVersion(self, "Dependencies", code=lambda_.Code.from_asset(str(layer))),
                valkey=None,
                placement=None,
            ),
            memory_mb=config.memory.responder,
            timeout=timeout,
            environment=environment.responder(
                config=responder,
                table=self.table,
                queue=self.queue,
                dead_letters=self.dead_letters,
                secret=self.secrets,
                admin=buffer.admin,
                bus=buffer.bus,
                oversize=buffer.oversize,
            ),
        )
        self._grant_permissions(buffer)
        if responder.assistant == "bedrock":
            self._grant_model(responder.model)
        # One at a time: each may take as long as the assistant does.
        self.function.add_event_source(SqsEventSource(self.queue, batch_size=1, report_batch_item_failures=True))
        events.Rule(
            self,
            "BatchesReady",
            event_bus=buffer.bus,
            event_pattern=events.EventPattern(source=[SOURCE], detail_type=[BATCH_READY]),
            targets=[targets.SqsQueue(self.queue, dead_letter_queue=self.dead_letters)],
        )
        self._export()

    def _grant_permissions(self, buffer: BufferStack) -> None:
        table = [f"dynamodb:{name}Item" for name in ("Get", "Put", "Update", "ConditionCheck")]
        allow = self.function.allow
        allow(*table, "dynamodb:Query", on=self.table.table_arn)
        allow("secretsmanager:GetSecretValue", on=self.secrets.arn)
        allow("sqs:SendMessage", on=self.dead_letters.queue_arn)
        allow("lambda:InvokeFunction", on=buffer.admin.function_arn)
        allow("events:PutEvents", on=buffer.bus.event_bus_arn)
        # Under a name of ours, because the finding names it.
        exported = f"{buffer.stack_name}-OversizeBucketArn"
        bucket_arn = buffer.export_value(buffer.oversize.bucket_arn, name=exported)
        allow("s3:GetObject", on=f"{bucket_arn}/{BATCHES}")
        assert self.function.role is not None
        acknowledge(
            self.function.role,
            f"AwsSolutions-IAM5[Resource::{exported}/{BATCHES}]",
            "Objects are named after batches that are yet to come: what can be named is their folder.",
        )

    def _grant_model(self, model: str) -> None:
        assert self.function.role is not None
        for arn in _model_arns(self, model):
            self.function.allow("bedrock:InvokeModel", on=arn)
            if "*" in arn:
                acknowledge(
                    self.function.role,
                    f"AwsSolutions-IAM5[Resource::{arn}]",
                    "An inference profile sends a request to whichever of its regions has room: the model is named.",
                )

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


def _model_arns(stack: cdk.Stack, model: str) -> list[str]:
    """A model of this region, an inference profile with its model in every region, or whatever an ARN names."""
    if model.startswith("arn:"):
        name = model.partition(":inference-profile/")[2]
        return [model, *(_model_arns(stack, name)[1:] if name else [])]
    prefix = next((each for each in PROFILES if model.startswith(each)), "")
    if not prefix:
        return [f"arn:{stack.partition}:bedrock:{stack.region}::foundation-model/{model}"]
    return [
        stack.format_arn(service="bedrock", resource="inference-profile", resource_name=model),
        f"arn:{stack.partition}:bedrock:*::foundation-model/{model.removeprefix(prefix)}",
    ]
