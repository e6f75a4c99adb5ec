"""Operability stack: alarms and dashboard. It is a stack of its own because the emulator supports neither."""

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk.aws_sns_subscriptions import EmailSubscription
from constructs import Construct

from .alarms import raise_alarms
from .dashboard import draw_dashboard
from .function import refer_weakly
from .metrics import Metrics
from .settings_and_defaults import StageConfig


class OperabilityStack(cdk.Stack):
    """The alarms, the topic that they notify, and the dashboard."""

    def __init__(self, scope: Construct, construct_id: str, *, metrics: Metrics, env: cdk.Environment) -> None:
        super().__init__(scope, construct_id, env=env)
        refer_weakly(self)
        topic = self._make_topic(metrics.config)
        alarms = raise_alarms(self, metrics, action=actions.SnsAction(topic))
        draw_dashboard(self, metrics, alarms=alarms)
        cdk.CfnOutput(self, "AlarmTopicArn", value=topic.topic_arn)

    def _make_topic(self, config: StageConfig) -> sns.Topic:
        """Create the topic for alarms.

        The topic is encrypted with a key of its own, because CloudWatch may not use AWS's key for SNS, and alarms would
        be lost.
        """
        cloudwatch = iam.ServicePrincipal("cloudwatch.amazonaws.com")
        key = kms.Key(
            self,
            "AlarmKey",
            description=f"Alarms of message-buffer-{config.name}",
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        only_ours = {"StringEquals": {"aws:SourceAccount": self.account}}
        key.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[cloudwatch],
                actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                resources=["*"],
                conditions=only_ours,
            )
        )
        topic = sns.Topic(
            self,
            "AlarmTopic",
            display_name=f"message-buffer-{config.name}",
            master_key=key,
            enforce_ssl=True,
        )
        # This policy replaces the default one, which lets the whole account publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                principals=[cloudwatch],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions=only_ours,
            )
        )
        for address in config.alarm_emails:
            topic.add_subscription(EmailSubscription(address))
        return topic
