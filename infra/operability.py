"""The alarms and dashboards of a stage. The local stage has none, because the emulator supports neither."""

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk.aws_sns_subscriptions import EmailSubscription
from constructs import Construct

from .alarms import raise_alarms
from .dashboard import draw_dashboard
from .function import keep_identity
from .metrics import Metrics
from .settings_and_defaults import StageConfig


class BufferOperability(Construct):
    """The topic that all alarms of the stage notify, with the buffer's alarms and dashboard."""

    def __init__(self, scope: Construct, metrics: Metrics) -> None:
        super().__init__(scope, "Operability")
        topic = self._make_topic(metrics.config)
        alarms = raise_alarms(self, metrics, actions.SnsAction(topic))
        draw_dashboard(self, metrics.config.name, metrics, alarms)
        cdk.CfnOutput(scope, "AlarmTopicArn", value=topic.topic_arn)

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
        only_ours = {"StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account}}
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
            topic_name=_topic_name(config),
            display_name=f"message-buffer-{config.name}",
            master_key=key,
            enforce_ssl=True,
        )
        keep_identity(topic, "AlarmTopic")
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


class ResponderOperability(Construct):
    """The responder's alarms and dashboard."""

    def __init__(self, scope: Construct, metrics: Metrics) -> None:
        super().__init__(scope, "Operability")
        # Refer to the topic by its name, because CloudFormation would look up a reference to the other stack once for
        # each alarm.
        arn = cdk.Stack.of(self).format_arn(
            service="sns", resource=_topic_name(metrics.config), arn_format=cdk.ArnFormat.NO_RESOURCE_NAME
        )
        topic = sns.Topic.from_topic_arn(self, "AlarmTopic", arn)
        alarms = raise_alarms(self, metrics, actions.SnsAction(topic))
        draw_dashboard(self, f"{metrics.config.name}-responder", metrics, alarms)


def _topic_name(config: StageConfig) -> str:
    return f"message-buffer-{config.name}-alarms"
