"""An edit or a deletion changes a waiting message, and says which batch has any other."""

from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import (
    MessageAbsent,
    MessageDeleted,
    MessageEdited,
    MessageWaiting,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import (
    claim_and_take,
    ids_of,
)
from tests.support.engine import SETTINGS, Engine, InterruptedSearch, monitored, payload
from tests.support.outcomes import same
from tests.support.scenes import taken_and_more
from tests.support.valkey_server import STRICT_SHEBANG


@pytest.mark.case(31)
def test_an_id_that_begins_like_another_does_not_match_it(engine: Engine) -> None:
    for message_id in ("m1", 'm1"', "m", "m11"):
        engine.send("c", message_id)
    assert same(engine.store.delete_message("c", "m1"), MessageDeleted())
    engine.clock.advance(3000)
    assert ids_of(claim_and_take(engine, "c").payloads) == ['m1"', "m", "m11"]


@pytest.mark.case(31)
def test_the_search_for_a_message_is_bounded_and_begins_with_the_newest(engine: Engine) -> None:
    hint_is_wrong(engine, waiting=60)
    store = engine.another_store(SETTINGS._replace(max_search=50))
    assert same(store.edit_message("c", "wrong 10", payload=payload("wrong 10", "new")), MessageEdited(is_newest=False))
    assert same(
        store.edit_message("c", "wrong 9", payload=payload("wrong 9", "new")), MessageAbsent(known=True, batch_id=None)
    )


# -- a search holds the server for a moment only ---------------------------------------------------


def hint_is_wrong(engine: Engine, *, waiting: int, size: int = 100) -> None:
    """Let messages wait whose senders' clocks were a minute ahead at first, and then less and less."""
    for n in range(waiting):
        late = engine.clock.now_ms + 60_000 - n
        store = engine.another_store(clock=lambda late=late: late)  # type: ignore[misc] # one clock each
        store.buffer_message("c", f"wrong {n}", payload=of_size(f"wrong {n}", size), timing=Rules().timing)


def of_size(message_id: str, size: int) -> bytes:
    return payload(message_id, "x" * (size - len(payload(message_id, ""))))


Search = Callable[[Engine, str], object]


def edit(engine: Engine, message_id: str) -> object:
    return engine.store.edit_message("c", message_id, payload=payload(message_id, "new"))


def delete(engine: Engine, message_id: str) -> object:
    return engine.store.delete_message("c", message_id)


def find(engine: Engine, message_id: str) -> object:
    return engine.store.find_message("c", message_id)


def watched(engine: Engine, search: Search, message_id: str) -> tuple[object, list[int]]:
    """Return the outcome of a search, and how many payloads each of its calls read."""
    search(engine, "teaches the server its script")
    with monitored(engine.admin) as watch:
        outcome = search(engine, message_id)
    calls = watch.commands_of(f"{search.__name__}_message", STRICT_SHEBANG)
    lists = [[command[2:] for command in commands if command[0] == b"lrange"] for commands in calls]
    assert all(commands for commands in calls)
    return outcome, [sum(int(end) - int(begin) + 1 for begin, end in each) for each in lists]


every_search = pytest.mark.parametrize("search", [edit, delete, find], ids=lambda search: f"{search.__name__}_message")


@every_search
def test_for_an_unknown_message_no_payload_is_read(engine: Engine, search: Search) -> None:
    taken_and_more(engine)
    assert watched(engine, search, "never") == (MessageAbsent(known=False, batch_id=None), [0])


@every_search
@pytest.mark.parametrize("position", [0, 57, 299])
def test_a_message_is_found_without_reading_the_others(engine: Engine, search: Search, position: int) -> None:
    for n in range(300):
        engine.clock.advance(1)
        engine.send("c", f"m{n}")
    outcome, calls = watched(engine, search, f"m{position}")
    assert isinstance(outcome, MessageEdited | MessageDeleted | MessageWaiting)
    assert calls == [1]


@every_search
def test_a_call_reads_64_kb_of_payloads_at_most(engine: Engine, search: Search) -> None:
    hint_is_wrong(engine, waiting=80, size=10_000)
    outcome, calls = watched(engine, search, "wrong 0")
    assert isinstance(outcome, MessageEdited | MessageDeleted | MessageWaiting)
    assert sum(calls) >= 80
    assert max(calls) * 10_000 <= 64 * 1024


@every_search
def test_a_call_reads_128_payloads_at_most_however_short_they_are(engine: Engine, search: Search) -> None:
    for n in range(400):
        engine.send("c", f"m{n}")
    engine.admin.zadd("{b0}:seen:c", {"left": engine.clock.now_ms})
    outcome, calls = watched(engine, search, "left")
    assert outcome == MessageAbsent(known=True, batch_id=None)
    assert sum(calls) >= 400
    assert max(calls) == 128


# -- and between two calls the conversation may move -----------------------------------------------


def grows(engine: Engine) -> None:
    for n in range(3):
        engine.send("c", f"newer {engine.clock.advance(1)} {n}")


def test_a_search_ends_though_others_write_faster_than_it_looks(engine: Engine) -> None:
    for n in range(6):
        engine.send("c", f"m{n}")
    engine.admin.zadd("{b0}:seen:c", {"left": engine.clock.now_ms})
    connection = InterruptedSearch(engine.client, dict.fromkeys(range(1, 1000), lambda: grows(engine)))
    store = engine.another_store(SETTINGS._replace(search_bytes=1), connection=connection)
    assert same(store.find_message("c", "left"), MessageAbsent(known=True, batch_id=None))
    assert connection.calls < 300
