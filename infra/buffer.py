"""Buffer stack: the API, the lanes behind it, the bus they publish on, and what is kept of failed batches."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra import environment
from infra.api import open_webhooks
from infra.bus import BatchBus
from infra.config import StageConfig
from infra.environment import Outlets, ValkeyAccess
from infra.function import Function, Placement, Runtime, source_code
from infra.lanes.dynamodb import WindowLane
from infra.lanes.valkey import MainLane
from infra.storage import OversizeBucket, Queue, RulesTable, WebhookSecrets

INGEST_TIMEOUT = cdk.Duration.seconds(15)
ADMIN_TIMEOUT = cdk.Duration.seconds(60)


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
        valkey: ValkeyAccess | None = None,
        placement: Placement | None = None,
    ) -> None:
        # On the emulator, which has no TLS, the bucket of the bootstrap refuses everybody but the account itself.
        synthesizer = cdk.CliCredentialsStackSynthesizer() if config.is_local else None
        super().__init__(scope, construct_id, env=env, synthesizer=synthesizer)
        self._config = config
        self._runtime = Runtime(
            config=config,
            code=source_code(source),
            layer=lambda_.LayerVersion(self, "Dependencies", code=lambda_.Code.from_asset(str(layer))),
            valkey=valkey,
            placement=placement,
        )
        self.bus = BatchBus(self, "Bus", config=config)
        self.dead_letters = Queue(
            self, "DeadLetters", config=config, no_dead_letters_because="It holds the batches that failed."
        )
        self.oversize = OversizeBucket(self, "Oversize", config=config)
        self.webhook_secrets = WebhookSecrets(self, "WebhookSecrets", config=config)
        self.rules_table = RulesTable(self, "Rules", config=config)
        outlets = Outlets(self.bus, self.oversize, self.dead_letters)

        self._window = WindowLane(self, runtime=self._runtime, outlets=outlets) if config.has_window_lane else None
        self._holding = self._window.holding if self._window else None
        self._main = (
            MainLane(self, runtime=self._runtime, outlets=outlets, holding=self._holding)
            if config.has_main_lane
            else None
        )
        self.ingest = self._make_ingest()
        self.admin = self._make_admin(outlets)
        self._join_lanes()
        self._webhooks = open_webhooks(self, config=config, ingest=self.ingest.entrance)
        self.api = self._webhooks.api
        self._export()

    @property
    def functions(self) -> dict[str, Function]:
        found = {"ingest": self.ingest}
        if self._main:
            found["processor"] = self._main.processor
            found["conversation_processor"] = self._main.conversation_processor
            found["watchdog"] = self._main.watchdog
        if self._window:
            found["window_processor"] = self._window.processor
        return found | {"admin": self.admin}

    @property
    def undelivered(self) -> Queue | None:
        """Where there are functions that start functions: the starts that failed."""
        return self._main.undelivered if self._main else None

    def _make_ingest(self) -> Function:
        function = Function(
            self,
            "ingest",
            runtime=self._runtime,
            memory_mb=self._config.memory.ingest,
            timeout=INGEST_TIMEOUT,
            environment=environment.ingest(
                config=self._config,
                processor=self._main.startable if self._main else None,
                holding=self._holding,
                webhook_secrets=self.webhook_secrets,
                rules_table=self.rules_table,
                bus=self.bus,
            ),
            warmth=self._config.warmth,
        )
        function.allow("secretsmanager:GetSecretValue", on=self.webhook_secrets.arn)
        function.allow("dynamodb:GetItem", "dynamodb:Scan", on=self.rules_table.table_arn)
        function.allow("events:PutEvents", on=self.bus.event_bus_arn)
        return function

    def _make_admin(self, outlets: Outlets) -> Function:
        """For operators, who are let in by IAM: nothing but `lambda:InvokeFunction` leads to it."""
        # Both lanes would emit a letter alike.
        emitter = self._main.conversation_processor if self._main else self._window and self._window.processor
        assert emitter, "a stage has one lane at least"
        function = Function(
            self,
            "admin",
            runtime=self._runtime,
            memory_mb=self._config.memory.admin,
            timeout=ADMIN_TIMEOUT,
            environment=environment.admin(
                config=self._config,
                processor=self._main.startable if self._main else None,
                holding=self._holding,
                redrive=emitter,
                outlets=outlets,
                rules_table=self.rules_table,
            ),
        )
        function.allow("lambda:InvokeFunction", on=emitter.function_arn)
        function.allow("events:PutEvents", on=self.bus.event_bus_arn)
        letters = ("ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes")
        function.allow(*(f"sqs:{action}" for action in letters), on=self.dead_letters.queue_arn)
        rules = ("GetItem", "Scan", "PutItem", "DeleteItem")
        function.allow(*(f"dynamodb:{action}" for action in rules), on=self.rules_table.table_arn)
        return function

    def _join_lanes(self) -> None:
        """Let the doors into both lanes, and the main lane see what the other one holds."""
        if self._main:
            self._main.let_start(self.ingest)
            self._main.let_start(self.admin)
            # A name is no dependency: without it the doors might open before there is a processor.
            self.ingest.node.add_dependency(self._main.processor)
        if self._window:
            self._window.let_hold(self.ingest, "ingest")
            self._window.let_hold(self.admin, "admin")
        if self._main and self._window:
            self._window.let_hold(self._main.conversation_processor, "conversation_processor")

    def _export(self) -> None:
        outputs = {
            "ApiEndpoint": self._webhooks.url,
            "EventBusName": self.bus.event_bus_name,
            "DeadLetterQueueUrl": self.dead_letters.queue_url,
            "OversizeBucketName": self.oversize.bucket_name,
            "WebhookSecretId": self.webhook_secrets.secret_arn,
            "RulesTableName": self.rules_table.table_name,
        }
        if self.undelivered is not None:
            outputs["UndeliveredQueueUrl"] = self.undelivered.queue_url
        if self._holding is not None:
            outputs["HoldingTableName"] = self._holding.table.table_name
            outputs["TriggerQueueUrl"] = self._holding.triggers.queue_url
        if self._webhooks.dns_target is not None:
            outputs["ApiDnsTarget"] = self._webhooks.dns_target
        for role, function in self.functions.items():
            camel = "".join(word.capitalize() for word in role.split("_"))
            outputs[f"{camel}Function"] = function.function_name
            outputs[f"{camel}LogGroup"] = function.log_group.log_group_name
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
