"""A heartbeat renews a lock while the work goes on, and reports when it could not."""

from threading import Event, active_count

import pytest

from message_buffer.errors import SendFailed
from message_buffer.heartbeat import Heartbeat


class Beats:
    """A beat that the test waits for one by one, so that no test has to sleep."""

    def __init__(self, *, fail_at: int = 0) -> None:
        self.count, self._fail_at, self._beaten = 0, fail_at, Event()

    def beat(self) -> None:
        self.count += 1
        self._beaten.set()
        if self.count == self._fail_at:
            raise SendFailed("not ours any more")

    def wait(self) -> None:
        assert self._beaten.wait(10)
        self._beaten.clear()


def test_it_beats_while_its_block_lasts_and_never_after() -> None:
    beats, threads = Beats(), active_count()
    with Heartbeat(beats.beat, every_seconds=0.001) as heartbeat:
        beats.wait()
        beats.wait()
        heartbeat.check()
    counted = beats.count
    assert counted >= 2
    assert active_count() == threads
    assert beats.count == counted


def test_it_ends_with_its_block_however_that_is_left() -> None:
    threads = active_count()
    with pytest.raises(ValueError, match="of the work"), Heartbeat(Beats().beat, every_seconds=60):
        raise ValueError("of the work")
    assert active_count() == threads


def test_a_beat_that_fails_is_the_last_one_and_is_told_when_asked() -> None:
    beats = Beats(fail_at=2)
    with Heartbeat(beats.beat, every_seconds=0.001) as heartbeat:
        beats.wait()
        heartbeat._thread.join(10)
        with pytest.raises(SendFailed, match="not ours"):
            heartbeat.check()
    assert beats.count == 2


def test_short_work_is_over_before_the_first_beat() -> None:
    beats = Beats()
    with Heartbeat(beats.beat, every_seconds=60) as heartbeat:
        heartbeat.check()
    assert beats.count == 0
