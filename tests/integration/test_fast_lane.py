"""Due VIPs are claimed first. No more conversations are in flight than there are slots, and no slot stays free."""

from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import Claimed, Taken
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.layers import Rules
from tests.support.engine import SETTINGS, Engine

NOW = Rules(silence_ms=0, typing_inference_ms=0)
VIP = Rules(priority="vip")
SLOW_VIP = Rules(priority="vip", vip_silence_ms=400)


@pytest.fixture
def few_slots(engine: Engine) -> Store:
    """Return a store with two slots, on a shard with a living processor."""
    engine.work()
    return engine.another_store(SETTINGS._replace(slots=2))


def send(engine: Engine, *names: str, rules: Rules = NOW) -> None:
    for name in names:
        engine.send(name, f"m{engine.clock.now_ms}", rules=rules)


def backlog(engine: Engine, count: int, rules: Rules = NOW) -> None:
    """Make conversations due 1 ms before all that are sent later."""
    send(engine, *(f"{'vip' if rules.priority == 'vip' else 'c'}{number:03}" for number in range(count)), rules=rules)
    engine.clock.advance(1)


def claim(engine: Engine, limit: int = 100, store: Store | None = None) -> list[str]:
    engine.work()
    claimed = (store or engine.store).claim_due(0, engine.processor, limit=limit)
    assert isinstance(claimed, Claimed)
    return [due.conversation for due in claimed.conversations]


def waits_for_slot(engine: Engine, store: Store) -> bool:
    claimed = store.claim_due(0, engine.processor)
    assert isinstance(claimed, Claimed)
    return claimed.waits_for_slot


def take(engine: Engine, name: str) -> Taken:
    taken = engine.store.take_batch(name, f"token of {name}")
    assert isinstance(taken, Taken)
    return taken


def complete(engine: Engine, name: str) -> None:
    take(engine, name)
    engine.store.complete_batch(name, f"token of {name}")


def vips(engine: Engine) -> set[bytes]:
    key = engine.keys().get("{b0}:vip")
    return set(key.pairs) if key else set()


def woken(engine: Engine) -> bool:
    return engine.keys().get("{b0}:wake") is not None


# -- VIPs ------------------------------------------------------------------------------------------


def test_a_vip_is_claimed_before_all_that_was_due_earlier(engine: Engine) -> None:
    backlog(engine, 200)
    send(engine, "vip", rules=VIP)
    assert claim(engine, limit=5)[0] == "vip"


@pytest.mark.parametrize("vips_are_older", [False, True])
def test_vips_get_a_fifth_of_a_claim_while_others_are_due(engine: Engine, vips_are_older: bool) -> None:
    for rules in (VIP, NOW) if vips_are_older else (NOW, VIP):
        backlog(engine, 200, rules)
    for _ in range(2):
        claimed = claim(engine)
        assert [name.startswith("vip") for name in claimed] == [True] * 20 + [False] * 80


