"""An instance's copy of a secret. The instance reads the secret again when the copy is old, and keeps the copy if that
read fails."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.limits import SECRET_LIFE_MS

T = TypeVar("T")


class ReadsSecrets(Protocol):
    def read(self, secret_id: str) -> str: ...


class KeptSecret(Generic[T]):
    def __init__(
        self,
        secrets: ReadsSecrets,
        secret_id: str,
        parse: Callable[[str], T],
        *,
        not_renewed: Callable[[SendFailed], None] = lambda _: None,
        clock: Clock = system_clock,
    ) -> None:
        self._secrets = secrets
        self._secret_id = secret_id
        self._parse = parse
        self._not_renewed = not_renewed
        # Use wall time. While Lambda suspends the instance, the monotonic clock stops, but the copy gets older.
        self._clock = clock
        self._known: T | None = None
        self._read_at_ms = 0

    def value(self, *, at_most_ms_old: int = SECRET_LIFE_MS) -> T:
        """Return the secret, after reading it again if the copy is older than `at_most_ms_old`.

        Raise SendFailed if no read has ever succeeded.
        """
        if self._known is None or self._clock() - self._read_at_ms > at_most_ms_old:
            try:
                self._known = self._parse(self._secrets.read(self._secret_id))
            except SendFailed as error:
                if self._known is None:
                    raise
                self._not_renewed(error)
            self._read_at_ms = self._clock()
        return self._known
