"""The numbers that alarms and dashboard look at, and where CloudWatch keeps them.

The functions' own metrics are in the namespace `MessageBuffer/<stage>`, each under `service`: the role of the function
that told it. What is counted by reason is under `reason` and `service`, and not under `service` alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sqs as sqs

from infra.config import StageConfig
from infra.function import Function

MINUTE = cdk.Duration.minutes(1)
FIVE_MINUTES = cdk.Duration.minutes(5)


class Api(Protocol):
    """An HTTP API or a REST API."""

    def metric_count(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric: ...

    def metric_client_error(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric: ...

    def metric_server_error(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric: ...

    def metric_latency(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric: ...


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics of one stage."""

    config: StageConfig
    functions: Mapping[str, Function]
    api: Api
    cache_name: str | None
    dead_letters: sqs.IQueue
    undelivered: sqs.IQueue | None
    """`None`, as the cache, where the DynamoDB lane stands alone."""
    reply_dead_letters: sqs.IQueue | None = None
    """Of a stage that has a responder."""

    def custom(
        self,
        name: str,
        service: str,
        *,
        statistic: str = "Sum",
        period: cdk.Duration = MINUTE,
        reason: str | None = None,
    ) -> cloudwatch.Metric:
        """What a function told about itself."""
        return cloudwatch.Metric(
            namespace=self._namespace,
            metric_name=name,
            dimensions_map={"service": service} | ({"reason": reason} if reason else {}),
            statistic=statistic,
            period=period,
            label=reason or name,
        )

    def custom_sum(self, name: str, *, period: cdk.Duration = MINUTE) -> cloudwatch.MathExpression:
        """The sum over the functions: a query, because a sum of metrics is missing as soon as one of them is."""
        query = f'SELECT SUM({name}) FROM SCHEMA("{self._namespace}", service)'  # noqa: S608 - both are our own words
        return cloudwatch.MathExpression(expression=query, label=name, period=period)

    def custom_by_reason(self, name: str, service: str) -> cloudwatch.MathExpression:
        """One line a reason that occurred; for graphs, alarms take no search."""
        search = f'{{{self._namespace},reason,service}} MetricName="{name}" service="{service}"'
        return cloudwatch.MathExpression(
            expression=f"SEARCH('{search}', 'Sum', {MINUTE.to_seconds()})",
            label="${PROP('Dim.reason')}",
            period=MINUTE,
        )

    def function(
        self, role: str, name: str, *, statistic: str = "Sum", period: cdk.Duration = MINUTE
    ) -> cloudwatch.Metric:
        """What Lambda says of a function, whichever version of it runs."""
        return self.functions[role].metric(name, statistic=statistic, period=period, label=role)

    def cache(self, name: str, *, statistic: str, period: cdk.Duration = MINUTE) -> cloudwatch.Metric:
        """What ElastiCache says. Serverless caches are under `clusterId`; others are under `CacheClusterId`."""
        assert self.cache_name, "asked for where there is a cache"
        return cloudwatch.Metric(
            namespace="AWS/ElastiCache",
            metric_name=name,
            dimensions_map={"clusterId": self.cache_name},
            statistic=statistic,
            period=period,
            label=f"{name} {statistic.lower()}",
        )

    def waiting_in(self, queue: sqs.IQueue, *, label: str) -> cloudwatch.Metric:
        return queue.metric_approximate_number_of_messages_visible(period=MINUTE, statistic="Maximum", label=label)

    @property
    def _namespace(self) -> str:
        return f"MessageBuffer/{self.config.name}"