def test_vips_take_what_others_leave(engine: Engine) -> None:
    backlog(engine, 10)
    backlog(engine, 200, VIP)
    claimed = claim(engine)
    assert sum(name.startswith("vip") for name in claimed) == 90
    assert sum(name.startswith("vip") for name in claim(engine)) == 100


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_in_small_claims_four_others_follow_each_vip(engine: Engine, limit: int) -> None:
    backlog(engine, 100)
    backlog(engine, 100, VIP)
    claimed = [name for _ in range(60 // limit) for name in claim(engine, limit)]
    assert claimed[0].startswith("vip")
    assert sum(name.startswith("vip") for name in claimed) == 12


def test_a_vip_that_waits_for_its_silence_is_first_once_that_is_over(engine: Engine) -> None:
    backlog(engine, 20)
    send(engine, "vip", rules=SLOW_VIP)
    assert "vip" not in claim(engine, limit=3)
    engine.clock.advance(200)
    send(engine, "vip", rules=SLOW_VIP)  # moves the timer
    engine.clock.advance(399)
    assert "vip" not in claim(engine, limit=3)
    engine.clock.advance(1)
    assert claim(engine, limit=3)[0] == "vip"


def test_a_vip_that_is_not_due_does_not_keep_the_processor_awake(engine: Engine) -> None:
    send(engine, "vip", rules=SLOW_VIP)
    engine.work()
    claimed = engine.store.claim_due(0, engine.processor)
    assert isinstance(claimed, Claimed)
    assert (claimed.next_due_at_ms, claimed.conversations) == (engine.clock.now_ms + 400, [])
    assert not claimed.waits_for_slot


def goes_on_hold_and_back(engine: Engine) -> None:
    engine.store.hold_buffer("vip", hold_ms=60_000)
    engine.clock.advance(1)
    engine.store.resume_buffer("vip")


def hold_ends(engine: Engine) -> None:
    engine.store.hold_buffer("vip", hold_ms=100)
    engine.clock.advance(100)


def is_flushed(engine: Engine) -> None:
    engine.store.hold_buffer("vip", hold_ms=60_000)
    engine.store.flush_buffer("vip")


def is_held_after_its_claim(engine: Engine) -> None:
    claim(engine)
    hold_ends(engine)


def start_fails(engine: Engine) -> None:
    claim(engine)
    engine.store.return_claim("vip", engine.processor, due_at_ms=engine.clock.now_ms + 250)
    engine.clock.advance(250)


def emission_fails(engine: Engine) -> None:
    claim(engine)
    take(engine, "vip")
    engine.store.retry_batch("vip", "token of vip", retry_at_ms=engine.clock.now_ms + 1_000)
    engine.clock.advance(1_000)


def emission_fails_while_the_customer_writes(engine: Engine) -> None:
    claim(engine)
    take(engine, "vip")
    engine.clock.advance(1)
    send(engine, "vip", rules=SLOW_VIP)
    engine.store.retry_batch("vip", "token of vip", retry_at_ms=engine.clock.now_ms + 1_000)
    engine.clock.advance(1_000)


def conversation_processor_dies(engine: Engine) -> None:
    claim(engine)
    take(engine, "vip")
    engine.clock.advance(SETTINGS.token_ms)
    engine.store.recover_expired(0)


def writes_while_the_batch_is_emitted(engine: Engine) -> None:
    claim(engine)
    take(engine, "vip")
    engine.clock.advance(1)
    send(engine, "vip", rules=VIP)
    engine.store.complete_batch("vip", "token of vip")


@pytest.mark.parametrize(
    "happens",
    [
        goes_on_hold_and_back, hold_ends, is_flushed, is_held_after_its_claim, start_fails, emission_fails,
        emission_fails_while_the_customer_writes, conversation_processor_dies, writes_while_the_batch_is_emitted,
    ],
)  # fmt: skip
def test_a_vip_remains_one_until_its_last_batch_is_out(engine: Engine, happens: Callable[[Engine], None]) -> None:
    send(engine, "vip", rules=VIP)
    happens(engine)
    backlog(engine, 50, Rules(max_wait_ms=2, silence_ms=1, typing_inference_ms=0))
    engine.clock.advance(1)
    assert claim(engine, limit=5)[0] == "vip"
    complete(engine, "vip")
    if engine.store.peek_conversation("vip").state == "PENDING":
        assert vips(engine) == {b"vip"}
        claim(engine)
        complete(engine, "vip")
    assert vips(engine) == set()


@pytest.mark.parametrize("is_due", [False, True])
def test_new_rules_make_a_waiting_conversation_a_vips(engine: Engine, is_due: bool) -> None:
    backlog(engine, 50)
    send(engine, "vip", rules=NOW if is_due else Rules())
    engine.clock.advance(1)
    engine.store.retime_buffer("vip", timing=VIP.timing)
    assert claim(engine, limit=5)[0] == "vip"


def test_new_rules_end_a_priority(engine: Engine) -> None:
    backlog(engine, 50)
    send(engine, "vip", rules=VIP)
    engine.clock.advance(1)
    engine.store.retime_buffer("vip", timing=NOW.timing)
    assert "vip" not in claim(engine, limit=5)


@pytest.mark.parametrize("ends", ["cancelled", "deleted", "forgotten"])
def test_a_vip_whose_messages_were_dropped_leaves_nothing_behind(engine: Engine, ends: str) -> None:
    engine.send("vip", "m1", rules=VIP)
    if ends == "cancelled":
        engine.cancel("vip")
    elif ends == "deleted":
        engine.store.delete_message("vip", "m1")
    else:
        engine.store.forget_conversation("vip", forget_id="f", secret="s")
    assert vips(engine) == set()


def test_a_claim_removes_what_older_code_left_behind(engine: Engine) -> None:
    """Older code completes a VIP's batch, but leaves the conversation in the set `vip`."""
    engine.admin.zadd("{b0}:vip", {"gone": engine.clock.now_ms})
    backlog(engine, 5)
    assert len(claim(engine, limit=1)) == 1
    assert vips(engine) == set()


# -- slots -----------------------------------------------------------------------------------------


def test_no_more_conversations_are_in_flight_than_there_are_slots(engine: Engine, few_slots: Store) -> None:
    backlog(engine, 5)
    assert len(claim(engine, store=few_slots)) == 2
    assert claim(engine, store=few_slots) == []
    take(engine, "c000")
    assert claim(engine, store=few_slots) == [], "a taken batch has its slot until it is completed"


def test_an_expired_claim_takes_no_slot(engine: Engine, few_slots: Store) -> None:
    backlog(engine, 5)
    claim(engine, store=few_slots)
    engine.clock.advance(SETTINGS.claim_ms - 1)
    assert claim(engine, store=few_slots) == []
    engine.clock.advance(1)
    assert len(claim(engine, store=few_slots)) == 2


def test_a_processor_waits_for_a_slot_only_if_more_is_due(engine: Engine, few_slots: Store) -> None:
    backlog(engine, 2)
    assert not waits_for_slot(engine, few_slots), "nothing else is due"
    send(engine, "later", rules=Rules())
    assert not waits_for_slot(engine, few_slots)
    engine.clock.advance(1_000)
    assert waits_for_slot(engine, few_slots)


@pytest.mark.promise("P5")
@pytest.mark.parametrize("fails", [False, True])
def test_a_freed_slot_wakes_the_processor_that_waits_for_it(engine: Engine, few_slots: Store, fails: bool) -> None:
    backlog(engine, 5)
    claim(engine, store=few_slots)
    take(engine, "c000")
    assert not woken(engine)
    if fails:
        engine.store.retry_batch("c000", "token of c000", retry_at_ms=engine.clock.now_ms + 1_000)
    else:
        engine.store.complete_batch("c000", "token of c000")
    assert woken(engine)
    assert claim(engine, store=few_slots) == ["c002"]


def test_messages_do_not_wake_a_processor_that_waits_for_a_slot(engine: Engine, few_slots: Store) -> None:
    backlog(engine, 3)
    claim(engine, store=few_slots)
    send(engine, "another")
    send(engine, "vip", rules=VIP)
    assert not woken(engine), "it could not claim them"


def test_a_completed_batch_wakes_no_processor_while_slots_are_free(engine: Engine) -> None:
    backlog(engine, 2)
    claim(engine)
    complete(engine, "c000")
    assert not woken(engine)


def test_the_first_free_slot_is_a_vips(engine: Engine, few_slots: Store) -> None:
    backlog(engine, 5)
    first = claim(engine, store=few_slots)
    send(engine, "vip", rules=VIP)
    complete(engine, first[0])
    assert claim(engine, store=few_slots) == ["vip"]
