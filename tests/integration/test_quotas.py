"""Quotas and bounds: what exceeds them is refused, and everything else is buffered as before."""

from collections.abc import Iterator

import pytest

from message_buffer.lanes.outcomes import BatchTaken, MessageBuffered, MessageDuplicate, MessageRefused
from message_buffer.lanes.valkey.store import LOOK_EVERY, MAX_REMEMBERED_ID_BYTES, Store
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import claim_and_take, ids_of
from tests.support.engine import SETTINGS, Engine, payload
from tests.support.invariants import assert_invariants

TIMING = Rules().timing
LARGE = 60_000
PLENTY = Quota(10_000_000, 10_000_000)


def charge(messages: int = 10_000_000, conversations: int = 10_000_000, *, account: str = "generic/shop") -> Charge:
    return Charge(((account, Quota(messages, conversations)),), is_exact=True)


class Sender:
    """Sends messages with ids of its own, and says what became of them."""

    def __init__(self, engine: Engine, store: Store | None = None) -> None:
        self._store = store or engine.store
        self._numbers: Iterator[int] = iter(range(10**9))

    def send(
        self, charged: Charge | None, conversation: str = "c", *, text: str = "Hey", message_id: str | None = None
    ) -> MessageBuffered | MessageDuplicate | MessageRefused:
        message_id = message_id or f"m{next(self._numbers)}"
        return self._store.buffer_message(
            conversation, message_id, payload=payload(message_id, text), timing=TIMING, charge=charged
        )

    def fits(self, charged: Charge | None, tries: int, *, new_conversations: bool = False) -> int:
        """Return how many of so many messages are buffered."""
        names = (f"new-{next(self._numbers)}" if new_conversations else "c" for _ in range(tries))
        return sum(isinstance(self.send(charged, name), MessageBuffered) for name in names)


@pytest.fixture
def sender(engine: Engine) -> Sender:
    return Sender(engine)


# -- quotas ----------------------------------------------------------------------------------------


def test_a_minutes_worth_fits_at_once_and_then_as_much_as_time_has_passed(engine: Engine, sender: Sender) -> None:
    account = charge(messages=60)
    assert sender.fits(account, 100) == 60
    engine.clock.advance(999)
    assert sender.fits(account, 5) == 0
    engine.clock.advance(10_001)
    assert sender.fits(account, 20) == 11
    engine.clock.advance(3_600_000)
    assert sender.fits(account, 100) == 60
    assert_invariants(engine)


def test_a_refusal_says_what_is_spent_and_when_something_fits_again(engine: Engine, sender: Sender) -> None:
    account = charge(messages=6)
    sender.fits(account, 10)
    assert sender.send(account) == MessageRefused("account_messages", 10_000)
    engine.clock.advance(9_999)
    assert sender.send(account) == MessageRefused("account_messages", 1)
    engine.clock.advance(1)
    assert isinstance(sender.send(account), MessageBuffered)


def test_accounts_and_tenants_of_one_name_do_not_share_a_quota(engine: Engine, sender: Sender) -> None:
    assert sender.fits(charge(messages=1, conversations=1, account="x/x"), 5) == 1
    assert sender.fits(Charge((("y/y", PLENTY), ("x", Quota(1, 1))), is_exact=True), 5) == 1


def test_a_shard_has_its_share(engine: Engine) -> None:
    sender = Sender(engine, engine.another_store(SETTINGS._replace(shards=4)))
    found = [sender.send(charge(messages=40), f"c{n}") for n in range(400)]
    assert sum(isinstance(each, MessageBuffered) for each in found) == 40


def test_a_share_of_less_than_one_message_still_lets_one_through(engine: Engine) -> None:
    sender = Sender(engine, engine.another_store(SETTINGS._replace(shards=16)))
    account = charge(messages=10)
    assert sender.fits(account, 3) == 1
    engine.clock.advance(96_000)
    assert sender.fits(account, 3) == 1


