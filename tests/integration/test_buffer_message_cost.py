"""The cost of a message in round trips and commands, which is the same on every machine."""

from collections import Counter

from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import Engine, monitored
from tests.support.learned import LEARNED
from tests.support.valkey_server import STRICT_SHEBANG

# Commands of the test's own look at the server.
OBSERVER = {"config|resetstat", "info"}

PROMISED_CALLS = 6
ORDINARY_CALLS = 4
FIRST_CALLS = 8  # it also looks for a hold and a frozen batch, and schedules
DUPLICATE_CALLS = 3
ENDING_CALLS = 5  # it also brings the time forward in pending
WAKING_CALLS = 3  # one wake until the processor has looked again
STARTING_CALLS = 3


def redis_calls(engine: Engine, message_id: str, *, rules: Rules | None = None) -> int:
    """Return how many commands run inside the script; fail if the client sends more than one EVALSHA."""
    with monitored(engine.admin) as watch:
        engine.admin.config_resetstat()
        engine.send("customer-1", message_id, rules=rules)
        stats = engine.admin.info("commandstats")
    [commands] = watch.commands_of("buffer_message", STRICT_SHEBANG)
    inside = Counter(command[0].decode() for command in commands)
    ran = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    assert {name: calls for name, calls in ran.items() if name not in OBSERVER} == {"evalsha": 1, **inside}
    return inside.total()


def with_a_processor(engine: Engine) -> None:
    """Let a processor look once, so that it knows when it will look again."""
    engine.send("customer-1", "teaches the server its scripts")
    engine.store.cancel_buffer("customer-1")
    # A buffer that begins in the millisecond of the last message also removes that message's bytes.
    engine.clock.advance(1)
    assert engine.claim() == []


def test_an_ordinary_message_is_one_round_trip_and_at_most_six_calls(engine: Engine) -> None:
    with_a_processor(engine)
    engine.send("customer-1", "m1")
    for number in range(2, 6):
        engine.clock.advance(300)
        assert redis_calls(engine, f"m{number}") == ORDINARY_CALLS <= PROMISED_CALLS


def test_a_first_message_also_schedules(engine: Engine) -> None:
    with_a_processor(engine)
    assert redis_calls(engine, "m1") == FIRST_CALLS


def test_a_duplicate_is_cheaper_than_a_message(engine: Engine) -> None:
    with_a_processor(engine)
    engine.send("customer-1", "m1")
    assert redis_calls(engine, "m1") == DUPLICATE_CALLS


def test_a_message_that_ends_the_wait_brings_the_time_forward_and_wakes_the_processor_once(
    engine: Engine,
) -> None:
    with_a_processor(engine)
    two_are_enough = Rules(max_messages=2)
    engine.send("customer-1", "m1")
    assert redis_calls(engine, "m2", rules=two_are_enough) == ENDING_CALLS + WAKING_CALLS
    engine.store.cancel_buffer("customer-1")
    engine.send("customer-1", "m3")
    assert redis_calls(engine, "m4", rules=two_are_enough) == ENDING_CALLS


def test_a_learned_wait_costs_no_further_command(engine: Engine) -> None:
    with_a_processor(engine)
    engine.send("customer-1", "m1", rules=LEARNED)
    engine.clock.advance(300)
    assert redis_calls(engine, "m2", rules=LEARNED) == ORDINARY_CALLS


def test_without_a_processor_a_message_reserves_its_start_once(engine: Engine) -> None:
    with_a_processor(engine)
    engine.clock.advance(engine.store.settings.lease_ms)
    assert redis_calls(engine, "m1") == FIRST_CALLS + STARTING_CALLS
    engine.clock.advance(300)
    assert redis_calls(engine, "m2") <= PROMISED_CALLS
