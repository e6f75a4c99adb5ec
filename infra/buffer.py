"""Buffer stack: the API, the four functions, the bus they publish on, and what is kept of failed batches."""

import math
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_apigatewayv2 as apigw
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from aws_cdk.aws_apigatewayv2_integrations import HttpLambdaIntegration
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from constructs import Construct

from infra import environment
from infra.config import LOCAL_API_ID, StageConfig
from infra.environment import ValkeyAccess
from infra.function import Function, Placement, Runtime, removal_policy, source_code

INGEST_TIMEOUT = cdk.Duration.seconds(15)
WATCHDOG_TIMEOUT = cdk.Duration.seconds(25)
# A rule cannot run more often than once a minute: the queue repeats each pass half a minute later.
WATCHDOG_RATE = cdk.Duration.minutes(1)
WATCHDOG_ECHO = cdk.Duration.seconds(30)
DEAD_LETTER_RETENTION = cdk.Duration.days(14)
# Where the conversation processor puts what is too large for an event or a letter.
BATCHES, DEAD_LETTERS = "batches/", "dead-letters/"


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
        super().__init__(scope, construct_id, env=env)
        self._config = config
        self._runtime = Runtime(
            config=config,
            code=source_code(source),
            layer=lambda_.LayerVersion(self, "Dependencies", code=lambda_.Code.from_asset(str(layer))),
            valkey=valkey,
            placement=placement,
        )
        # The processor starts itself, and is started by the function it starts: only a name that is known
        # beforehand breaks that circle.
        self._processor_name = f"message-buffer-{config.name}-processor"
        startable = lambda_.Function.from_function_name(self, "StartableProcessor", self._processor_name)

        self.bus = events.EventBus(self, "Bus")
        self.dead_letters = self._make_queue("DeadLetters", retention=DEAD_LETTER_RETENTION)
        self.oversize = self._make_bucket()
        self.webhook_secrets = secretsmanager.Secret(
            self,
            "WebhookSecrets",
            description='JSON: platform -> webhook secret, or {"secret", "verifyToken"}. A platform not in it is off.',
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template="{}",  # noqa: S106 - the empty object that the secret is put into
                generate_string_key="generic",
                exclude_punctuation=True,
            ),
            removal_policy=removal_policy(config),
        )

        self.conversation_processor = self._make_conversation_processor(startable)
        self.processor = self._make_processor()
        self.ingest = self._make_ingest(startable)
        self.watchdog = self._make_watchdog(startable)
        for starter in self.functions.values():
            startable.grant_invoke(starter)
        # A name is no dependency: without these the entrances might open before there is a processor.
        self.ingest.node.add_dependency(self.processor)
        self.watchdog.node.add_dependency(self.processor)

        self.api = self._make_api()
        self._wind_up_watchdog()
        self._export()

    @property
    def functions(self) -> dict[str, Function]:
        return {
            "ingest": self.ingest,
            "processor": self.processor,
            "conversation_processor": self.conversation_processor,
            "watchdog": self.watchdog,
        }

    def _make_queue(self, construct_id: str, **settings: cdk.Duration) -> sqs.Queue:
        return sqs.Queue(
            self,
            construct_id,
            retention_period=settings.get("retention"),
            delivery_delay=settings.get("delay"),
            visibility_timeout=settings.get("visibility"),
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            removal_policy=removal_policy(self._config),
        )

    def _make_bucket(self) -> s3.Bucket:
        return s3.Bucket(
            self,
            "Oversize",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            lifecycle_rules=[
                s3.LifecycleRule(prefix=BATCHES, expiration=cdk.Duration.days(self._config.oversize_retention_days)),
                # What a dead letter refers to outlives the letter.
                s3.LifecycleRule(prefix=DEAD_LETTERS, expiration=DEAD_LETTER_RETENTION.plus(cdk.Duration.days(1))),
            ],
            removal_policy=removal_policy(self._config),
        )

    def _make_ingest(self, startable: lambda_.IFunction) -> Function:
        function = Function(
            self,
            "ingest",
            runtime=self._runtime,
            memory_mb=self._config.memory.ingest,
            timeout=INGEST_TIMEOUT,
            environment=environment.ingest(
                config=self._config, processor=startable, webhook_secrets=self.webhook_secrets, bus=self.bus
            ),
        )
        self.webhook_secrets.grant_read(function)
        self.bus.grant_put_events_to(function)
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
        self.conversation_processor.grant_invoke(function)
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
        self.bus.grant_put_events_to(function)
        self.oversize.grant_put(function)
        # A dead letter that was too large for its queue is read again when it is redriven.
        self.oversize.grant_read(function)
        self.dead_letters.grant_send_messages(function)
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

    def _make_api(self) -> apigw.HttpApi:
        api = apigw.HttpApi(self, "Api")
        if self._config.is_local:
            cdk.Tags.of(api).add("ms-custom-id", LOCAL_API_ID)
        ingest = HttpLambdaIntegration("Ingest", self.ingest)
        api.add_routes(
            path="/webhook/{platform}",
            methods=[apigw.HttpMethod.GET, apigw.HttpMethod.POST],
            integration=ingest,
        )
        api.add_routes(path="/typing/{platform}", methods=[apigw.HttpMethod.POST], integration=ingest)
        return api

    def _wind_up_watchdog(self) -> None:
        echo = self._make_queue(
            "WatchdogEcho",
            delay=WATCHDOG_ECHO,
            visibility=cdk.Duration.seconds(6 * WATCHDOG_TIMEOUT.to_seconds()),
            # A pass that is late is one too many: the rule brings the next within the minute.
            retention=cdk.Duration.minutes(5),
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
            "ApiEndpoint": self.api.api_endpoint,
            "EventBusName": self.bus.event_bus_name,
            "DeadLetterQueueUrl": self.dead_letters.queue_url,
            "OversizeBucketName": self.oversize.bucket_name,
            "WebhookSecretId": self.webhook_secrets.secret_arn,
        }
        for role, function in self.functions.items():
            camel = "".join(word.capitalize() for word in role.split("_"))
            outputs[f"{camel}Function"] = function.function_name
            outputs[f"{camel}LogGroup"] = function.log_group.log_group_name
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
