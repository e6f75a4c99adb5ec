"""The functions' logs and metrics: one structured line for each decision, and counts.

Lines contain the ids of conversations, because an operator needs them to follow a message. They never contain texts,
people's names or the platforms' secrets. Keep to this when you add a field.

Every metric has the dimension `service`, which is the function's name. Metrics counted with `count_by` also have
`reason`.
"""

from functools import cached_property

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.metrics import Metrics, MetricUnit, single_metric

from message_buffer.errors import MessageBufferError

Value = str | int | float | bool | None | list[str]


class Telemetry:
    """Writes logs and metrics with Powertools.

    The logger and the metrics are made on first use. Powertools reads their names from the environment.
    """

    def info(self, decision: str, **fields: Value) -> None:
        self._logger.info(decision, extra=fields)

    def debug(self, decision: str, **fields: Value) -> None:
        self._logger.debug(decision, extra=fields)

    def warn(self, decision: str, **fields: Value) -> None:
        self._logger.warning(decision, extra=fields)

    def crash(self, decision: str, error: BaseException, **fields: Value) -> None:
        """Log an unexpected error by its type and place, but without its text, which may quote a message."""
        where = error.__traceback__
        while where and where.tb_next:
            where = where.tb_next
        place = f"{where.tb_frame.f_globals.get('__name__')}:{where.tb_lineno}" if where else None
        # The texts of our own errors are written for operators and quote nothing.
        reason = str(error) if isinstance(error, MessageBufferError) else None
        self._logger.error(decision, extra={**fields, "error": type(error).__name__, "reason": reason, "place": place})

    def count(self, metric: str, value: int = 1) -> None:
        self._metrics.add_metric(metric, MetricUnit.Count, value)

    def measure_ms(self, metric: str, value: int) -> None:
        self._metrics.add_metric(metric, MetricUnit.Milliseconds, max(value, 0))

    def count_by(self, metric: str, count: int = 1, /, **dimension: str) -> None:
        """Count a metric whose dimensions are exactly `service` and the given one."""
        with single_metric(metric, MetricUnit.Count, count, namespace=self._metrics.namespace) as metrics:
            for name, value in dimension.items():
                metrics.add_dimension(name, value)

    def flush(self) -> None:
        if self._metrics.metric_set:
            self._metrics.flush_metrics()

    @cached_property
    def _logger(self) -> Logger:
        # Leave the location out of log lines, since it would always be this class.
        return Logger(location=None)

    @cached_property
    def _metrics(self) -> Metrics:
        return Metrics()
