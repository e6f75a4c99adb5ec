"""The storage outside of Valkey: queues, the bucket for batches too large for an event, tables and secrets.

Each construct grants access to itself, in methods named `grant_…`. They grant exactly the actions that the functions
call; CDK's own grants contain more.
"""

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from message_buffer.limits import DEAD_LETTER_RETENTION_DAYS
from message_buffer.settings import DynamoDbLaneSettings, EmissionSettings

from .bus import BatchBus
from .function import Function, grant, keep_identity, removal_policy, suppress_finding
from .settings_and_defaults import LimitsConfig, StageConfig

DEAD_LETTER_RETENTION = cdk.Duration.days(DEAD_LETTER_RETENTION_DAYS)
# The bucket's folders for batches that are too large for an event, and for batches that are too large for a dead
# letter.
BATCHES, DEAD_LETTERS = "batches/*", "dead-letters/*"
UNKNOWN_NAMES = "Objects are named after future batches, so a policy can only name their folder."


class QueueConstruct(sqs.Queue):
    """A queue. It must have a dead-letter queue, or a stated reason why it has none."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        no_dead_letters_because: str | None = None,
        dead_letters: sqs.DeadLetterQueue | None = None,
        retention: cdk.Duration = DEAD_LETTER_RETENTION,
        delay: cdk.Duration | None = None,
        visibility: cdk.Duration | None = None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            retention_period=retention,
            delivery_delay=delay,
            visibility_timeout=visibility,
            dead_letter_queue=dead_letters,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=not config.is_local,  # the emulator has no TLS
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        if no_dead_letters_because:
            suppress_finding(self, "AwsSolutions-SQS3", no_dead_letters_because)

    def grant_send(self, grantee: iam.IGrantable) -> iam.Grant:
        return grant(grantee, "sqs:SendMessage", on=self.queue_arn)

    def grant_take(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` receive and delete messages."""
        return grant(grantee, "sqs:ReceiveMessage", "sqs:DeleteMessage", on=self.queue_arn)

    def grant_inspect(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` look at the messages of the queue, put them back, and delete single ones."""
        actions = ("ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes")
        return grant(grantee, *(f"sqs:{action}" for action in actions), on=self.queue_arn)


class OversizeBucket(s3.Bucket):
    """The bucket for batches that are too large for an event or a dead letter."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope,
            construct_id,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=not config.is_local,  # the emulator has no TLS
            lifecycle_rules=[
                _expire(BATCHES, cdk.Duration.days(config.oversize_days)),
                # The bucket keeps the content of a large dead letter longer than the queue keeps the letter.
                _expire(DEAD_LETTERS, cdk.Duration.days(DEAD_LETTER_RETENTION_DAYS + 1)),
            ],
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        suppress_finding(
            self,
            "AwsSolutions-S1",
            "One function writes and named accounts read. An access log would need a bucket of its own, and CloudTrail "
            "data events contain more.",
        )
        if config.bus.consumer_accounts:
            # Accounts that receive the events may read the batches that were too large for an event.
            self.add_to_resource_policy(
                iam.PolicyStatement(
                    principals=[iam.AccountPrincipal(account) for account in config.bus.consumer_accounts],
                    actions=["s3:GetObject"],
                    resources=[self.arn_for_objects(BATCHES)],
                )
            )

    def grant_write_batches(self, function: Function) -> None:
        """Let `function` store batches, and store and read dead letters."""
        batches, dead_letters = map(self.arn_for_objects, (BATCHES, DEAD_LETTERS))
        grant(function, "s3:PutObject", on=batches)
        # If a dead letter was too large for its queue, a redrive reads its content from the bucket.
        grant(function, "s3:PutObject", "s3:GetObject", on=dead_letters)
        assert function.role is not None
        for folder in (BATCHES, DEAD_LETTERS):
            suppress_finding(function.role, f"AwsSolutions-IAM5[Resource::<Oversize.Arn>/{folder}]", UNKNOWN_NAMES)

    def grant_forget(self, function: Function) -> None:
        """Let `function` find the objects of a conversation and delete them. It cannot read them."""
        folders = (BATCHES, DEAD_LETTERS)
        found = grant(function, "s3:ListBucket", on=self.bucket_arn)
        for statement in found.principal_statements:
            statement.add_conditions({"StringLike": {"s3:prefix": list(folders)}})
        assert function.role is not None
        for folder in folders:
            grant(function, "s3:DeleteObject", on=self.arn_for_objects(folder))
            suppress_finding(function.role, f"AwsSolutions-IAM5[Resource::<Oversize.Arn>/{folder}]", UNKNOWN_NAMES)

    def grant_read_batches(self, function: Function) -> None:
        """Let `function`, which is in another stack, read batches."""
        stack = cdk.Stack.of(self)
        # Give the export a fixed name, because the finding that is suppressed below contains the export's name.
        exported = f"{stack.stack_name}-OversizeBucketArn"
        grant(function, "s3:GetObject", on=f"{stack.export_value(self.bucket_arn, name=exported)}/{BATCHES}")
        assert function.role is not None
        suppress_finding(function.role, f"AwsSolutions-IAM5[Resource::{exported}/{BATCHES}]", UNKNOWN_NAMES)


@dataclass(frozen=True)
class EventDestinations:
    """The destinations of a batch: the bus, the bucket if the batch is too large, the queue if it cannot be emitted."""

    bus: BatchBus
    oversize: OversizeBucket
    dead_letters: QueueConstruct

    def settings(self, limits: LimitsConfig) -> EmissionSettings:
        """Return the settings of a function that emits batches."""
        return EmissionSettings(
            event_bus=self.bus.event_bus_name,
            max_event_bytes=limits.max_event_bytes,
            oversize_bucket=self.oversize.bucket_name,
            max_attempts=limits.max_attempts,
            dead_letter_queue_url=self.dead_letters.queue_url,
        )

    def grant_emit(self, function: Function) -> None:
        """Let `function` emit batches and dead-letter those that it cannot emit."""
        self.bus.grant_publish(function)
        self.dead_letters.grant_send(function)
        self.oversize.grant_write_batches(function)


def _expire(prefix: str, after: cdk.Duration) -> s3.LifecycleRule:
    return s3.LifecycleRule(prefix=prefix.removesuffix("*"), expiration=after)


class TableConstruct(dynamodb.Table):
    """A table that AWS bills by use, and encrypts with a key that AWS owns.

    In AWS an operator can restore it to any second of the last five weeks, even after its deletion. It has no deletion
    protection, because CloudFormation could not delete a protected table after a failed first deployment.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        partition_key: str,
        sort_key: str | None = None,
        expires_by: str | None = None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            partition_key=_text(partition_key),
            sort_key=_text(sort_key) if sort_key else None,
            time_to_live_attribute=expires_by,
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=not config.is_local
            ),
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)

    def _grant(self, grantee: iam.IGrantable, *actions: str) -> iam.Grant:
        return grant(grantee, *(f"dynamodb:{action}" for action in actions), on=self.table_arn)


class RulesTableConstruct(TableConstruct):
    """The rules that operators change. The table is small, so a function reads all of it."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(scope, construct_id, config=config, partition_key="scope")

    def grant_read_rules(self, grantee: iam.IGrantable) -> iam.Grant:
        return self._grant(grantee, "GetItem", "Scan")

    def grant_change_rules(self, grantee: iam.IGrantable) -> iam.Grant:
        return self._grant(grantee, "GetItem", "Scan", "PutItem", "DeleteItem")


class AliasesTableConstruct(TableConstruct):
    """The ids of authors who have more than one. `message_buffer/aliases/aliases_table.py` defines the items."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(scope, construct_id, config=config, partition_key="conversation", expires_by="expiresAt")

    def grant_learn(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` look up the ids of an author, and add new ones."""
        return self._grant(grantee, "GetItem", "PutItem")

    def grant_forget(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` look up the ids of an author, and erase them."""
        return self._grant(grantee, "GetItem", "DeleteItem")


class MessageTableConstruct(TableConstruct):
    """The DynamoDB lane's table: the messages of each conversation in order, and the state of its window."""

    # The index in which the sweep finds open windows, sorted by `due_at`.
    OPEN = "open"

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope, construct_id, config=config, partition_key="conversation", sort_key="item", expires_by="expires_at"
        )
        self.add_global_secondary_index(
            index_name=self.OPEN,
            partition_key=_text("open"),
            sort_key=dynamodb.Attribute(name="due_at", type=dynamodb.AttributeType.NUMBER),
            projection_type=dynamodb.ProjectionType.KEYS_ONLY,
        )

    def grant_store_messages(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` open windows, and store and change messages, as ingest does."""
        return self._grant(grantee, "GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query", "BatchWriteItem")

    def grant_hold(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` read the window of a conversation, and start or end its hold."""
        return self._grant(grantee, "GetItem", "UpdateItem")

    def grant_forget(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` erase the window of a conversation."""
        return self._grant(grantee, "DeleteItem")

    def grant_end_windows(self, grantee: iam.IGrantable) -> None:
        """Let `grantee` find open windows, freeze their batches, and erase messages or mark them as emitted."""
        self._grant(grantee, "GetItem", "UpdateItem", "Query", "BatchGetItem", "BatchWriteItem")
        grant(grantee, "dynamodb:Query", on=f"{self.table_arn}/index/{self.OPEN}")


@dataclass(frozen=True)
class WindowStorage:
    """The table in which the DynamoDB lane stores messages, and the queue whose delayed messages end windows."""

    table: MessageTableConstruct
    triggers: QueueConstruct

    @property
    def settings(self) -> DynamoDbLaneSettings:
        """Return the settings of a function that uses the lane."""
        return DynamoDbLaneSettings(table=self.table.table_name, queue_url=self.triggers.queue_url)


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)


