"""Buffer stack: the API, the five functions, the bus they publish on, and what is kept of failed batches."""

import math
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from infra import environment
from infra.api import open_webhooks
from infra.bus import BatchBus
from infra.config import StageConfig
from infra.environment import ValkeyAccess
from infra.function import Function, Placement, Runtime, acknowledge, source_code
from infra.storage import BATCHES, DEAD_LETTERS, OversizeBucket, Queue, RulesTable, WebhookSecrets

INGEST_TIMEOUT = cdk.Duration.seconds(15)
WATCHDOG_TIMEOUT = cdk.Duration.seconds(25)
ADMIN_TIMEOUT = cdk.Duration.seconds(60)
# A rule cannot run more often than once a minute: the queue repeats each pass half a minute later.
WATCHDOG_RATE = cdk.Duration.minutes(1)
WATCHDOG_ECHO = cdk.Duration.seconds(30)


class BufferStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        env: cdk.Environment,
        source: Path,
        layer: Path,
        valkey: ValkeyAccess,
        placement: Placement | None,
    ) -> None:
        # On the emulator, which has no TLS, the bucket of the bootstrap refuses everybody but the account itself.
        synthesizer = cdk.CliCredentialsStackSynthesizer() if config.is_local else None
        super().__init__(scope, construct_id, env=env, synthesizer=synthesizer)
        self._config = config
        self.undelivered = Queue(
            self, "Undelivered", config=config, no_dead_letters_because="It holds the starts that failed."
        )
        self._runtime = Runtime(
            config=config,
            code=source_code(source),
            layer=lambda_.LayerVersion(self, "Dependencies", code=lambda_.Code.from_asset(str(layer))),
            valkey=valkey,
            placement=placement,
            undelivered=self.undelivered,
        )
        # The processor starts itself, and is started by the function it starts: only a name that is known
        # beforehand breaks that circle.
        self._processor_name = f"message-buffer-{config.name}-processor"
        startable = lambda_.Function.from_function_name(self, "StartableProcessor", self._processor_name)

        self.bus = BatchBus(self, "Bus", config=config)
        self.dead_letters = Queue(
            self, "DeadLetters", config=config, no_dead_letters_because="It holds the batches that failed."
        )
        self.oversize = OversizeBucket(self, "Oversize", config=config)
        self.webhook_secrets = WebhookSecrets(self, "WebhookSecrets", config=config)
        self.rules_table = RulesTable(self, "Rules", config=config)

        self.conversation_processor = self._make_conversation_processor(startable)
        self.processor = self._make_processor()
        self.ingest = self._make_ingest(startable)
        self.watchdog = self._make_watchdog(startable)
        self.admin = self._make_admin(startable)
        for starter in self.functions.values():
            _allow(starter, "lambda:InvokeFunction", on=[startable.function_arn])
        # A name is no dependency: without these the entrances might open before there is a processor.
        self.ingest.node.add_dependency(self.processor)
        self.watchdog.node.add_dependency(self.processor)

        self._webhooks = open_webhooks(self, config=config, ingest=self.ingest.entrance)
        self.api = self._webhooks.api
        self._wind_up_watchdog()
        self._export()

    @property
    def functions(self) -> dict[str, Function]:
        return {
            "ingest": self.ingest,
            "processor": self.processor,
            "conversation_processor": self.conversation_processor,
            "watchdog": self.watchdog,
            "admin": self.admin,
        }

    def _make_ingest(self, startable: lambda_.IFunction) -> Function:
        function = Function(
            self,
            "ingest",
            runtime=self._runtime,
            memory_mb=self._config.memory.ingest,
            timeout=INGEST_TIMEOUT,
            environment=environment.ingest(
                config=self._config,
                processor=startable,
                webhook_secrets=self.webhook_secrets,
                rules_table=self.rules_table,
                bus=self.bus,
            ),
            warmth=self._config.warmth,
        )
        _allow(function, "secretsmanager:GetSecretValue", on=[self.webhook_secrets.arn])
        for action in ("dynamodb:GetItem", "dynamodb:Scan"):
            _allow(function, action, on=[self.rules_table.table_arn])
        _allow(function, "events:PutEvents", on=[self.bus.event_bus_arn])
        return function

    def _make_processor(self) -> Function:
        function = Function(
            self,
            "processor",
            name=self._processor_name,
            runtime=self._runtime,
            memory_mb=self._config.memory.processor,
            timeout=cdk.Duration.seconds(self._config.timings.processor_life_seconds),
            environment=environment.processor(config=self._config, conversation_processor=self.conversation_processor),
            in_a_loop=True,
        )
        _allow(function, "lambda:InvokeFunction", on=[self.conversation_processor.function_arn])
        return function

    def _make_conversation_processor(self, startable: lambda_.IFunction) -> Function:
        function = Function(
            self,
            "conversation_processor",
            runtime=self._runtime,
            memory_mb=self._config.memory.conversation_processor,
            timeout=cdk.Duration.seconds(math.ceil(self._config.timings.executor_timeout_ms / 1_000)),
            environment=environment.conversation_processor(
                config=self._config,
                processor=startable,
                bus=self.bus,
                oversize=self.oversize,
                dead_letters=self.dead_letters,
            ),
            in_a_loop=True,
        )
        batches, letters = map(self.oversize.arn_for_objects, (BATCHES, DEAD_LETTERS))
        _allow(function, "events:PutEvents", on=[self.bus.event_bus_arn])
        _allow(function, "sqs:SendMessage", on=[self.dead_letters.queue_arn])
        _allow(function, "s3:PutObject", on=[batches, letters])
        # A dead letter that was too large for its queue is read again when it is redriven.
        _allow(function, "s3:GetObject", on=[letters])
        assert function.role is not None
        for folder in (BATCHES, DEAD_LETTERS):
            acknowledge(
                function.role,
                f"AwsSolutions-IAM5[Resource::<Oversize.Arn>/{folder}]",
                "Objects are named after batches that are yet to come: what can be named is their folder.",
            )
        return function

    def _make_watchdog(self, startable: lambda_.IFunction) -> Function:
        return Function(
            self,
            "watchdog",
            runtime=self._runtime,
            memory_mb=self._config.memory.watchdog,
            timeout=WATCHDOG_TIMEOUT,
            environment=environment.watchdog(processor=startable),
        )

    def _make_admin(self, startable: lambda_.IFunction) -> Function:
        """For operators, who are let in by IAM: nothing but `lambda:InvokeFunction` leads to it."""
        function = Function(
            self,
            "admin",
            runtime=self._runtime,
            memory_mb=self._config.memory.admin,
            timeout=ADMIN_TIMEOUT,
            environment=environment.admin(
                config=self._config,
                processor=startable,
                conversation_processor=self.conversation_processor,
                bus=self.bus,
                dead_letters=self.dead_letters,
                rules_table=self.rules_table,
            ),
        )
        _allow(function, "lambda:InvokeFunction", on=[self.conversation_processor.function_arn])
        _allow(function, "events:PutEvents", on=[self.bus.event_bus_arn])
        for action in ("ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes"):
            _allow(function, f"sqs:{action}", on=[self.dead_letters.queue_arn])
        for action in ("GetItem", "Scan", "PutItem", "DeleteItem"):
            _allow(function, f"dynamodb:{action}", on=[self.rules_table.table_arn])
        return function

    def _wind_up_watchdog(self) -> None:
        echo = Queue(
            self,
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
            self,
            "EveryMinute",
            schedule=events.Schedule.rate(WATCHDOG_RATE),
            targets=[
                targets.LambdaFunction(self.watchdog, retry_attempts=0, max_event_age=WATCHDOG_RATE),
                targets.SqsQueue(echo, retry_attempts=0, max_event_age=WATCHDOG_RATE),
            ],
        )

    def _export(self) -> None:
        outputs = {
            "ApiEndpoint": self._webhooks.url,
            "EventBusName": self.bus.event_bus_name,
            "DeadLetterQueueUrl": self.dead_letters.queue_url,
            "UndeliveredQueueUrl": self.undelivered.queue_url,
            "OversizeBucketName": self.oversize.bucket_name,
            "WebhookSecretId": self.webhook_secrets.secret_arn,
            "RulesTableName": self.rules_table.table_name,
        }
        if self._webhooks.dns_target is not None:
            outputs["ApiDnsTarget"] = self._webhooks.dns_target
        for role, function in self.functions.items():
            camel = "".join(word.capitalize() for word in role.split("_"))
            outputs[f"{camel}Function"] = function.function_name
            outputs[f"{camel}LogGroup"] = function.log_group.log_group_name
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)


def _allow(function: Function, action: str, *, on: list[str]) -> None:
    """Exactly this; CDK's own grants add what the runtime never calls."""
    function.add_to_role_policy(iam.PolicyStatement(actions=[action], resources=on))
