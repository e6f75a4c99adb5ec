"""The table of takeovers in memory. `test_takeovers_table.py` runs its tests on this table and on the real one."""

from message_buffer.errors import SendFailed
from message_buffer.limits import UNCONFIRMED_SENDS_ARE_ONE_WITHIN_MS
from message_buffer.takeovers.takeover import Interval, Takeover


class FakeTakeovers:
    def __init__(self) -> None:
        self.states: dict[str, Takeover] = {}
        self.sent: set[tuple[str, str]] = set()
        self.calls: list[str] = []
        self.failures: list[str] = []
        """Names of calls that fail, each once."""
        self.is_down = False
        """Whether every call fails."""

    def read(self, conversation: str) -> Takeover:
        self._called("read")
        return self.states.get(conversation, Takeover())

    def save(self, conversation: str, takeover: Takeover, *, now_ms: int) -> bool:
        self._called("save")
        found = self.states.get(conversation, Takeover())
        if found.version != takeover.version - 1:
            return False
        kept = {name: getattr(found, name) for name in ("resumed_at_ms", "sending", "unsure")}
        self.states[conversation] = takeover._replace(**kept)
        return True

    def mark_published(self, conversation: str, *, began_at_ms: int) -> bool:
        self._called("mark_published")
        found = self.states.get(conversation, Takeover())
        if found.began_at_ms != began_at_ms or not found.until_ms:
            return False
        self.states[conversation] = found._replace(is_published=True)
        return True

    def resume(self, conversation: str, *, now_ms: int) -> None:
        self._called("resume")
        found = self.states.get(conversation, Takeover())
        self.states[conversation] = found._replace(version=found.version + 1, resumed_at_ms=now_ms, until_ms=0)

    def begin_sending(self, conversation: str, *, now_ms: int, until_ms: int) -> None:
        self._called("begin_sending")
        found = self.states.get(conversation, Takeover())
        unsure = _doubted(found.unsure, found.sending, now_ms) if found.sending.from_ms else found.unsure
        self.states[conversation] = found._replace(sending=Interval(now_ms, until_ms), unsure=unsure)

    def end_sending(self, conversation: str, message_id: str | None, *, now_ms: int) -> None:
        self._called("end_sending")
        found = self.states.get(conversation, Takeover())
        self.states[conversation] = found._replace(sending=Interval())
        if message_id:
            self.sent.add((conversation, message_id))

    def doubt_sending(self, conversation: str, *, now_ms: int, until_ms: int) -> None:
        self._called("doubt_sending")
        found = self.states.get(conversation, Takeover())
        unsure = _doubted(found.unsure, Interval(found.sending.from_ms or now_ms, until_ms), now_ms)
        self.states[conversation] = found._replace(sending=Interval(), unsure=unsure)

    def was_sent_by_us(self, conversation: str, message_id: str) -> bool:
        self._called("was_sent_by_us")
        return (conversation, message_id) in self.sent

    def count(self, conversation: str) -> int:
        return (conversation in self.states) + sum(of == conversation for of, _ in self.sent)

    def forget(self, conversation: str) -> int:
        found = self.count(conversation)
        self.states.pop(conversation, None)
        self.sent = {each for each in self.sent if each[0] != conversation}
        return found

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failures:
            self.failures.remove(name)
        elif not self.is_down:
            return
        raise SendFailed(f"{name}: ThrottlingException")


def _doubted(before: Interval, sending: Interval, now_ms: int) -> Interval:
    is_recent = before.until_ms > now_ms - UNCONFIRMED_SENDS_ARE_ONE_WITHIN_MS
    return before._replace(until_ms=sending.until_ms) if is_recent else sending
