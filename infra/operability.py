"""Operability stack: what tells a person that something is wrong, apart because no emulator has it."""

from collections.abc import Mapping

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.api import WebApi

MINUTE = cdk.Duration.minutes(1)


class OperabilityStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        env: cdk.Environment,
        functions: Mapping[str, lambda_.IFunction],
        dead_letters: sqs.IQueue,
        api: WebApi,
    ) -> None:
        super().__init__(scope, construct_id, env=env)
        dead = dead_letters.metric_approximate_number_of_messages_visible(period=MINUTE, statistic="Maximum")
        refused = api.metric_server_error(period=MINUTE, statistic="Sum")
        errors = {role: function.metric_errors(period=MINUTE) for role, function in functions.items()}
        self._alarm("DeadLetters", dead, "Batches wait in the dead-letter queue.")
        self._alarm("Webhooks", refused, "The API answers webhooks with 5xx: platforms redeliver, then give up.")
        for role, metric in errors.items():
            self._alarm(f"Errors-{role}", metric, f"The {role} function fails.")
        cloudwatch.Dashboard(
            self,
            "Dashboard",
            widgets=[
                [
                    cloudwatch.GraphWidget(title="Webhooks", left=[api.metric_count(period=MINUTE), refused]),
                    cloudwatch.GraphWidget(title="Errors", left=list(errors.values())),
                    cloudwatch.GraphWidget(title="Dead letters", left=[dead]),
                ]
            ],
        )

    def _alarm(self, construct_id: str, metric: cloudwatch.IMetric, description: str) -> None:
        cloudwatch.Alarm(
            self,
            construct_id,
            metric=metric,
            threshold=0,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            evaluation_periods=1,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=description,
        )
