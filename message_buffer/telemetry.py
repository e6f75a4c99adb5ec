"""Writes the functions' logs and metrics. A function logs one structured line for each decision.

Lines contain the ids of conversations, because an operator needs them to follow a message. Since these ids contain
phone numbers, a stage may log keyed hashes of them instead. Lines never contain texts, people's names or the platforms'
secrets. Keep to this when you add a field.

Every metric has the dimension `service`, which is the function's name. Metrics counted with `count_by` also have
`reason`.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from hashlib import blake2s
from threading import RLock

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.metrics import Metrics, MetricUnit, single_metric

from message_buffer.errors import MessageBufferError
from message_buffer.settings import LogSettings

Value = str | int | float | bool | None | list[str]

# The fields whose values contain, or are derived from, the id of a conversation.
IDS = {"conversation", "conversations", "batch", "batchId", "scope", "layer"}
# A scope or a layer of rules that begins with this contains a conversation's id.
OF_CONVERSATION = "conversation:"
MAX_KEY_BYTES = 32


class Telemetry:
    """Writes logs and metrics with Powertools. Threads may share it.

    The logger and the metrics are made on first use. Powertools reads their names from the environment.
    """

    _settings = LogSettings()

    def __init__(self, settings: LogSettings = _settings) -> None:
        self._settings = settings
        self._by_dimension: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        # Powertools' metrics are not safe for threads, and making a logger twice would double each line.
        self._lock = RLock()

    def logged_id(self, value: str) -> str:
        """Return the id, or its hash if logs contain hashes."""
        key = self._settings.id_key
        if key is None:
            return value
        return "#" + blake2s(value.encode(), key=key.encode()[:MAX_KEY_BYTES], digest_size=10).hexdigest()

    def _logged(self, fields: Mapping[str, Value]) -> dict[str, Value]:
        return {name: self._hashed(name, value) if name in IDS else value for name, value in fields.items()}

    def _hashed(self, name: str, value: Value) -> Value:
        if isinstance(value, list):
            return [self.logged_id(each) for each in value]
        if not isinstance(value, str):
            return value
        if name in ("scope", "layer"):
            prefix, found, rest = value.partition(OF_CONVERSATION)
            return f"{OF_CONVERSATION}{self.logged_id(rest)}" if found and not prefix else value
        return self.logged_id(value)

    def info(self, decision: str, **fields: Value) -> None:
        self._logger.info(decision, extra=self._logged(fields))

    def warn(self, decision: str, **fields: Value) -> None:
        self._logger.warning(decision, extra=self._logged(fields))

    def crash(self, decision: str, error: BaseException, **fields: Value) -> None:
        """Log an unexpected error by its type and place, but without its text, which may quote a message."""
        where = error.__traceback__
        while where and where.tb_next:
            where = where.tb_next
        place = f"{where.tb_frame.f_globals.get('__name__')}:{where.tb_lineno}" if where else None
        # The texts of our own errors are written for operators, and quote no messages.
        reason = str(error) if isinstance(error, MessageBufferError) else None
        self._logger.error(
            decision, extra={**self._logged(fields), "error": type(error).__name__, "reason": reason, "place": place}
        )

    def failed(self, decision: str, error: Exception, **fields: Value) -> None:
        """Log a warning if a retry may help, otherwise a crash."""
        if isinstance(error, MessageBufferError) and error.retryable:
            self.warn(decision, **fields, reason=str(error))
        else:
            self.crash(decision, error, **fields)

    def count(self, metric: str, value: int = 1) -> None:
        with self._lock:
            self._metrics.add_metric(metric, MetricUnit.Count, value)

    def count_all(self, counts: Mapping[str, int]) -> None:
        """Count each of these metrics, but none that is zero, since each metric costs money."""
        for metric, value in counts.items():
            if value:
                self.count(metric, value)

    def measure_ms(self, metric: str, value: int) -> None:
        with self._lock:
            self._metrics.add_metric(metric, MetricUnit.Milliseconds, max(value, 0))

    def count_by(self, metric: str, count: int = 1, /, **dimension: str) -> None:
        """Count a metric whose only dimensions are `service` and the given one."""
        with self._lock:
            self._by_dimension[metric, tuple(dimension.items())] += count

    def flush(self) -> None:
        with self._lock:
            for (metric, dimensions), count in self._by_dimension.items():
                with single_metric(metric, MetricUnit.Count, count, namespace=self._metrics.namespace) as metrics:
                    for name, value in dimensions:
                        metrics.add_dimension(name, value)
            self._by_dimension.clear()
            if self._metrics.metric_set:
                self._metrics.flush_metrics()

    @property
    def _logger(self) -> Logger:
        with self._lock:
            return self._made_logger

    @cached_property
    def _made_logger(self) -> Logger:
        # Leave the location out of log lines, since it would always be this class.
        return Logger(level=self._settings.level, location=None, use_rfc3339=True)

    @cached_property
    def _metrics(self) -> Metrics:
        return Metrics()
