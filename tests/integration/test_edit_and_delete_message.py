"""An edit or a deletion changes a waiting message, and says which batch has any other."""

import pytest

from message_buffer.lanes.outcomes import (
    Absent,
    Deleted,
    Duplicate,
    Edited,
    Frozen,
)
from message_buffer.messages.message import decode
from tests.support.emission import (
    Bus,
    claim_and_take,
    ids_of,
    run_until_idle,
    take,
)
from tests.support.engine import SETTINGS, Engine, payload
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.outcomes import same
from tests.support.states import (
    State,
    claimed,
    held,
    waiting,
    waiting_behind_a_frozen_batch,
)


@pytest.mark.case(31)
def test_an_edit_replaces_the_message_in_its_place(engine: Engine) -> None:
    for message_id in ("m1", "m2", "m3"):
        engine.send("c", message_id)
    due_at_ms = engine.store.peek_conversation("c").due_at_ms
    assert same(engine.store.edit_message("c", "m2", payload=payload("m2", "corrected")), Edited(position=1, behind=1))
    assert engine.store.peek_conversation("c").due_at_ms == due_at_ms, "an edit is no new message"
    engine.clock.advance(3000)
    taken = claim_and_take(engine, "c")
    assert [decode(p).text for p in taken.payloads] == ["text of m1", "corrected", "text of m3"]


@pytest.mark.case(31)
def test_a_delete_removes_the_message_and_a_redelivery_does_not_bring_it_back(engine: Engine) -> None:
    for message_id in ("m1", "m2", "m3"):
        engine.send("c", message_id)
    assert same(engine.store.delete_message("c", "m2"), Deleted(remaining=2))
    assert isinstance(engine.send("c", "m2"), Duplicate)
    engine.clock.advance(3000)
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m1", "m3"]


@pytest.mark.case(31)
@pytest.mark.parametrize("state", [waiting, claimed, held])
def test_when_the_last_message_is_deleted_no_batch_is_emitted(engine: Engine, state: State) -> None:
    bus = Bus()
    state(engine)
    assert same(engine.store.delete_message("c", "old"), Deleted(remaining=0))
    assert_invariants(engine)
    run_until_idle(engine, bus)
    assert bus.events == []
    assert_nothing_left_behind(engine)


@pytest.mark.case(31)
def test_deleting_what_came_behind_a_frozen_batch_keeps_that_batch(engine: Engine) -> None:
    bus = Bus()
    waiting_behind_a_frozen_batch(engine)
    assert same(engine.store.delete_message("c", "old too"), Deleted(remaining=0))
    assert_invariants(engine)
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["old"]
    assert_nothing_left_behind(engine)


@pytest.mark.case(31)
def test_a_frozen_message_can_neither_be_edited_nor_deleted(engine: Engine) -> None:
    claimed(engine)
    taken = take(engine, "c", "t1")
    assert same(engine.store.edit_message("c", "old", payload=payload("old", "late")), Frozen(taken.batch_id))
    assert same(engine.store.delete_message("c", "old"), Frozen(taken.batch_id))
    assert take(engine, "c", "t1") == taken


@pytest.mark.case(31)
def test_what_is_gone_or_never_came_is_absent(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "m1")
    run_until_idle(engine, bus)
    engine.send("c", "m2")
    for act in (
        lambda message_id: engine.store.edit_message("c", message_id, payload=b"x"),
        lambda message_id: engine.store.delete_message("c", message_id),
    ):
        assert same(act("m1"), Absent(known=True, batch_id=bus.events[0].batch_id))
        assert same(act("never"), Absent(known=False, batch_id=None))


@pytest.mark.case(31)
def test_after_the_emission_a_message_names_the_batch_it_came_out_in(engine: Engine) -> None:
    bus = Bus()
    for n in range(20):
        engine.send("c", f"m{n}")
        engine.clock.advance(100 if n % 3 else 1)
        engine.send("c", f"edited {n}")
        run_until_idle(engine, bus)
        engine.clock.advance(1)
    assert len(bus.events) == 20
    for event in bus.events:
        for message_id in event.ids:
            assert same(engine.store.delete_message("c", message_id), Absent(known=True, batch_id=event.batch_id))


@pytest.mark.case(31)
def test_an_emitted_batch_is_named_while_its_conversation_goes_on(engine: Engine) -> None:
    claimed(engine)
    batch_id = take(engine, "c", "t1").batch_id
    engine.clock.advance(1)
    engine.send("c", "newer")
    engine.store.complete_batch("c", "t1")
    assert same(engine.store.edit_message("c", "old", payload=b"x"), Absent(known=True, batch_id=batch_id))
    assert same(engine.store.edit_message("c", "newer", payload=b"x"), Edited(position=0, behind=0))


@pytest.mark.case(31)
def test_of_batches_that_may_be_forgotten_none_is_named(engine: Engine) -> None:
    bus = Bus()
    engine.store = engine.another_store(SETTINGS._replace(max_emitted=3))
    for n in range(5):
        engine.send("c", f"m{n}")
        run_until_idle(engine, bus)
    named = [engine.store.delete_message("c", f"m{n}") for n in range(5)]
    expected = [None, None, None, bus.events[3].batch_id, bus.events[4].batch_id]
    assert named == [Absent(known=True, batch_id=batch_id) for batch_id in expected]


@pytest.mark.case(31)
def test_an_id_that_begins_like_another_does_not_match_it(engine: Engine) -> None:
    for message_id in ("m1", 'm1"', "m", "m11"):
        engine.send("c", message_id)
    assert same(engine.store.delete_message("c", "m1"), Deleted(remaining=3))
    engine.clock.advance(3000)
    assert ids_of(claim_and_take(engine, "c").payloads) == ['m1"', "m", "m11"]


@pytest.mark.case(31)
def test_the_search_for_a_message_is_bounded_and_begins_with_the_newest(engine: Engine) -> None:
    for n in range(12):
        engine.send("c", f"m{n}")
    store = engine.another_store(SETTINGS._replace(max_search=5))
    assert same(store.edit_message("c", "m7", payload=payload("m7", "new")), Edited(position=7, behind=4))
    assert same(store.edit_message("c", "m6", payload=payload("m6", "new")), Absent(known=True, batch_id=None))