def test_an_opened_buffer_brings_eight_messages_and_more_are_charged_in_eights(engine: Engine, sender: Sender) -> None:
    account = Charge(
        (("generic/shop", Quota(messages_per_minute=10 * LOOK_EVERY, conversations_per_minute=10_000_000)),)
    )
    fitted = 0
    for _ in range(200):
        fitted += isinstance(sender.send(account), MessageBuffered)
    assert fitted == 11 * LOOK_EVERY
    assert sender.fits(account, 5, new_conversations=True) == 5


def test_what_was_spent_is_forgotten_within_the_hour(engine: Engine, sender: Sender) -> None:
    sender.fits(charge(messages=2), 10)
    assert 0 < engine.keys()["{b0}:quota"].ttl_ms <= 3_600_000
    ttl_ms = engine.keys()["{b0}:quota"].ttl_ms
    engine.clock.advance(600_000)
    sender.fits(charge(messages=2), 10)
    assert engine.keys()["{b0}:quota"].ttl_ms <= ttl_ms


# -- what waits ------------------------------------------------------------------------------------


@pytest.mark.case(28)
def test_a_conversation_on_hold_is_full_at_its_bound_and_drops_nothing(engine: Engine) -> None:
    sender = Sender(engine, engine.another_store(SETTINGS._replace(max_waiting=20)))
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000)
    assert sender.fits(None, 30) == 20
    assert sender.send(None) == MessageRefused("waiting", 0)
    assert isinstance(sender.send(None, "another"), MessageBuffered)
    assert_invariants(engine)
    engine.store.resume_buffer("c")
    assert len(claim_and_take(engine, "c").payloads) == 20
    assert isinstance(sender.send(None), MessageBuffered)


def test_a_full_conversation_is_not_charged(engine: Engine) -> None:
    sender = Sender(engine, engine.another_store(SETTINGS._replace(max_waiting=5)))
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000)
    account = charge(messages=20)
    assert sender.fits(account, 100) == 5
    assert sender.fits(account, 100, new_conversations=True) == 20 - 5


def test_large_messages_that_wait_are_bounded_by_their_bytes(engine: Engine) -> None:
    sender = Sender(engine, engine.another_store(SETTINGS._replace(max_waiting_bytes=5 * LARGE + 2_000)))
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000)
    found = [sender.send(None, text="x" * LARGE) for _ in range(8)]
    assert [isinstance(each, MessageBuffered) for each in found] == [True] * 5 + [False] * 3
    assert found[-1] == MessageRefused("waiting", 0)
    assert isinstance(sender.send(None, text="small"), MessageBuffered)
    engine.store.resume_buffer("c")
    assert len(claim_and_take(engine, "c").payloads) == 6
    assert isinstance(sender.send(None, text="x" * LARGE), MessageBuffered), "the next buffer begins at nothing"


# -- remembered ids --------------------------------------------------------------------------------

LONG = "m_" + "x" * 1_000
KEPT = SETTINGS._replace(max_seen=10)


def talk(engine: Engine, ids: list[str], store: Store) -> None:
    """Send a batch and complete it."""
    for message_id in ids:
        assert isinstance(
            store.buffer_message("c", message_id, payload=payload(message_id), timing=TIMING), MessageBuffered
        )
    engine.clock.advance(60_000)
    taken = claim_and_take(engine, "c", "t1")
    assert ids_of(taken.payloads) == ids
    store.complete_batch("c", "t1")
    engine.clock.advance(1)


def test_a_conversation_remembers_so_many_ids_and_forgets_the_oldest(engine: Engine) -> None:
    store = engine.another_store(KEPT)
    for batch in range(5):
        talk(engine, [f"m{batch}-{n}" for n in range(4)], store)
    assert len(engine.keys()["{b0}:seen:c"].pairs) == 10
    again = store.buffer_message("c", "m4-0", payload=payload("m4-0"), timing=TIMING)
    assert isinstance(again, MessageDuplicate)
    forgotten = store.buffer_message("c", "m0-0", payload=payload("m0-0"), timing=TIMING)
    assert isinstance(forgotten, MessageBuffered)


