"""The metrics that alarms and dashboard use, and where CloudWatch keeps them.

The functions publish metrics in the namespace `MessageBuffer/<stage>`, with the function's role as the dimension
`service`. A metric that is counted by reason has the dimensions `reason` and `service`; CloudWatch has no sum of it by
`service` alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sqs as sqs

from .end_user_messaging import WhatsAppQueues
from .function import Function
from .settings_and_defaults import StageConfig

MINUTE = cdk.Duration.minutes(1)
FIVE_MINUTES = cdk.Duration.minutes(5)


class ApiMetrics(Protocol):
    """The metrics that each kind of API has: HTTP API, REST API, or a function with an address of its own."""

    def metric_count(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric: ...

    def metric_client_error(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric: ...

    def metric_server_error(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric: ...


class FunctionUrlApi:
    """The metrics of a function that has an address of its own, with the methods that CDK's API constructs have."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def metric_count(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric:
        return self._function.metric("UrlRequestCount", period=period, statistic=statistic)

    def metric_client_error(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric:
        return self._function.metric("Url4xxCount", period=period, statistic=statistic)

    def metric_server_error(self, *, period: cdk.Duration, statistic: str) -> cloudwatch.Metric:
        return self._function.metric("Url5xxCount", period=period, statistic=statistic)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics of the functions and the dead letters of one stack."""

    config: StageConfig
    functions: Mapping[str, Function]
    dead_letters: sqs.IQueue

    def custom(
        self,
        name: str,
        service: str,
        *,
        statistic: str = "Sum",
        period: cdk.Duration = MINUTE,
        reason: str | None = None,
    ) -> cloudwatch.Metric:
        """Return a metric that a function publishes about itself."""
        return cloudwatch.Metric(
            namespace=self._namespace,
            metric_name=name,
            dimensions_map={"service": service} | ({"reason": reason} if reason else {}),
            statistic=statistic,
            period=period,
            label=reason or name,
        )

    def custom_or_zero(self, name: str, service: str) -> cloudwatch.MathExpression:
        """Return a metric that a function publishes every minute, with 0 for each minute in which it did not.

        Before its first value there is nothing to fill, so an alarm on it does not fire in a new stage.
        """
        return cloudwatch.MathExpression(
            expression="FILL(published, 0)",
            using_metrics={"published": self.custom(name, service)},
            label=name,
            period=MINUTE,
        )

    def custom_sum(self, name: str, *, period: cdk.Duration = MINUTE) -> cloudwatch.MathExpression:
        """Return the sum over all functions.

        The sum is a query over the namespace. A sum of single metrics would have no value while one metric has none.
        """
        query = f'SELECT SUM({name}) FROM SCHEMA("{self._namespace}", service)'  # noqa: S608 - both are our own words
        return cloudwatch.MathExpression(expression=query, label=name, period=period)

    def custom_by_reason(self, name: str, service: str) -> cloudwatch.MathExpression:
        """Return a search that finds a line for each reason that occurred. Graphs accept a search, alarms do not."""
        search = f'{{{self._namespace},reason,service}} MetricName="{name}" service="{service}"'
        return cloudwatch.MathExpression(
            expression=f"SEARCH('{search}', 'Sum', {MINUTE.to_seconds()})",
            label="${PROP('Dim.reason')}",
            period=MINUTE,
        )

    def function(
        self, role: str, name: str, *, statistic: str = "Sum", period: cdk.Duration = MINUTE
    ) -> cloudwatch.Metric:
        """Return a metric that Lambda publishes about a function, over all of its versions."""
        return self.functions[role].metric(name, statistic=statistic, period=period, label=role)

    def waiting_in(self, queue: sqs.IQueue, *, label: str) -> cloudwatch.Metric:
        """Return the metric of how many messages wait in a queue."""
        return queue.metric_approximate_number_of_messages_visible(period=MINUTE, statistic="Maximum", label=label)

    @property
    def _namespace(self) -> str:
        return f"MessageBuffer/{self.config.name}"


@dataclass(frozen=True, kw_only=True)
class BufferMetrics(Metrics):
    """The metrics of a stage without its responder."""

    api: ApiMetrics
    cache_name: str | None
    """`None` in a stage without the Valkey lane."""
    whatsapp_queues: WhatsAppQueues | None
    """`None` in a stage without AWS End User Messaging Social."""

    def cache(self, name: str, *, statistic: str, period: cdk.Duration = MINUTE) -> cloudwatch.Metric:
        """Return a metric of ElastiCache. A serverless cache has the dimension `clusterId`, not `CacheClusterId`."""
        assert self.cache_name, "only a stage with a cache has metrics of a cache"
        return cloudwatch.Metric(
            namespace="AWS/ElastiCache",
            metric_name=name,
            dimensions_map={"clusterId": self.cache_name},
            statistic=statistic,
            period=period,
            label=f"{name} {statistic.lower()}",
        )
