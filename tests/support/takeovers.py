"""The table of takeovers in memory. `test_takeovers_table.py` runs its tests on this table and on the real one."""

from collections import Counter

from message_buffer.errors import SendFailed
from message_buffer.limits import HOUR_MS
from message_buffer.takeovers import takeovers_table
from message_buffer.takeovers.takeover import Takeover
from message_buffer.takeovers.takeovers_table import TakeoversTable


class FakeTakeovers(TakeoversTable):
    def __init__(self) -> None:
        super().__init__("takeovers")
        self.states: dict[str, Takeover] = {}
        self.begun: Counter[int] = Counter()
        self.calls: list[str] = []
        self.failures: list[str] = []
        """Names of calls that fail, each once."""

    def read(self, conversation: str) -> Takeover:
        self._called("read")
        return self.states.get(conversation, Takeover())

    def save(self, conversation: str, takeover: Takeover, *, now_ms: int) -> bool:
        self._called("save")
        found = self.states.get(conversation, Takeover())
        if found.version != takeover.version - 1:
            return False
        self.states[conversation] = takeover
        return True

    def mark_published(self, conversation: str, *, began_at_ms: int) -> bool:
        self._called("mark_published")
        found = self.states.get(conversation, Takeover())
        if found.began_at_ms != began_at_ms or not found.until_ms:
            return False
        self.states[conversation] = found._replace(is_published=True)
        return True

    def count_hand_off(self, now_ms: int) -> bool:
        hour = now_ms // HOUR_MS
        if self.begun[hour] >= takeovers_table.MAX_CONSUMERS_HAND_OFFS_IN_AN_HOUR:
            return False
        self.begun[hour] += 1
        return True

    def count(self, conversation: str) -> int:
        return int(conversation in self.states)

    def forget(self, conversation: str) -> int:
        found = self.count(conversation)
        self.states.pop(conversation, None)
        return found

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failures:
            self.failures.remove(name)
            raise SendFailed(f"{name}: ThrottlingException")
