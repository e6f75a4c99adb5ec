"""How long a caller waits for a connection to Valkey that is not open yet."""

from message_buffer.clock import Clock, system_clock
from message_buffer.limits import VALKEY_ANSWER_MS, VALKEY_CONNECT_MS


class DialPatience:
    """Lets a caller that has no other lane wait for a dial until the dial's own time limit."""

    def __init__(self, connect_ms: int = VALKEY_CONNECT_MS) -> None:
        self.connect_ms = connect_ms

    def left_ms(self, *, is_doubted: bool) -> int:  # noqa: ARG002 - for a webhook's patience
        """Return how many milliseconds a call may still wait. `is_doubted` says that Valkey has failed since it was
        last reached."""
        return self.connect_ms


class WebhookPatience(DialPatience):
    """How long ingest waits for a dial. All calls of a webhook share one time budget, because the platform is waiting.
    After a failure of Valkey, a call waits for a dial only as long as for an answer."""

    def __init__(
        self,
        *,
        connect_ms: int = VALKEY_CONNECT_MS,
        answer_ms: int = VALKEY_ANSWER_MS,
        webhook_ms: int,
        clock: Clock = system_clock,
    ) -> None:
        super().__init__(connect_ms)
        self._answer_ms = answer_ms
        self._webhook_ms = webhook_ms
        self._clock = clock
        self._began_ms = 0

    def begin(self) -> None:
        """Start a new budget, for the next webhook."""
        self._began_ms = self._clock()

    def left_ms(self, *, is_doubted: bool) -> int:
        most_ms = self._answer_ms if is_doubted else self._webhook_ms
        return max(min(self._webhook_ms - (self._clock() - self._began_ms), most_ms), 0)
