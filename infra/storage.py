"""What the buffer keeps outside of Valkey: queues, a bucket for what is too large to be sent, tables and secrets."""

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.config import StageConfig
from infra.environment import EventDestinations
from infra.function import Function, acknowledge, keep_identity, removal_policy

DEAD_LETTER_RETENTION = cdk.Duration.days(14)
# Where the conversation processor puts what is too large for an event or a letter.
BATCHES, DEAD_LETTERS = "batches/*", "dead-letters/*"


class Queue(sqs.Queue):
    """With a dead-letter queue, or without one for a reason."""

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
            acknowledge(self, "AwsSolutions-SQS3", no_dead_letters_because)


class OversizeBucket(s3.Bucket):
    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope,
            construct_id,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=not config.is_local,  # the emulator has no TLS
            lifecycle_rules=[
                _expire(BATCHES, cdk.Duration.days(config.oversize_retention_days)),
                # What a dead letter refers to outlives the letter.
                _expire(DEAD_LETTERS, DEAD_LETTER_RETENTION.plus(cdk.Duration.days(1))),
            ],
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        acknowledge(
            self,
            "AwsSolutions-S1",
            "One function writes and named accounts read; an access log would need a bucket of its own, and CloudTrail "
            "data events tell more.",
        )
        if config.bus.consumer_accounts:
            # Who may listen to events may read the batches that were too large for one.
            self.add_to_resource_policy(
                iam.PolicyStatement(
                    principals=[iam.AccountPrincipal(account) for account in config.bus.consumer_accounts],
                    actions=["s3:GetObject"],
                    resources=[self.arn_for_objects(BATCHES)],
                )
            )


def grant_emit(function: Function, destinations: EventDestinations) -> None:
    """Put batches on the bus, what is too large into the bucket, and what cannot leave aside."""
    batches, letters = map(destinations.oversize.arn_for_objects, (BATCHES, DEAD_LETTERS))
    function.allow("events:PutEvents", on=destinations.bus.event_bus_arn)
    function.allow("sqs:SendMessage", on=destinations.dead_letters.queue_arn)
    function.allow("s3:PutObject", on=batches)
    # A dead letter that was too large for its queue is read again when it is redriven.
    function.allow("s3:PutObject", "s3:GetObject", on=letters)
    assert function.role is not None
    for folder in (BATCHES, DEAD_LETTERS):
        acknowledge(
            function.role,
            f"AwsSolutions-IAM5[Resource::<Oversize.Arn>/{folder}]",
            "Objects are named after batches that are yet to come: what can be named is their folder.",
        )


def _expire(prefix: str, after: cdk.Duration) -> s3.LifecycleRule:
    return s3.LifecycleRule(prefix=prefix.removesuffix("*"), expiration=after)


class Table(dynamodb.Table):
    """Paid by use, encrypted with a key of AWS; in AWS it can be taken back to any second of the last five weeks."""

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
            deletion_protection=config.termination_protection,
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)


class RulesTable(Table):
    """The rules that operators change: few, small, and read whole."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(scope, construct_id, config=config, partition_key="scope")


class MessageTable(Table):
    """What the DynamoDB lane holds: the messages of a conversation beside each other, and its state."""

    # The sweep finds by it the windows that are still open, the oldest first.
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

    @property
    def open_arn(self) -> str:
        return f"{self.table_arn}/index/{self.OPEN}"


def _text(name: str) -> dynamodb.Attribute:
    return dynamodb.Attribute(name=name, type=dynamodb.AttributeType.STRING)


class ConversationsTable(Table):
    """The responder's records, outboxes and turns; `responder/conversations_table.py` names its items."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        # Only outboxes expire.
        super().__init__(
            scope, construct_id, config=config, partition_key="id", sort_key="part", expires_by="expiresAt"
        )


class ResponderSecrets(secretsmanager.Secret):
    """Empty at first: a person puts the keys in, and no deployment takes them out again."""

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope,
            construct_id,
            description="JSON: keys of the AI and of the channels; responder/credentials.py says which.",
            secret_string_value=cdk.SecretValue.unsafe_plain_text("{}"),
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        acknowledge(
            self,
            "AwsSolutions-SMG4",
            "AI and channels issue these keys: only a person can renew them there.",
        )

    @property
    def arn(self) -> str:
        """For policies, as that of `WebhookSecrets`."""
        secret = self.node.default_child
        assert isinstance(secret, secretsmanager.CfnSecret)
        return secret.attr_id


class WebhookSecrets(secretsmanager.Secret):
    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig) -> None:
        super().__init__(
            scope,
            construct_id,
            description='JSON: platform -> webhook secret, or {"secret", "verifyToken"}. A platform not in it is off.',
            generate_secret_string=secretsmanager.SecretStringGenerator(
                secret_string_template="{}",  # noqa: S106 - the empty object that the secret is put into
                generate_string_key="generic",
                exclude_punctuation=True,
            ),
            removal_policy=removal_policy(config),
        )
        keep_identity(self, construct_id)
        acknowledge(
            self,
            "AwsSolutions-SMG4",
            "The platforms issue these secrets: only a person can renew them there, and two are valid meanwhile.",
        )

    @property
    def arn(self) -> str:
        """For policies: `secret_arn` is the same in AWS, but on the emulator, which enforces them, the name."""
        secret = self.node.default_child
        assert isinstance(secret, secretsmanager.CfnSecret)
        return secret.attr_id