def test_the_bytes_of_a_batch_that_was_taken_no_longer_count_as_waiting(engine: Engine) -> None:
    """The rest of a divided buffer continues it, but only what waits is bounded."""
    timing = Rules(silence_ms=1_000).timing
    store = engine.another_store(SETTINGS._replace(max_batch_bytes=4 * LARGE, max_waiting_bytes=6 * LARGE))

    def send(n: int) -> MessageBuffered | MessageDuplicate | MessageRefused:
        return store.buffer_message("c", f"m{n}", payload=payload(f"m{n}", "x" * (LARGE - 200)), timing=timing)

    found = [send(n) for n in range(7)]
    assert [type(each) for each in found] == [MessageBuffered] * 6 + [MessageRefused]
    engine.claim()
    assert isinstance(taken := store.take_batch("c", "t"), BatchTaken)
    assert len(taken.payloads) == 4
    found = [send(n) for n in range(6, 11)]
    assert [type(each) for each in found] == [MessageBuffered] * 4 + [MessageRefused]


def test_the_ids_of_waiting_messages_are_never_forgotten(engine: Engine) -> None:
    store = engine.another_store(KEPT)
    store.buffer_message("c", "first", payload=payload("first"), timing=TIMING)
    engine.clock.advance(60_000)
    claim_and_take(engine, "c", "t1")
    for n in range(30):
        store.buffer_message("c", f"w{n}", payload=payload(f"w{n}"), timing=TIMING)
    store.complete_batch("c", "t1")
    assert all(
        isinstance(store.buffer_message("c", f"w{n}", payload=payload(f"w{n}"), timing=TIMING), MessageDuplicate)
        for n in range(30)
    )


def test_stop_words_and_deletions_cannot_make_the_memory_grow(engine: Engine) -> None:
    store = engine.another_store(KEPT)
    for n in range(50):
        store.cancel_buffer("c", cancel_id=f"stop-{n}")
        store.buffer_message("c", f"m{n}", payload=payload(f"m{n}"), timing=TIMING)
        store.delete_message("c", f"m{n}")
        engine.clock.advance(10)
    assert len(engine.keys()["{b0}:seen:c"].pairs) <= KEPT.max_seen + 2


@pytest.mark.parametrize("state", ["waiting", "frozen", "frozen and waiting"])
def test_deletions_beside_messages_that_stay_cannot_make_the_memory_grow(engine: Engine, state: str) -> None:
    store = engine.another_store(KEPT)
    talk(engine, [f"before-{n}" for n in range(9)], store)
    stay = ["stays"]
    store.buffer_message("c", "stays", payload=payload("stays"), timing=TIMING)
    if "frozen" in state:
        engine.clock.advance(60_000)
        claim_and_take(engine, "c", "t1")
    if state == "frozen and waiting":
        stay.append("waits")
        store.buffer_message("c", "waits", payload=payload("waits"), timing=TIMING)
    for n in range(50):
        store.buffer_message("c", f"m{n}", payload=payload(f"m{n}"), timing=TIMING)
        store.delete_message("c", f"m{n}")
        engine.clock.advance(10)
    remembered = engine.keys()["{b0}:seen:c"].pairs
    assert len(remembered) <= KEPT.max_seen + len(stay)
    assert {name.encode() for name in stay} <= set(remembered)


def test_what_a_cancel_drops_at_once_is_forgotten_at_once(engine: Engine, sender: Sender) -> None:
    store = engine.another_store(KEPT)
    for _ in range(1_100):
        sender.send(None)
    store.cancel_buffer("c", cancel_id="stop")
    assert len(engine.keys()["{b0}:seen:c"].pairs) == KEPT.max_seen


def test_a_long_id_is_remembered_by_a_short_name(engine: Engine, sender: Sender) -> None:
    sender.send(None, message_id=LONG)
    (kept,) = engine.keys()["{b0}:seen:c"].pairs
    assert len(kept) < MAX_REMEMBERED_ID_BYTES
    assert isinstance(sender.send(None, message_id=LONG), MessageDuplicate)
    assert isinstance(sender.send(None, message_id=LONG + "y"), MessageBuffered)
