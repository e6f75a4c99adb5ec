"""The functions' logs and metrics: one structured line for each decision, and counts.

Lines contain the ids of conversations, because an operator needs them to follow a message. A stage may log keyed hashes
instead, since these ids contain phone numbers. Lines never contain texts, people's names or the platforms' secrets.
Keep to this when you add a field.

A busy stage may log only a share of its conversations (`sampled`): the hash of a conversation's id decides, so that
either all functions log all of its lines, or none logs any. Such a stage also writes its ordinary metrics less often.

Every metric has the dimension `service`, which is the function's name. Metrics counted with `count_by` also have
`reason`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import blake2s
from logging import getLogger
from os import urandom

from aws_lambda_powertools.logging import Logger
from aws_lambda_powertools.metrics import Metrics, MetricUnit, single_metric

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import MessageBufferError
from message_buffer.limits import MAX_METRICS_AGE_MS
from message_buffer.settings import ALL, LogSettings

Value = str | int | float | bool | None | list[str]

# The fields whose values are, contain or are derived from the id of a conversation.
IDS = {"conversation", "conversations", "batch", "batchId", "scope", "layer"}
# The name of a scope or a layer of rules contains an id only if it begins with this.
OF_CONVERSATION = "conversation:"
MAX_KEY_BYTES = 32
HASH_BYTES = 8
MAX_HASH = 2.0 ** (8 * HASH_BYTES)
# Only these metrics may be written later than the run that counted them. They are counted with every message or batch,
# and no alarm needs them.
MAY_WAIT = {
    "Messages", "Duplicates", "Ignored", "IgnoredKinds",
    "Batches", "BatchSize", "WaitMs", "EmitLatenessMs", "FlushReasons",
}  # fmt: skip


def _part_of_one(hashed: bytes) -> float:
    """Return a number from 0 to 1 for `HASH_BYTES` bytes. The module `random` would make a cold start longer."""
    return int.from_bytes(hashed, "big") / MAX_HASH


class Telemetry:
    """Writes logs and metrics with Powertools.

    The logger and the metrics are made on first use. Powertools reads their names from the environment.
    """

    _settings = LogSettings()

    def __init__(
        self,
        settings: LogSettings = LogSettings(),  # noqa: B008 - it cannot change
        *,
        clock: Clock = system_clock,
        chance: Callable[[], float] = lambda: _part_of_one(urandom(HASH_BYTES)),
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._chance = chance
        self._by_dimension: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._is_urgent = False
        self._flushed_at_ms = 0

    def logged_id(self, value: str) -> str:
        """Return an id in the form in which it is logged."""
        key = self._settings.id_key
        if key is None:
            return value
        return "#" + blake2s(value.encode(), key=key.encode()[:MAX_KEY_BYTES], digest_size=10).hexdigest()

    def _logged(self, fields: Mapping[str, Value]) -> dict[str, Value]:
        if self._settings.id_key is None:
            return dict(fields)
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

    def sampled(self, decision: str, **fields: Value) -> None:
        """Log a line that each message or batch causes, if its conversation is one of those that are logged.

        A line about several conversations is logged if one of them is. A line about no conversation is logged at
        random.
        """
        if self._is_logged(fields):
            self.info(decision, **fields)

    def _is_logged(self, fields: Mapping[str, Value]) -> bool:
        if self._settings.share >= ALL:
            return True
        named = fields.get("conversation", fields.get("conversations"))
        names = [named] if isinstance(named, str) else named
        if isinstance(names, list) and names:
            return any(self._is_logged_conversation(name) for name in names)
        return self._chance() < self._settings.share

    def _is_logged_conversation(self, conversation: str) -> bool:
        if conversation in self._settings.followed:
            return True
        digest = blake2s(conversation.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
        return _part_of_one(digest) < self._settings.share

    def debug(self, decision: str, **fields: Value) -> None:
        self._logger.debug(decision, extra=self._logged(fields))

    def warn(self, decision: str, **fields: Value) -> None:
        self._logger.warning(decision, extra=self._logged(fields))

    def crash(self, decision: str, error: BaseException, **fields: Value) -> None:
        """Log an unexpected error by its type and place, but without its text, which may quote a message."""
        where = error.__traceback__
        while where and where.tb_next:
            where = where.tb_next
        place = f"{where.tb_frame.f_globals.get('__name__')}:{where.tb_lineno}" if where else None
        # The texts of our own errors are written for operators and quote nothing.
        reason = str(error) if isinstance(error, MessageBufferError) else None
        self._logger.error(
            decision, extra={**self._logged(fields), "error": type(error).__name__, "reason": reason, "place": place}
        )

    def count(self, metric: str, value: int = 1) -> None:
        self._note_urgency(metric)
        self._metrics.add_metric(metric, MetricUnit.Count, value)

    def measure_ms(self, metric: str, value: int) -> None:
        self._note_urgency(metric)
        self._metrics.add_metric(metric, MetricUnit.Milliseconds, max(value, 0))

    def count_by(self, metric: str, count: int = 1, /, **dimension: str) -> None:
        """Count a metric whose dimensions are exactly `service` and the given one."""
        self._note_urgency(metric)
        self._by_dimension[metric, tuple(dimension.items())] += count

    def _note_urgency(self, metric: str) -> None:
        self._is_urgent = self._is_urgent or metric not in MAY_WAIT

    def flush(self) -> None:
        """Write all metrics."""
        for (metric, dimensions), count in self._by_dimension.items():
            with single_metric(metric, MetricUnit.Count, count, namespace=self._metrics.namespace) as metrics:
                for name, value in dimensions:
                    metrics.add_dimension(name, value)
        self._by_dimension.clear()
        if self._metrics.metric_set:
            self._metrics.flush_metrics()
        self._is_urgent, self._flushed_at_ms = False, self._clock()

    def flush_soon(self) -> None:
        """Write all metrics, at the end of a run that served one message or batch.

        A stage that logs only a share of its conversations writes ordinary metrics only every few seconds. What an
        instance has not written when Lambda ends it is lost.
        """
        if self._settings.share >= ALL or self._is_urgent or self._is_time_to_flush():
            self.flush()

    def _is_time_to_flush(self) -> bool:
        return not 0 <= self._clock() - self._flushed_at_ms < MAX_METRICS_AGE_MS

    @cached_property
    def _logger(self) -> Logger:
        # Leave the location out of log lines, since it would always be this class. Lambda reads a line's level only if
        # the time has this format.
        logger = Logger(location=None, use_rfc3339=True)
        if self._settings.level:
            # Powertools prefers the level that Lambda sets in a stage with a share, which is lower.
            getLogger(logger.name).setLevel(self._settings.level)
        return logger

    @cached_property
    def _metrics(self) -> Metrics:
        return Metrics()
