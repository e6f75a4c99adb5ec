"""Peek returns the state of one conversation."""

from tests.support.emission import ids_of
from tests.support.engine import Engine


def test_a_peek_reads_64_messages_at_most_whatever_its_limit(engine: Engine) -> None:
    for number in range(70):
        engine.send("c", f"m{number}")
    seen = engine.store.peek_conversation("c", limit=1000)
    assert seen.count == 70
    assert ids_of(seen.payloads) == [f"m{number}" for number in range(64)]
