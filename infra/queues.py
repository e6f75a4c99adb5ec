"""The stage's queues: each hands over one conversation's batches in order, the next after the earlier ones are done."""

from typing import NamedTuple

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from .settings_and_defaults import StageConfig
from .storage import QueueConstruct

# Lambda accepts no queue that hides a batch for less time than the consuming function may run. This is Lambda's longest
# time-out, so any function may consume any queue. A consumer that receives a batch first shortens the time, because
# after a crash the conversation waits for it.
VISIBILITY = cdk.Duration.minutes(15)
# After this many deliveries SQS moves a batch to the dead letters. A delivery counts even if the consumer only gave the
# batch back, so this is more than a consumer needs. The responder gives up after 12.
MAX_RECEIVES = 20
# The actions of a consumer, which receives messages, puts them back, and deletes single ones.
CONSUME = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes")


class BatchQueue(NamedTuple):
    queue: QueueConstruct
    dead_letters: QueueConstruct


def make_queues(scope: Construct, config: StageConfig) -> dict[str, BatchQueue]:
    """Create the stage's queues, and return them by name."""
    return {name: _make_queue(scope, config, camel_case(name)) for name in config.effective_queues}


def _make_queue(scope: Construct, config: StageConfig, name: str) -> BatchQueue:
    dead_letters = QueueConstruct(
        scope,
        f"QueueDeadLetters{name}",
        config=config,
        fifo=True,
        no_dead_letters_because="It contains the batches that consumers gave up.",
    )
    queue = QueueConstruct(
        scope,
        f"Queue{name}",
        config=config,
        fifo=True,
        visibility=VISIBILITY,
        dead_letters=sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=MAX_RECEIVES),
    )
    if config.bus.consumer_accounts:
        consumers = [iam.AccountPrincipal(account) for account in config.bus.consumer_accounts]
        queue.add_to_resource_policy(
            iam.PolicyStatement(principals=consumers, actions=[*CONSUME], resources=[queue.queue_arn])
        )
    return BatchQueue(queue, dead_letters)


def camel_case(name: str) -> str:
    """Return a queue's name as it is in the names of resources and outputs."""
    return "".join(word.capitalize() for word in name.split("-"))
