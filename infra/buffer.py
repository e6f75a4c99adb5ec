"""Buffer stack: the API, the lanes behind it, the bus they publish on, and what is kept of failed batches."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra import environment
from infra.api import open_webhooks
from infra.bus import BatchBus
from infra.config import StageConfig
from infra.environment import EventDestinations, ValkeyAccess
from infra.function import Function, Placement, Runtime, source_code
from infra.lanes.dynamodb import DynamoDbLane
from infra.lanes.valkey import ValkeyLane
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
        destinations = EventDestinations(self.bus, self.oversize, self.dead_letters)

        self._dynamodb_lane = (
            DynamoDbLane(self, runtime=self._runtime, destinations=destinations) if config.has_dynamodb_lane else None
        )
        self._table_and_triggers = self._dynamodb_lane.table_and_triggers if self._dynamodb_lane else None
        self._valkey_lane = (
            ValkeyLane(
                self, runtime=self._runtime, destinations=destinations, table_and_triggers=self._table_and_triggers
            )
            if config.has_valkey_lane
            else None
        )
        self.ingest = self._make_ingest()
        self.admin = self._make_admin(destinations)
        self._join_lanes()
        self._webhooks = open_webhooks(self, config=config, ingest=self.ingest.entrance)
        self.api = self._webhooks.api
        self._export()

    @property
    def functions(self) -> dict[str, Function]:
        found = {"ingest": self.ingest}
        if self._valkey_lane:
            found["processor"] = self._valkey_lane.processor
            found["conversation_processor"] = self._valkey_lane.conversation_processor
            found["watchdog"] = self._valkey_lane.watchdog
        if self._dynamodb_lane:
            found["dynamodb_processor"] = self._dynamodb_lane.processor
        return found | {"admin": self.admin}

    @property
    def undelivered(self) -> Queue | None:
        """Where there are functions that start functions: the starts that failed."""
        return self._valkey_lane.undelivered if self._valkey_lane else None

    def _make_ingest(self) -> Function:
        function = Function(
            self,
            "ingest",
            runtime=self._runtime,
            memory_mb=self._config.memory.ingest,
            timeout=INGEST_TIMEOUT,
            environment=environment.ingest(
                config=self._config,
                processor=self._valkey_lane.startable if self._valkey_lane else None,
                table_and_triggers=self._table_and_triggers,
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

    def _make_admin(self, destinations: EventDestinations) -> Function:
        """For operators, who are let in by IAM: nothing but `lambda:InvokeFunction` leads to it."""
        # Both lanes would emit a letter alike.
        lane = self._dynamodb_lane
        emitter = self._valkey_lane.conversation_processor if self._valkey_lane else lane and lane.processor
        assert emitter, "a stage has one lane at least"
        function = Function(
            self,
            "admin",
            runtime=self._runtime,
            memory_mb=self._config.memory.admin,
            timeout=ADMIN_TIMEOUT,
            environment=environment.admin(
                config=self._config,
                processor=self._valkey_lane.startable if self._valkey_lane else None,
                table_and_triggers=self._table_and_triggers,
                redrive=emitter,
                destinations=destinations,
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
        """Let the doors into both lanes, and the Valkey lane see what the other one holds."""
        if self._valkey_lane:
            self._valkey_lane.grant_start(self.ingest)
            self._valkey_lane.grant_start(self.admin)
            # A name is no dependency: without it the doors might open before there is a processor.
            self.ingest.node.add_dependency(self._valkey_lane.processor)
        if self._dynamodb_lane:
            self._dynamodb_lane.grant_table(self.ingest, "ingest")
            self._dynamodb_lane.grant_table(self.admin, "admin")
        if self._valkey_lane and self._dynamodb_lane:
            self._dynamodb_lane.grant_table(self._valkey_lane.conversation_processor, "conversation_processor")

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
        if self._table_and_triggers is not None:
            outputs["HoldingTableName"] = self._table_and_triggers.table.table_name
            outputs["TriggerQueueUrl"] = self._table_and_triggers.triggers.queue_url
        if self._webhooks.dns_target is not None:
            outputs["ApiDnsTarget"] = self._webhooks.dns_target
        for role, function in self.functions.items():
            camel = "".join(word.capitalize() for word in role.split("_"))
            outputs[f"{camel}Function"] = function.function_name
            outputs[f"{camel}LogGroup"] = function.log_group.log_group_name
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)
