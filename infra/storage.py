"""The storage outside of Valkey: queues, the bucket for batches too large for an event, tables and secrets."""

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from message_buffer.limits import DEAD_LETTER_RETENTION_DAYS

from .function import keep_identity, removal_policy, suppress_finding
from .settings_and_defaults import StageConfig

DEAD_LETTER_RETENTION = cdk.Duration.days(DEAD_LETTER_RETENTION_DAYS)
# The bucket's folders for batches that are too large for an event, and for batches that are too large for a dead
# letter.
BATCHES, DEAD_LETTERS = "batches/*", "dead-letters/*"
# The index of the DynamoDB lane's table in which the sweep finds open windows, sorted by `due_at`.
OPEN_WINDOWS = "open"
# The index of the table of takeovers in which a pass finds the customers who fell silent, sorted by `at`.
IDLE_BY_TIME = "by_time"


class QueueConstruct(sqs.Queue):
    """A queue. It must have a dead-letter queue, or a stated reason why it has none."""

    def __init__(  # noqa: PLR0913 - the callers decide each of them
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        no_dead_letters_because: str | None = None,
        dead_letters: sqs.DeadLetterQueue | None = None,
        fifo: bool = False,
        retention: cdk.Duration = DEAD_LETTER_RETENTION,
        delay: cdk.Duration | None = None,
        visibility: cdk.Duration | None = None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            fifo=fifo,
            # These two make the high throughput of a FIFO queue.
            deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP if fifo else None,
            fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID if fifo else None,
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
        partition_key: str = "conversation",
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

    def add_index(self, name: str, *, partition_key: str, time: str) -> None:
        """Add an index of keys alone, sorted by the attribute `time`."""
        self.add_global_secondary_index(
            index_name=name,
            partition_key=_text(partition_key),
            sort_key=dynamodb.Attribute(name=time, type=dynamodb.AttributeType.NUMBER),
            projection_type=dynamodb.ProjectionType.KEYS_ONLY,
        )


class MessageTableConstruct(TableConstruct):
    """The DynamoDB lane's table: the messages of each conversation in order, and the state of its window."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(scope, construct_id, config=config, sort_key="item", expires_by="expires_at")
        self.add_index(OPEN_WINDOWS, partition_key="open", time="due_at")


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)


class SecretConstruct(secretsmanager.Secret):
    """A secret that only people rotate. Without a generator, a deployment creates it as an empty object."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        config: StageConfig,
        description: str,
        not_rotated_because: str,
        generator: secretsmanager.SecretStringGenerator | None = None,
    ) -> None:
        super().__init__(
            scope,
            construct_id,
            description=description,
            generate_secret_string=generator,
            secret_string_value=None if generator else cdk.SecretValue.unsafe_plain_text("{}"),
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        suppress_finding(self, "AwsSolutions-SMG4", not_rotated_because)

    @property
    def policy_arn(self) -> str:
        """Return the ARN for policies.

        In AWS it equals `secret_arn`. On the emulator, which enforces policies, `secret_arn` is the secret's name.
        """
        secret = self.node.default_child
        assert isinstance(secret, secretsmanager.CfnSecret)
        return secret.attr_id


def key_of_logged_ids(scope: Construct, config: StageConfig) -> secretsmanager.Secret | None:
    """Return the key under which ids are hashed in logs, or None if the stage needs none.

    CloudFormation puts the key's value into the functions' environment, so no function needs to read the secret. A
    stage with a responder has the key even if it needs none. The responder's stack may import the key, and
    CloudFormation cannot remove it in the same deployment that ends the import.
    """
    if config.log_ids == "plain" and not config.responder:
        return None
    return SecretConstruct(
        scope,
        "LogIdKey",
        config=config,
        description="The key under which ids are hashed in the logs.",
        generator=secretsmanager.SecretStringGenerator(exclude_punctuation=True),
        not_rotated_because="With a new key, operators could not find an id's older log lines.",
    )
