"""Create a queue and the rule that fills it with a stage's events, or update them; print the queue's URL.

Usage: python examples/consumer/subscribe.py <bus> <name>
"""

import json
import sys

import boto3

EVENTS = ["messages.batch.ready", "messages.amended", "messages.buffer.cancelled"]


def subscribe(bus: str, name: str) -> str:
    """Return the URL of the queue; queue and rule are called `name`."""
    sqs, events = boto3.client("sqs"), boto3.client("events")
    url: str = sqs.create_queue(QueueName=name)["QueueUrl"]
    queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    # This tenant's messages are trials, by which operators test the stage.
    of_customers = {"tenant": [{"anything-but": ["message-buffer-trial"]}]}
    pattern = {"source": ["message-buffer"], "detail-type": EVENTS, "detail": of_customers}
    rule = events.put_rule(Name=name, EventBusName=bus, EventPattern=json.dumps(pattern))["RuleArn"]
    only_the_rule_sends = {
        "Effect": "Allow",
        "Principal": {"Service": "events.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": rule}},
    }
    policy = {"Version": "2012-10-17", "Statement": [only_the_rule_sends]}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})
    refused = events.put_targets(Rule=name, EventBusName=bus, Targets=[{"Id": "queue", "Arn": queue}])["FailedEntries"]
    assert not refused, refused
    return url


if __name__ == "__main__":
    print(subscribe(*sys.argv[1:]))
