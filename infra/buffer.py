"""Buffer stack: the API, the lanes behind it, the bus, and the storage for dead letters and large batches."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_secretsmanager as secretsmanager
from constructs import Construct

from message_buffer.limits import DEAD_LETTER_RETENTION_DAYS, INGEST_TIMEOUT_SECONDS
from message_buffer.settings import (
    AdminSettings,
    EmissionSettings,
    GateSettings,
    IngestSettings,
    LogSettings,
    ValkeySettings,
)

from . import permissions
from .api import open_webhooks
from .bus import BatchBus
from .canary import CanaryResources
from .dynamodb_lane import DynamoDbLaneResources
from .end_user_messaging import WhatsAppQueues
from .function import Function, Placement, Runtime, keep_identity, source_code
from .queues import camel_case, make_queues
from .settings_and_defaults import StageConfig
from .stack import StageStack
from .storage import IDLE_BY_TIME, OversizeBucket, QueueConstruct, SecretConstruct, TableConstruct, key_of_logged_ids
from .valkey_lane import ValkeyLaneResources

# Longer than other functions' time-outs, because one command of an operator may read many dead letters.
ADMIN_TIMEOUT_SECONDS = 60
# Longer than the responder waits for a response of gate, and longer than the longest call to Valkey.
GATE_TIMEOUT_SECONDS = 15


class BufferStack(StageStack):
    """The stack that receives messages and emits batches."""

    def __init__(
        self,
        scope: Construct,
        config: StageConfig,
        *,
        source: Path,
        layer: Path,
        valkey: ValkeySettings | None,
        placement: Placement | None,
    ) -> None:
        super().__init__(scope, "Buffer", config=config)
        self._config, self._valkey = config, valkey
        log_id_key = key_of_logged_ids(self, config)
        self.log = LogSettings(
            id_key=log_id_key.secret_value.unsafe_unwrap() if log_id_key and config.log_ids == "hashed" else None,
            level=config.log_level,
        )
        self._runtime = Runtime(
            config=config,
            code=source_code(source),
            layer=lambda_.LayerVersion(self, "Dependencies", code=lambda_.Code.from_asset(str(layer))),
            placement=placement,
            log=self.log,
        )
        self.bus = BatchBus(self, "Bus", config=config)
        self.dead_letters = QueueConstruct(
            self, "DeadLetters", config=config, no_dead_letters_because="It contains the batches that failed."
        )
        self.queues = make_queues(self, config)
        self.oversize = OversizeBucket(self, "Oversize", config=config)
        self.webhook_secrets = SecretConstruct(
            self,
            "WebhookSecrets",
            config=config,
            description='JSON: platform -> webhook secret, or {"secret", "verifyToken"}. A platform not listed is off.',
            # A deployment generates only the secret of the platform `generic`.
            generator=secretsmanager.SecretStringGenerator(
                secret_string_template="{}",  # noqa: S106 - an empty object, not a secret
                generate_string_key="generic",
                exclude_punctuation=True,
            ),
            not_rotated_because="The platforms issue these secrets, so only a person can rotate them there; a platform "
            "may have two.",
        )
        # The rules that operators change. The table is small, so a function reads all of it.
        self.rules_table = TableConstruct(self, "Rules", config=config, partition_key="scope", expires_by="expires_at")
        # The conversations that human agents answer (`message_buffer/takeovers/`), the customers who may fall silent
        # (`message_buffer/events/idle.py`), and the progress of large webhooks (`lambdas/ingest/progress.py`).
        self.takeovers_table = TableConstruct(self, "Takeovers", config=config, expires_by="expires_at")
        self.takeovers_table.add_index(IDLE_BY_TIME, partition_key="idle", time="at")
        # The ids of authors who have more than one. `message_buffer/aliases/aliases_table.py` defines the items.
        self.aliases_table = TableConstruct(self, "Aliases", config=config, expires_by="expiresAt")
        # How long authors are silent before they go on, by scope and week (`message_buffer/tuning/`).
        self.tuning_table = TableConstruct(
            self, "Tuning", config=config, partition_key="scope", sort_key="week", expires_by="expires_at"
        )
        emission = EmissionSettings(
            event_bus=self.bus.event_bus_name,
            max_event_bytes=config.limits.max_event_bytes,
            oversize_bucket=self.oversize.bucket_name,
            max_attempts=config.limits.max_attempts,
            dead_letter_queue_url=self.dead_letters.queue_url,
            takeovers_table=self.takeovers_table.table_name,
            tuning_table=self.tuning_table.table_name,
            queues={name: each.queue.queue_url for name, each in self.queues.items()},
        )

        self.dynamodb_lane = (
            DynamoDbLaneResources(self, runtime=self._runtime, emission=emission) if config.has_dynamodb_lane else None
        )
        self.valkey_lane = (
            ValkeyLaneResources(self, runtime=self._runtime, valkey=valkey, emission=emission) if valkey else None
        )
        self.whatsapp_queues = (
            WhatsAppQueues(self, config=config, topic_arn=config.end_user_messaging_topic)
            if config.end_user_messaging_topic
            else None
        )
        self.ingest = self._make_ingest()
        if self.whatsapp_queues:
            self.whatsapp_queues.invoke(self.ingest.entrance)
        self.admin = self._make_admin()
        # As with admin, only IAM's `lambda:InvokeFunction` lets a caller invoke it.
        self.gate = Function(
            self,
            "gate",
            runtime=self._runtime,
            timeout=cdk.Duration.seconds(GATE_TIMEOUT_SECONDS),
            settings=GateSettings(
                log=self.log,
                valkey=valkey,
                dynamodb_lane=self.dynamodb_lane.settings if self.dynamodb_lane else None,
                event_bus=self.bus.event_bus_name,
                takeovers_table=self.takeovers_table.table_name,
                queues=tuple(self.queues),
            ),
        )
        permissions.grant_to_entrances(self)
        permissions.grant_to_lanes(self)
        if self.valkey_lane:
            # Ingest refers to the processor by a fixed name, in which CloudFormation sees no dependency. Without this
            # line, CloudFormation might create ingest before the processor.
            self.ingest.node.add_dependency(self.valkey_lane.processor)
        self.webhooks = open_webhooks(self, config=config, ingest=self.ingest)
        self.canary = (
            CanaryResources(self, self._runtime, self.bus, api_url=self.webhooks.url, secrets=self.webhook_secrets)
            if config.canary
            else None
        )
        permissions.grant_to_canary(self)
        self._delete_functions_before_roles()
        self._export()
        if config.responder:
            assert log_id_key
            self.imported_log_id_key: str = self.export_value(
                log_id_key.secret_arn, name=f"{self.stack_name}-LogIdKeyArn"
            )

    @property
    def functions(self) -> dict[str, Function]:
        """Return the stack's functions by role."""
        found = {"ingest": self.ingest}
        if valkey := self.valkey_lane:
            found |= {"processor": valkey.processor, "conversation_processor": valkey.conversation_processor}
            found["watchdog"] = valkey.watchdog
        if self.dynamodb_lane:
            found["dynamodb_processor"] = self.dynamodb_lane.processor
        found |= {"admin": self.admin, "gate": self.gate}
        return found | ({"canary": self.canary.function} if self.canary else {})

    def _delete_functions_before_roles(self) -> None:
        """Let CloudFormation delete the functions' roles only after the last function in the network.

        These functions share network interfaces. After the last function is deleted, Lambda deletes the interfaces with
        the role of one of the functions. Without the role an interface would remain, and CloudFormation could not
        delete the network and its NAT gateways.
        """
        placed = [function for function in self.functions.values() if function.is_in_network]
        for function in placed:
            for other in placed:
                function.depend_on_role_of(other)

    def _make_ingest(self) -> Function:
        function = Function(
            self,
            "ingest",
            runtime=self._runtime,
            timeout=cdk.Duration.seconds(INGEST_TIMEOUT_SECONDS),
            settings=IngestSettings(
                log=self.log,
                valkey=self._valkey,
                dynamodb_lane=self.dynamodb_lane.settings if self.dynamodb_lane else None,
                webhook_secret_id=self.webhook_secrets.secret_arn,
                time_is_required=self._config.api.generic_timestamp == "required",
                event_bus=self.bus.event_bus_name,
                rules=self._config.rules,
                platform_numbers=self._config.platform_numbers,
                rules_table=self.rules_table.table_name,
                takeovers_table=self.takeovers_table.table_name,
                aliases_table=self.aliases_table.table_name,
                dead_letter_queue_url=self.dead_letters.queue_url,
                whatsapp_queue=self.whatsapp_queues.settings if self.whatsapp_queues else None,
                address=self._config.api.address,
                queues={
                    name: conditions.model_dump(exclude_none=True)
                    for name, conditions in self._config.effective_queues.items()
                },
                notes_replies=self._config.tune.replies,
            ),
            has_url=self._config.api.kind == "url",
        )
        # Fix the function's id to the one that CDK derived from the construct's path. If the id changed, CloudFormation
        # would replace the function, and platforms would no longer know its address.
        keep_identity(function, "Ingest4069586C")
        return function

    @property
    def emitter(self) -> Function:
        """Return a function that can emit a dead letter again, whichever lane wrote it."""
        if self.valkey_lane:
            return self.valkey_lane.conversation_processor
        assert self.dynamodb_lane, "a stage has at least one lane"
        return self.dynamodb_lane.processor

    def _make_admin(self) -> Function:
        """Create the function for operators. Only IAM's `lambda:InvokeFunction` lets a caller invoke it."""
        function = Function(
            self,
            "admin",
            runtime=self._runtime,
            timeout=cdk.Duration.seconds(ADMIN_TIMEOUT_SECONDS),
            settings=AdminSettings(
                log=self.log,
                valkey=self._valkey,
                dynamodb_lane=self.dynamodb_lane.settings if self.dynamodb_lane else None,
                redrive_function=self.emitter.entrance.function_name,
                ingest_function=self.ingest.entrance.function_name,
                event_bus=self.bus.event_bus_name,
                dead_letter_queue_url=self.dead_letters.queue_url,
                rules=self._config.rules,
                platform_numbers=self._config.platform_numbers,
                rules_table=self.rules_table.table_name,
                takeovers_table=self.takeovers_table.table_name,
                aliases_table=self.aliases_table.table_name,
                tuning_table=self.tuning_table.table_name,
                oversize_bucket=self.oversize.bucket_name,
                ages_out=_ages_out(self._config),
                queues=tuple(self.queues),
                queue_dead_letter_urls=tuple(each.dead_letters.queue_url for each in self.queues.values()),
            ),
        )
        idle_pass = events.RuleTargetInput.from_object({"operation": "idle.pass", "by": "schedule"})
        every_minute = events.Schedule.rate(cdk.Duration.minutes(1))
        target = targets.LambdaFunction(function, event=idle_pass, retry_attempts=0)
        events.Rule(self, "PassOverIdle", schedule=every_minute, targets=[target])
        if cut_share := self._config.tune.weekly_cut_share:
            event = {"operation": "tune.weekly", "by": "tune", "scope": "stage", "cutShare": cut_share}
            request = events.RuleTargetInput.from_object(event)
            schedule = events.Schedule.cron(week_day="MON", hour="3", minute="0")
            target = targets.LambdaFunction(function, event=request, retry_attempts=0)
            events.Rule(self, "TuneEveryWeek", schedule=schedule, targets=[target])
        return function

    def _export(self) -> None:
        outputs = {
            "ApiEndpoint": self.webhooks.url,
            "EventBusName": self.bus.event_bus_name,
            "DeadLetterQueueUrl": self.dead_letters.queue_url,
            "OversizeBucketName": self.oversize.bucket_name,
            "WebhookSecretId": self.webhook_secrets.secret_arn,
            "RulesTableName": self.rules_table.table_name,
        }
        for name, each in self.queues.items():
            outputs[f"Queue{camel_case(name)}Url"] = each.queue.queue_url
            outputs[f"QueueDeadLetters{camel_case(name)}Url"] = each.dead_letters.queue_url
        if commit := self.node.try_get_context("commit"):
            outputs["Commit"] = commit
        if self.whatsapp_queues is not None:
            outputs["UnreadableWebhooksQueueUrl"] = self.whatsapp_queues.unreadable.queue_url
        if self.webhooks.dns_target is not None:
            outputs["ApiDnsTarget"] = self.webhooks.dns_target
        for role, function in self.functions.items():
            camel = "".join(word.capitalize() for word in role.split("_"))
            outputs[f"{camel}Function"] = function.function_name
            outputs[f"{camel}LogGroup"] = function.log_group.log_group_name
        for name, value in outputs.items():
            cdk.CfnOutput(self, name, value=value)


def _ages_out(config: StageConfig) -> dict[str, int]:
    """Return, by place, the days until copies expire that `conversation forget` cannot erase."""
    found = {
        "the conversation's id in the responder's table": config.outbox_days if config.responder else 0,
        "batches that wait in the stage's queues": DEAD_LETTER_RETENTION_DAYS if config.effective_queues else 0,
        "logs, which contain ids and no words": config.log_retention_days,
        "continuous backups of the tables": 0 if config.is_local else 35,  # DynamoDB keeps them this long
        "webhooks of AWS End User Messaging that wait or could not be read": DEAD_LETTER_RETENTION_DAYS
        if config.end_user_messaging_topic
        else 0,
        "archive of the bus": config.bus.archive_days,
    }
    return {place: days for place, days in found.items() if days}
