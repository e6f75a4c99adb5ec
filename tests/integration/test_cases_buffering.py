"""Cases others met while messages come in: what is kept, in which order, and when it is due."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from message_buffer.errors import InvalidRules
from message_buffer.lanes.outcomes import Buffered, Duplicate, Empty, Stale, Taken
from message_buffer.messages.message import Attachment, Message, decode, encode
from message_buffer.rules.layers import Rules
from tests.support.emission import Bus, claim_and_take, emit_due, ids_of, run_until_idle, take
from tests.support.engine import SETTINGS, Engine, ManualClock
from tests.support.invariants import assert_invariants

DEFAULT = Rules()


def test_case_07_a_message_every_silence_minus_one_ms_still_flushes_at_max_wait(engine: Engine) -> None:
    rules = Rules(silence_ms=1000, typing_inference_ms=0, max_wait_ms=30_000, max_messages=1000)
    bus, sent, began_ms = Bus(), 0, engine.clock.now_ms
    due_at_ms = 0
    while engine.clock.now_ms < began_ms + 10 * rules.max_wait_ms:
        if sent and engine.clock.now_ms >= due_at_ms:
            emit_due(engine, bus)
        buffered = engine.send("c", f"m{sent}", rules=rules)
        due_at_ms, sent = buffered.due_at_ms or 0, sent + 1
        engine.clock.advance(rules.silence_ms - 1)
    assert len(bus.events) >= 9
    assert {event.reason for event in bus.events} == {"max_wait"}
    assert all(len(event.ids) <= 32 for event in bus.events)
    run_until_idle(engine, bus)
    assert bus.ids("c") == [f"m{n}" for n in range(sent)]


@pytest.mark.parametrize("before_deadline_ms", [1000, 999, 2, 1, 0, -1])
def test_case_08_near_the_deadline_due_is_never_after_first_plus_max_wait(
    engine: Engine, before_deadline_ms: int
) -> None:
    rules = Rules(silence_ms=1000, max_wait_ms=30_000, max_messages=100)
    first_at_ms = engine.clock.now_ms
    engine.send("c", "m0", rules=rules)
    for n in range(1, 33):
        engine.clock.advance(900)
        engine.send("c", f"m{n}", rules=rules)
    engine.clock.now_ms = first_at_ms + rules.max_wait_ms - before_deadline_ms
    late = engine.send("c", "late", rules=rules)
    assert late.due_at_ms == first_at_ms + rules.max_wait_ms
    engine.clock.now_ms = max(engine.clock.now_ms, first_at_ms + rules.max_wait_ms)
    assert claim_and_take(engine, "c").flush_reason == "max_wait"


@pytest.mark.parametrize(
    "rules",
    [
        {"silenceMs": 5000, "maxWaitMs": 5000},
        {"silenceMs": 5000, "maxWaitMs": 4999},
        {"silenceMs": -1},
        {"maxWaitMs": 0},
        {"minMessages": 2, "maxWaitMs": 0},
        {"silenceMs": 1.5},
        {"silenceMs": "1s"},
        {"silenceMs": 10**18},
    ],
)
def test_case_09_rules_that_would_disable_the_debounce_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(InvalidRules, match=r"(silenceMs|maxWaitMs): .*(lower|use) "):
        Rules.model_validate(rules)


@pytest.mark.parametrize("silence_ms", [1, 7, 250, 999])
def test_case_10_sub_second_rules_behave_to_the_millisecond(engine: Engine, silence_ms: int) -> None:
    engine.clock.now_ms += 437
    engine.send("c", "m1", rules=Rules(silence_ms=silence_ms, typing_inference_ms=0, max_wait_ms=1500))
    engine.clock.advance(silence_ms - 1)
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]


def test_case_11_two_writers_race_on_an_empty_conversation(engine: Engine) -> None:
    conversations = [f"c{n}" for n in range(100)]
    line = Barrier(2)

    def writer(name: str) -> list[Buffered | Duplicate]:
        store = engine.another_store()
        outcomes = []
        for conversation in conversations:
            line.wait(timeout=20)
            outcomes.append(
                store.buffer_message(conversation, name, payload=b'"' + name.encode() + b'"\n{}', timing=DEFAULT.timing)
            )
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        ones, others = pool.map(writer, ["one", "other"])
    for conversation, one, other in zip(conversations, ones, others, strict=True):
        assert {one.count, other.count} == {1, 2}
        assert engine.store.peek_conversation(conversation).generation == 2
    assert [outcome.start_processor for outcome in ones + others].count(True) == 1
    assert_invariants(engine)
    engine.clock.advance(DEFAULT.typing_inference_ms)
    for conversation in engine.claim():
        assert sorted(ids_of(take(engine, conversation).payloads)) == ["one", "other"]


def test_case_13_a_message_from_a_clock_that_lags_is_kept_in_arrival_order(engine: Engine) -> None:
    lagging = ManualClock()
    lagging.now_ms = engine.clock.now_ms - 45_000
    other_host = engine.another_store(clock=lagging)
    engine.send("c", "m1")
    older = other_host.buffer_message("c", "m2", payload=b'"m2"\n{}', timing=DEFAULT.timing)
    engine.clock.advance(100)
    engine.send("c", "m3")
    assert isinstance(older, Buffered)
    assert older.due_at_ms >= engine.clock.now_ms
    engine.clock.advance(DEFAULT.typing_inference_ms)
    taken = claim_and_take(engine, "c")
    assert ids_of(taken.payloads) == ["m1", "m2", "m3"]
    assert taken.first_at_ms <= taken.last_at_ms


def test_case_13_a_late_message_after_the_batch_was_taken_comes_in_the_next(engine: Engine) -> None:
    bus = Bus()
    lagging = ManualClock()
    lagging.now_ms = engine.clock.now_ms - 45_000
    engine.send("c", "m1")
    engine.clock.advance(1000)
    claim_and_take(engine, "c", "t1")
    engine.another_store(clock=lagging).buffer_message("c", "m0", payload=b'"m0"\n{}', timing=DEFAULT.timing)
    engine.store.complete_batch("c", "t1")
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["m0"]]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_case_18_the_batch_is_due_with_exactly_the_nth_message(engine: Engine, limit: int) -> None:
    rules = Rules(max_messages=limit)
    for n in range(limit):
        assert engine.claim() == []
        buffered = engine.send("c", f"m{n}", rules=rules)
        assert (buffered.due_at_ms == engine.clock.now_ms) == (n == limit - 1)
    taken = claim_and_take(engine, "c")
    assert (len(taken.payloads), taken.flush_reason) == (limit, "max_messages")


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_case_18_a_burst_of_one_more_than_the_limit_is_emitted_whole(engine: Engine, limit: int) -> None:
    rules, bus = Rules(max_messages=limit), Bus()
    for n in range(limit):
        engine.send("c", f"m{n}", rules=rules)
    claim_and_take(engine, "c", "t1")
    engine.send("c", "one more", rules=rules)
    engine.store.complete_batch("c", "t1")
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["one more"]]


def test_case_18_what_follows_a_reached_limit_joins_the_batch_that_is_due(engine: Engine) -> None:
    rules = Rules(max_messages=2)
    for n in range(3):
        due_at_ms = engine.send("c", f"m{n}", rules=rules).due_at_ms
        assert n == 0 or due_at_ms == engine.clock.now_ms
    assert len(claim_and_take(engine, "c").payloads) == 3


def test_case_19_limit_and_timer_in_the_same_millisecond_make_one_batch(engine: Engine) -> None:
    rules, bus = Rules(typing_inference_ms=0, max_messages=2), Bus()
    engine.send("c", "m1", rules=rules)
    engine.clock.advance(rules.silence_ms)
    engine.send("c", "m2", rules=rules)
    assert emit_due(engine, bus) == ["c"]
    assert emit_due(engine, bus) == []
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["m1", "m2"]]


def test_case_19_limit_reached_while_the_timer_has_already_claimed_makes_one_batch(engine: Engine) -> None:
    rules = Rules(typing_inference_ms=0, max_messages=2)
    engine.send("c", "m1", rules=rules)
    engine.clock.advance(rules.silence_ms)
    assert engine.claim() == ["c"]
    engine.send("c", "m2", rules=rules)
    engine.store.flush_buffer("c")
    assert engine.claim() == []
    assert ids_of(take(engine, "c", "t1").payloads) == ["m1", "m2"]
    engine.store.complete_batch("c", "t1")
    assert engine.claim() == []
    assert isinstance(engine.store.take_batch("c", "t2"), Stale)


def test_case_21_every_message_is_there_whole(engine: Engine) -> None:
    messages = [
        Message(id="m1", text="Look:", platform="whatsapp", received_at=1, author="Ana"),
        Message(
            id="m2", type="image", platform="whatsapp", received_at=2, reply_to="m0",
            attachments=[Attachment(type="image", url="https://example.org/a.jpg", size_bytes=3)],
        ),
        Message(id="m3", text="@bot 👀 ünï\u0000\r\n", platform="whatsapp", received_at=3, sent_at=2),
    ]  # fmt: skip
    for message in messages:
        engine.store.buffer_message("c", message.id, payload=encode(message), timing=DEFAULT.timing)
    engine.clock.advance(DEFAULT.typing_inference_ms)
    assert [decode(payload) for payload in claim_and_take(engine, "c").payloads] == messages


def test_case_25_fifty_parallel_deliveries_of_one_message_id_buffer_it_once(engine: Engine) -> None:
    line = Barrier(50)

    def deliver(n: int) -> Buffered | Duplicate:
        store = engine.another_store()
        line.wait(timeout=30)
        return store.buffer_message("c", "wamid.1", payload=b'"wamid.1"\n{}', timing=DEFAULT.timing)

    with ThreadPoolExecutor(50) as pool:
        outcomes = list(pool.map(deliver, range(50)))
    assert [type(outcome) for outcome in outcomes].count(Buffered) == 1
    assert [type(outcome) for outcome in outcomes].count(Duplicate) == 49
    assert [outcome.start_processor for outcome in outcomes].count(True) == 1
    engine.clock.advance(DEFAULT.silence_ms)
    assert ids_of(claim_and_take(engine, "c").payloads) == ["wamid.1"]


def test_case_26_a_redelivery_is_known_by_its_message_id_alone(engine: Engine) -> None:
    engine.send("acme:whatsapp:+1:ana", "wamid.1", "Hey")
    engine.clock.advance(700)
    again = engine.send("acme:whatsapp:+1:ana", "wamid.1", "Hey, in other words")
    assert isinstance(again, Duplicate)
    assert again.count == 1


def test_case_26_one_message_id_on_two_channel_accounts_is_two_messages(engine: Engine) -> None:
    for account in ("acme:whatsapp:+1:ana", "acme:whatsapp:+2:ana"):
        assert isinstance(engine.send(account, "wamid.1"), Buffered)


def test_case_27_a_redelivery_hours_after_a_failed_emission_is_a_duplicate(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "m1")
    engine.clock.advance(1000)
    first = claim_and_take(engine, "c", "t1")
    bus.emit(engine, "c", first)
    engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 5 * 3_600_000)
    engine.clock.advance(4 * 3_600_000)
    assert isinstance(engine.send("c", "m1"), Duplicate)
    run_until_idle(engine, bus)
    assert [event.batch_id for event in bus.events] == [first.batch_id] * 2
    assert isinstance(engine.send("c", "m1"), Duplicate), "and after it went out"
    run_until_idle(engine, bus)
    assert len(bus.events) == 2


def test_case_27_an_id_is_remembered_across_batches_as_long_as_promised_and_no_longer(engine: Engine) -> None:
    settings = SETTINGS
    engine.send("c", "m1")
    run_until_idle(engine, Bus())
    engine.clock.advance(settings.seen_ms - 60_000)
    engine.send("c", "m2")
    assert isinstance(engine.send("c", "m1"), Duplicate)
    run_until_idle(engine, Bus())
    engine.clock.advance(60_000)
    engine.send("c", "m3")
    run_until_idle(engine, Bus())
    assert isinstance(engine.send("c", "m1"), Buffered)


def test_case_28_a_flood_is_flushed_early_and_nothing_is_dropped(engine: Engine) -> None:
    rules, bus = Rules(max_messages=20), Bus()
    for n in range(500):
        engine.send("c", f"m{n}", rules=rules)
        if n % 23 == 22:
            assert emit_due(engine, bus) == ["c"], "the cap makes it due at once"
            assert bus.events[-1].reason == "max_messages"
    run_until_idle(engine, bus)
    assert bus.ids("c") == [f"m{n}" for n in range(500)]


def test_case_32_the_rules_of_the_last_message_apply_to_the_open_buffer(engine: Engine) -> None:
    first_at_ms = engine.clock.now_ms
    patient = Rules(silence_ms=5000, typing_inference_ms=0, max_wait_ms=60_000)
    assert engine.send("c", "m1", rules=patient).due_at_ms == first_at_ms + 5000
    engine.clock.advance(1000)
    brisk = Rules(silence_ms=200, typing_inference_ms=0, max_wait_ms=2000)
    assert engine.send("c", "m2", rules=brisk).due_at_ms == first_at_ms + 1200
    engine.clock.advance(150)
    assert engine.send("c", "m3", rules=patient).due_at_ms == first_at_ms + 6150
    engine.clock.advance(800)
    assert engine.send("c", "m4", rules=brisk).due_at_ms == first_at_ms + brisk.max_wait_ms
    engine.clock.now_ms = first_at_ms + brisk.max_wait_ms
    assert len(claim_and_take(engine, "c").payloads) == 4


def test_case_32_a_shortened_max_wait_that_has_passed_already_makes_it_due_at_once(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(silence_ms=5000, max_wait_ms=60_000))
    first_at_ms = engine.clock.now_ms
    engine.clock.advance(4000)
    short = Rules(silence_ms=1000, max_wait_ms=3000)
    assert engine.send("c", "m2", rules=short).due_at_ms == first_at_ms + 3000
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m1", "m2"]


def test_case_34_equal_texts_with_different_ids_are_both_kept(engine: Engine) -> None:
    engine.send("c", "m1", "ok")
    engine.send("c", "m2", "ok")
    engine.clock.advance(3000)
    assert [decode(payload).text for payload in claim_and_take(engine, "c").payloads] == ["ok", "ok"]


def test_case_35_the_same_author_on_two_accounts_tenants_and_platforms_is_separate(engine: Engine) -> None:
    conversations = [
        f"{tenant}:{platform}:{account}:ana"
        for tenant in ("acme", "beta")
        for platform in ("whatsapp", "telegram")
        for account in ("1", "2")
    ]
    for conversation in conversations:
        engine.send(conversation, "m1", conversation)
        assert engine.send(conversation, "m2", rules=Rules(max_messages=2)).count == 2
    engine.store.cancel_buffer(conversations[0])
    batch_ids = set()
    for conversation in engine.claim():
        taken = take(engine, conversation)
        assert decode(taken.payloads[0]).text == conversation
        batch_ids.add(taken.batch_id)
    assert len(batch_ids) == len(conversations) - 1


def test_case_36_a_burst_across_any_number_of_looks_is_one_batch(engine: Engine) -> None:
    bus = Bus()
    for n in range(12):
        engine.send("c", f"m{n}")
        for _ in range(4):
            engine.clock.advance(200)
            assert emit_due(engine, bus) == []
            engine.store.recover_expired(0)
    run_until_idle(engine, bus)
    assert bus.batches("c") == [[f"m{n}" for n in range(12)]]


def test_taking_what_nobody_claimed_changes_nothing(engine: Engine) -> None:
    engine.send("c", "m1")
    before = engine.settle()
    assert not isinstance(engine.store.take_batch("c", "t1"), Taken | Empty)
    assert engine.settle() == before
