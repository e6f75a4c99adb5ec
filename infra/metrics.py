"""Finds the metrics of the table of symptoms in CloudWatch.

The functions publish metrics in the namespace `MessageBuffer/<stage>`, with the function's role as the dimension
`service`. A metric that is counted by reason has the dimensions `reason` and `service`; CloudWatch has no sum of it by
`service` alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import filter as matching
from typing import Protocol

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sqs as sqs

from .function import Function
from .settings_and_defaults import StageConfig
from .symptoms import MIN_FAILED_WEBHOOKS, Metric, Source

Line = cloudwatch.IMetric


class ApiMetrics(Protocol):
    """The metrics that each kind of API has: HTTP API, REST API, or a function with an address of its own."""

    def metric_count(self, *, period: cdk.Duration, statistic: str) -> Line: ...

    def metric_client_error(self, *, period: cdk.Duration, statistic: str) -> Line: ...

    def metric_server_error(self, *, period: cdk.Duration, statistic: str) -> Line: ...


class FunctionUrlApi:
    """The metrics of a function that has an address of its own, with the methods that CDK's API constructs have."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def metric_count(self, *, period: cdk.Duration, statistic: str) -> Line:
        return self._function.metric("UrlRequestCount", period=period, statistic=statistic)

    def metric_client_error(self, *, period: cdk.Duration, statistic: str) -> Line:
        return self._function.metric("Url4xxCount", period=period, statistic=statistic)

    def metric_server_error(self, *, period: cdk.Duration, statistic: str) -> Line:
        """Return the requests that fail. Lambda answers a throttled request with 429, which is not a 5xx."""
        failed = ("Url5xxCount", "Throttles")
        return _sum([self._function.metric(name, period=period, statistic=statistic) for name in failed], period)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The CloudWatch metrics of one stack of a stage."""

    config: StageConfig
    functions: Mapping[str, Function]
    queues: Mapping[str, sqs.IQueue]
    api: ApiMetrics | None = None
    """`None` in the responder's stack."""
    cache_name: str | None = None
    """`None` in a stage without the Valkey lane, and in the responder's stack."""

    def has(self, metric: Metric) -> bool:
        """Return whether anything in the stack publishes this metric."""
        match metric.source:
            case Source.OWN:
                return metric.of in self.functions
            case Source.LAMBDA:
                return True
            case Source.QUEUE:
                return bool(matching(self.queues, metric.of))
            case Source.API:
                return self.api is not None
            case Source.PUBLIC_CACHE:
                return self.cache_name is not None and not self.config.has_network
            case _:
                return self.cache_name is not None

    def single(self, metric: Metric) -> list[Metric]:
        """Return the metrics that have an alarm each: of several queues each has its own."""
        if metric.source is not Source.QUEUE:
            return [metric] if self.has(metric) else []
        return [metric._replace(of=name) for name in matching(self.queues, metric.of)]

    def value(self, metric: Metric, *, minutes: int, or_zero: bool = False) -> Line:
        """Return the one value of a metric that an alarm watches.

        `or_zero` puts 0 for each minute without a value. Before the first value there is nothing to fill, so an alarm
        does not fire in a new stage.
        """
        period = cdk.Duration.minutes(minutes)
        if metric.source is Source.API:
            return self._failed_percent(period)
        found = self._each(metric, period)
        value = found[0] if len(found) == 1 else _sum(found, period)
        if or_zero:
            filled = {"published": value}
            value = cloudwatch.MathExpression(
                expression="FILL(published, 0)", using_metrics=filled, label=metric.name, period=period
            )
        return value

    def lines(self, metric: Metric) -> list[Line]:
        """Return the lines of a metric in a graph."""
        return self._each(metric, cdk.Duration.minutes(1))

    def _each(self, metric: Metric, period: cdk.Duration) -> list[Line]:
        if metric.source is Source.OWN:
            return [self._own(metric, period)]
        if metric.source is Source.VALKEY:
            # The sum is a query over the namespace, because most of these functions have never published the metric.
            query = f'SELECT SUM({metric.name}) FROM SCHEMA("{self._namespace}", service)'  # noqa: S608 - our own words
            return [cloudwatch.MathExpression(expression=query, label=metric.name, period=period)]
        if metric.source is Source.LAMBDA:
            return [
                function.metric(metric.name, statistic=metric.statistic, period=period, label=role)
                for role, function in self.functions.items()
            ]
        if metric.source is Source.QUEUE:
            return [
                self.queues[name].metric(metric.name, statistic=metric.statistic, period=period, label=name)
                for name in matching(self.queues, metric.of)
            ]
        if metric.source is Source.API:
            assert self.api, "only the buffer's stack has an API"
            of_api = (self.api.metric_count, self.api.metric_client_error, self.api.metric_server_error)
            return [each(period=period, statistic=metric.statistic) for each in of_api]
        assert self.cache_name, "only a stage with a cache has metrics of a cache"
        # A serverless cache has the dimension `clusterId`, not `CacheClusterId`.
        return [_metric("AWS/ElastiCache", metric, period, clusterId=self.cache_name)]

    def _own(self, metric: Metric, period: cdk.Duration) -> Line:
        if metric.reason != "*":
            reason = {"reason": metric.reason} if metric.reason else {}
            return _metric(self._namespace, metric, period, service=metric.of, **reason)
        # Graphs accept a search, which finds a line for each reason that occurred. Alarms do not.
        search = f'{{{self._namespace},reason,service}} MetricName="{metric.name}" service="{metric.of}"'
        return cloudwatch.MathExpression(
            expression=f"SEARCH('{search}', '{metric.statistic}', {period.to_seconds()})",
            label="${PROP('Dim.reason')}",
            period=period,
        )

    def _failed_percent(self, period: cdk.Duration) -> Line:
        """Return the share of webhooks that the API answers with 5xx."""
        assert self.api, "only the buffer's stack has an API"
        return cloudwatch.MathExpression(
            expression=f"IF(errors >= {MIN_FAILED_WEBHOOKS}, 100 * errors / requests, 0)",
            using_metrics={
                "errors": self.api.metric_server_error(period=period, statistic="Sum"),
                "requests": self.api.metric_count(period=period, statistic="Sum"),
            },
            label="5xx, % of the webhooks",
            period=period,
        )

    @property
    def _namespace(self) -> str:
        return f"MessageBuffer/{self.config.name}"


def _metric(namespace: str, metric: Metric, period: cdk.Duration, **dimensions: str) -> cloudwatch.Metric:
    words = (dimensions.get("service"), metric.name, metric.statistic if metric.statistic != "Sum" else None)
    return cloudwatch.Metric(
        namespace=namespace,
        metric_name=metric.name,
        dimensions_map=dimensions,
        statistic=metric.statistic,
        period=period,
        label=" ".join(filter(None, words)),
    )


def _sum(metrics: list[Line], period: cdk.Duration) -> Line:
    """Return the sum over the metrics. A sum of an array leaves out a metric that has no value."""
    named = {f"m{place}": metric for place, metric in enumerate(metrics)}
    return cloudwatch.MathExpression(
        expression=f"SUM([{', '.join(named)}])", using_metrics=named, label="sum", period=period
    )
