"""One caller starts the processor, and a start that led to nothing is made again."""

from tests.support.engine import SETTINGS, Engine


def test_a_start_that_led_to_nothing_is_tried_again_after_the_reservation(engine: Engine) -> None:
    assert engine.send("c", "m1").start_id
    engine.clock.advance(SETTINGS.start_ms - 1)
    assert not engine.send("c", "m2").start_id
    assert not engine.store.recover_expired(0).start_id
    engine.clock.advance(1)
    assert engine.store.recover_expired(0).start_id
    assert not engine.send("c", "m3").start_id


def test_a_duplicate_may_be_the_one_that_starts_it(engine: Engine) -> None:
    """Send it again: the first sender may have died between buffering and starting."""
    assert engine.send("c", "m1").start_id
    engine.clock.advance(SETTINGS.start_ms)
    assert engine.send("c", "m1").start_id


def test_a_processor_that_came_ends_the_reservation(engine: Engine) -> None:
    assert engine.send("c", "m1").start_id
    engine.work()
    assert not engine.send("c", "m2").start_id
    engine.clock.advance(SETTINGS.lease_ms)
    assert engine.send("c", "m3").start_id, "the processor died, and no reservation prevents a start"