class TakeoversTableConstruct(TableConstruct):
    """The conversations that human agents answer. `message_buffer/takeovers/` defines the items."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(scope, construct_id, config=config, partition_key="conversation", expires_by="expires_at")

    def grant_record_replies(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` read and change takeovers, as ingest does."""
        return self._grant(grantee, "GetItem", "UpdateItem")

    def grant_resume_and_forget(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` read, end and erase takeovers."""
        return self._grant(grantee, "GetItem", "UpdateItem", "DeleteItem")


class ConversationsTableConstruct(TableConstruct):
    """The responder's records, outboxes and turns. `lambdas/responder/conversations_table.py` defines the items."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope, construct_id, config=config, partition_key="id", sort_key="part", expires_by="expiresAt"
        )

    def grant_read_write(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let `grantee` read, write and erase items, as the responder does."""
        return self._grant(grantee, "GetItem", "PutItem", "UpdateItem", "DeleteItem", "Query")


class _SecretConstruct(secretsmanager.Secret):
    @property
    def policy_arn(self) -> str:
        """Return the ARN for policies.

        In AWS it equals `secret_arn`. On the emulator, which enforces policies, `secret_arn` is the secret's name.
        """
        secret = self.node.default_child
        assert isinstance(secret, secretsmanager.CfnSecret)
        return secret.attr_id

    def grant_get_value(self, grantee: iam.IGrantable) -> iam.Grant:
        return grant(grantee, "secretsmanager:GetSecretValue", on=self.policy_arn)


class ResponderSecretsConstruct(_SecretConstruct):
    """The keys of the AI and of the channels.

    A deployment creates the secret empty. A person then enters the keys, and no later deployment removes them.
    """

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope,
            construct_id,
            description="JSON: keys of the AI and of the channels; lambdas/responder/credentials.py says which.",
            secret_string_value=cdk.SecretValue.unsafe_plain_text("{}"),
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        suppress_finding(
            self,
            "AwsSolutions-SMG4",
            "The AI and the channels issue these keys, so only a person can rotate them there.",
        )


class WebhookSecretsConstruct(_SecretConstruct):
    """The secrets with which platforms sign their webhooks. A deployment generates only the one for `generic`."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope,
            construct_id,
            description='JSON: platform -> webhook secret, or {"secret", "verifyToken"}. A platform not listed is off.',
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template="{}",  # noqa: S106 - an empty object, not a secret
                generate_string_key="generic",
                exclude_punctuation=True,
            ),
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        suppress_finding(
            self,
            "AwsSolutions-SMG4",
            "The platforms issue these secrets, so only a person can rotate them there; a platform may have two.",
        )


def key_of_logged_ids(scope: Construct, config: StageConfig) -> secretsmanager.Secret | None:
    """Return the key under which ids are hashed in logs, or None if the stage needs none.

    CloudFormation puts the key's value into the functions' environment, so no function needs to read the secret. A
    stage with a responder has the key even if it needs none. The responder's stack may import the key, and
    CloudFormation cannot remove it in the same deployment that ends the import.
    """
    if config.log_ids == "plain" and not config.responder:
        return None
    secret = _SecretConstruct(
        scope,
        "LogIdKey",
        description="The key under which ids are hashed in the logs.",
        generate_secret_string=secretsmanager.SecretStringGenerator(exclude_punctuation=True),
        removal_policy=removal_policy(config),
    )
    keep_identity(secret, "LogIdKey")
    suppress_finding(secret, "AwsSolutions-SMG4", "With a new key, operators could not find an id's older log lines.")
    return secret
