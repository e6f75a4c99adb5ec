"""WhatsApp through AWS End User Messaging Social, whose topic sends webhooks to a queue that invokes ingest."""

import aws_cdk as cdk
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from aws_cdk.aws_lambda_event_sources import SqsEventSource
from aws_cdk.aws_sns_subscriptions import SqsSubscription
from constructs import Construct

from message_buffer.limits import INGEST_TIMEOUT_SECONDS, VISIBILITY_TIMEOUTS
from message_buffer.settings import WhatsAppQueueSettings

from .settings_and_defaults import StageConfig
from .storage import QueueConstruct


class WhatsAppQueues:
    """The queue of the webhooks that the topic publishes, and the queue of those that ingest could not read."""

    def __init__(self, scope: Construct, *, config: StageConfig, topic_arn: str) -> None:
        self.unreadable = QueueConstruct(
            scope, "UnreadableWebhooks", config=config, no_dead_letters_because="It is itself a queue of dead letters."
        )
        self.webhooks = QueueConstruct(
            scope,
            "WhatsAppWebhooks",
            config=config,
            visibility=cdk.Duration.seconds(VISIBILITY_TIMEOUTS * INGEST_TIMEOUT_SECONDS),
            no_dead_letters_because="A refused webhook must be delivered again, without a limit of attempts. "
            "Ingest itself moves webhooks that it cannot read to another queue.",
        )
        topic = sns.Topic.from_topic_arn(scope, "WhatsAppTopic", topic_arn)
        # The subscription's policy lets only this topic send to the queue.
        topic.add_subscription(SqsSubscription(self.webhooks, raw_message_delivery=True))

    @property
    def settings(self) -> WhatsAppQueueSettings:
        """Return ingest's settings for these queues."""
        return WhatsAppQueueSettings(queue_url=self.webhooks.queue_url, unreadable_queue_url=self.unreadable.queue_url)

    def invoke(self, ingest: lambda_.IFunction) -> None:
        """Let Lambda invoke ingest with the webhooks of the queue."""
        ingest.add_event_source(
            SqsEventSource(
                self.webhooks,
                # Ingest stores these webhooks one after the other. Each takes milliseconds, so all fit into ingest's
                # time-out.
                batch_size=10,
                report_batch_item_failures=True,
                # Webhooks in the queue can wait, so reserve ingest's other instances for the platforms that call the
                # API.
                max_concurrency=20,
            )
        )
