"""A stack with the function, its table of marks, and the mapping on a stage's queue; see README.md."""

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as sources
from aws_cdk import aws_sqs as sqs
from constructs import Construct

ROOT = Path(__file__).parents[2]
ONLY_THE_EXAMPLE = ["/*", "!/message_buffer", "!/examples", "/examples/*", "!/examples/plain_lambda", "__pycache__"]


def build(scope: Construct, *, queue: str, gate: str, bucket: str, model: str) -> cdk.Stack:
    """Return the stack. `queue`, `gate` and `bucket` are outputs of the stage."""
    stack = cdk.Stack(scope, "message-buffer-plain-lambda")
    table = dynamodb.Table(
        stack,
        "Marks",
        partition_key=dynamodb.Attribute(name="id", type=dynamodb.AttributeType.STRING),
        time_to_live_attribute="expiresAt",
        billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
    )
    function = lambda_.Function(
        stack,
        "Consumer",
        code=lambda_.Code.from_asset(str(ROOT), exclude=ONLY_THE_EXAMPLE, ignore_mode=cdk.IgnoreMode.GIT),
        handler="examples.plain_lambda.handler.handler",
        runtime=lambda_.Runtime.PYTHON_3_13,
        timeout=cdk.Duration.minutes(5),  # at most as long as the queue hides an entry
        environment={"QUEUE_URL": queue, "MARKS_TABLE": table.table_name, "GATE_FUNCTION": gate, "MODEL": model},
    )
    arn = stack.format_arn(service="sqs", resource=queue.rpartition("/")[2])
    fifo = sqs.Queue.from_queue_arn(stack, "Queue", arn)
    function.add_event_source(sources.SqsEventSource(fifo, report_batch_item_failures=True))
    table.grant_read_write_data(function)
    lambda_.Function.from_function_name(stack, "Gate", gate).grant_invoke(function)
    # "sqs:*Batch" is for the local stage's emulator. In AWS, the mapping's permissions contain the calls of batches.
    on_queue, on_batches = f"sqs:*:*:{queue.rpartition('/')[2]}", f"s3:::{bucket}/batches/*"
    allowed = {"sqs:*Batch": on_queue, "s3:GetObject": on_batches, "bedrock:InvokeModel": "bedrock:*:*:*"}
    for action, resource in allowed.items():
        function.add_to_role_policy(iam.PolicyStatement(actions=[action], resources=[f"arn:aws:{resource}"]))
    return stack


if __name__ == "__main__":
    app = cdk.App(default_stack_synthesizer=cdk.CliCredentialsStackSynthesizer())
    build(app, **{name: app.node.get_context(name) for name in ("queue", "gate", "bucket", "model")})
    app.synth()
