"""Every script in the states that matter, as a call that a test makes once, twice, or on a bad connection."""

from collections.abc import Callable
from typing import NamedTuple

from message_buffer.lanes import outcomes as o
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine, payload
from tests.support.outcomes import changed, parts

NOW = Rules(priority="vip")
SPENT = Charge((("generic/shop", Quota(messages_per_minute=1, conversations_per_minute=1)),), is_exact=True)

Answer = object
# Computes the answer of a repeated call from the first answer.
Again = Callable[[Answer], Answer]
State = Callable[[Engine], object]


def the_same(first: Answer) -> Answer:
    return first


def as_duplicate(first: Answer) -> Answer:
    assert isinstance(first, o.MessageBuffered)
    return o.MessageDuplicate(**parts(first))


def always(answer: Answer) -> Again:
    return lambda _: answer


def nothing_more_returned(first: Answer) -> Answer:
    assert isinstance(first, o.LeaseAcquired)
    return changed(first, returned=0)


def nothing_more_expired(first: Answer) -> Answer:
    assert isinstance(first, o.ConversationsClaimed)
    return changed(first, expired=0)


def nothing_more_recovered(first: Answer) -> Answer:
    assert isinstance(first, o.ShardRecovered)
    return changed(first, conversations=[])


def nothing_left(_first: Answer) -> Answer:
    """The first call has erased everything."""
    return o.ConversationForgotten(None, 0, 0, None)


def nothing_more_dropped(first: Answer) -> Answer:
    assert isinstance(first, o.BufferCancelled)
    return o.AlreadyCancelled(first.generation)


def not_on_hold_any_more(first: Answer) -> Answer:
    assert isinstance(first, o.HoldEnded)
    return o.NotOnHold(**parts(first))


def unmoved(first: Answer) -> Answer:
    assert isinstance(first, o.BufferExtended)
    return o.BufferUnmoved(**parts(first))


class Scene(NamedTuple):
    script: str
    state: State
    call: Callable[[Store, Engine], Answer]
    again: Again = the_same

    @property
    def name(self) -> str:
        return f"{self.script}: {self.state.__name__.replace('_', ' ')}"


# -- states ----------------------------------------------------------------------------------------


def idle(engine: Engine) -> None:
    pass


def open_buffer(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(600)
    engine.send("c", "m2")
    engine.clock.advance(600)


def newest_deleted(engine: Engine) -> None:
    """Delete m3, so that its remembered id misleads the search for m2 by one position."""
    open_buffer(engine)
    engine.send("c", "m3")
    engine.store.delete_message("c", "m3")


def due(engine: Engine) -> None:
    open_buffer(engine)
    engine.clock.advance(10_000)


def due_with_a_processor(engine: Engine) -> None:
    due(engine)
    engine.send("d", "m1")
    engine.clock.advance(1)
    engine.work()


def moved_with_a_processor(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(999)
    engine.send("c", "m2")
    engine.clock.advance(1)
    engine.work()


def claimed(engine: Engine) -> None:
    due(engine)
    assert engine.claim() == ["c"]


def claimed_by_a_dead_processor(engine: Engine) -> None:
    claimed(engine)
    engine.clock.advance(SETTINGS.lease_ms)


def expired_with_a_processor(engine: Engine) -> None:
    claimed(engine)
    engine.clock.advance(SETTINGS.claim_ms)
    engine.work()


def taken(engine: Engine) -> None:
    claimed(engine)
    engine.store.take_batch("c", "t1")
    engine.clock.advance(10)


def taken_and_more(engine: Engine) -> None:
    taken(engine)
    engine.send("c", "m3")
    engine.clock.advance(10)


def taken_and_abandoned(engine: Engine) -> None:
    taken_and_more(engine)
    engine.store.release_lease(0, engine.processor, reason="handover")
    engine.clock.advance(SETTINGS.token_ms)


def completed(engine: Engine) -> None:
    taken(engine)
    engine.store.complete_batch("c", "t1")


def waiting_for_retry(engine: Engine) -> None:
    taken_and_more(engine)
    engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 5000)


def quota_spent(engine: Engine) -> None:
    open_buffer(engine)
    for n in range(2):
        engine.store.buffer_message("d", f"m{n}", payload=payload(f"m{n}"), timing=Rules().timing, charge=SPENT)
    engine.store.charge_changes("d", SPENT, items=2)


def held(engine: Engine) -> None:
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=300_000)
    open_buffer(engine)


def processor_with_nothing_to_do(engine: Engine) -> None:
    engine.work()


def processor_with_work(engine: Engine) -> None:
    open_buffer(engine)
    engine.work()


def processor_that_sleeps(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)


def open_with_a_processor_that_sleeps(engine: Engine) -> None:
    open_buffer(engine)
    processor_that_sleeps(engine)


# -- scenes ----------------------------------------------------------------------------------------


def send_over_quota(store: Store, engine: Engine) -> Answer:
    return store.buffer_message("c", "new", payload=payload("new"), timing=NOW.timing, charge=SPENT)


def send(rules: Rules) -> Callable[[Store, Engine], Answer]:
    return lambda store, engine: store.buffer_message("c", "new", payload=payload("new"), timing=rules.timing)


def retime(rules: Rules) -> Callable[[Store, Engine], Answer]:
    return lambda store, engine: store.retime_buffer("c", timing=rules.timing)


def complete(store: Store, engine: Engine) -> Answer:
    return store.complete_batch("c", "t1")


def retry(store: Store, engine: Engine) -> Answer:
    return store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 700)


def take(store: Store, engine: Engine) -> Answer:
    return store.take_batch("c", "t2")


def claim(store: Store, engine: Engine) -> Answer:
    return store.claim_due(0, engine.processor)


def in_steps(store: Store) -> Store:
    """Let the store read one message in each call of a search."""
    store.settings = store.settings._replace(search_bytes=1)
    return store


def recover(store: Store, engine: Engine) -> Answer:
    return store.recover_expired(0)


SCENES = [
    *(
        Scene("buffer_message", state, send(rules), as_duplicate)
        for state in (idle, open_buffer, due, claimed, taken, taken_and_more, completed, waiting_for_retry,
                      held, processor_that_sleeps)
        for rules in (Rules(), NOW)
    ),
    Scene("buffer_message", quota_spent, send_over_quota),
    Scene("charge_changes", quota_spent, lambda store, engine: store.charge_changes("c", SPENT, items=2)),
    *(
        Scene("acquire_lease", state, lambda store, engine: store.acquire_lease(0, engine.processor))
        for state in (idle, open_buffer, processor_that_sleeps)
    ),
    Scene("acquire_lease", processor_with_work, lambda store, engine: store.acquire_lease(0, "another")),
    Scene("acquire_lease", claimed_by_a_dead_processor, lambda store, engine: store.acquire_lease(0, "another"),
          nothing_more_returned),
    Scene("renew_lease", processor_that_sleeps, lambda store, engine: store.renew_lease(0, engine.processor)),
    Scene("renew_lease", idle, lambda store, engine: store.renew_lease(0, engine.processor)),
    Scene("release_lease", processor_with_work,
          lambda store, engine: store.release_lease(0, engine.processor, reason="idle")),
    Scene("release_lease", processor_with_nothing_to_do,
          lambda store, engine: store.release_lease(0, engine.processor, reason="idle"), always(o.LeaseLost())),
    Scene("release_lease", processor_with_nothing_to_do,
          lambda store, engine: store.release_lease(0, engine.processor, reason="handover"), always(o.LeaseLost())),
    Scene("release_lease", processor_with_work,
          lambda store, engine: store.release_lease(0, engine.processor, reason="handover")),
    *(
        Scene("claim_due", state, claim)
        for state in (due_with_a_processor, moved_with_a_processor, processor_with_nothing_to_do, idle)
    ),
    Scene("claim_due", expired_with_a_processor, claim, nothing_more_expired),
    Scene("return_claim", claimed,
          lambda store, engine: store.return_claim("c", engine.processor, due_at_ms=engine.clock.now_ms + 9),
          always(o.RunStale())),
    Scene("return_claim", taken,
          lambda store, engine: store.return_claim("c", engine.processor, due_at_ms=engine.clock.now_ms)),
    *(
        Scene("take_batch", state, take)
        for state in (claimed, taken, idle, open_buffer)
    ),
    Scene("take_batch", taken_and_more, lambda store, engine: store.take_batch("c", "t1")),
    *(
        Scene("renew_token", state, lambda store, _: store.renew_token("c", "t1"))
        for state in (taken, taken_and_abandoned, waiting_for_retry, completed, idle)
    ),
    *(
        Scene("complete_batch", state, complete)
        for state in (taken, taken_and_more, taken_and_abandoned, waiting_for_retry, completed, open_buffer)
    ),
    *(
        Scene("retry_batch", state, retry)
        for state in (taken, taken_and_more, taken_and_abandoned, completed)
    ),
    *(
        Scene("recover_expired", state, recover, nothing_more_recovered)
        for state in (taken_and_abandoned, due, waiting_for_retry, idle)
    ),
    *(
        Scene("flush_buffer", state, lambda store, engine: store.flush_buffer("c"))
        for state in (idle, open_buffer, claimed, taken_and_more, waiting_for_retry, held,
                      taken_and_abandoned)
    ),
    *(
        Scene("cancel_buffer", state, lambda store, engine: store.cancel_buffer("c"), nothing_more_dropped)
        for state in (idle, open_buffer, claimed, taken_and_more, waiting_for_retry, held)
    ),
    *(
        Scene("forget_conversation", state, lambda store, engine: store.forget_conversation("c"), nothing_left)
        for state in (idle, open_buffer, claimed, taken_and_more, waiting_for_retry, held)
    ),
    *(
        Scene("hold_buffer", state,
              lambda store, engine: store.hold_buffer("c", holder="people", cause="operator", hold_ms=90_000))
        for state in (idle, open_buffer, claimed, taken_and_more, held)
    ),
    Scene("resume_buffer", held, lambda store, engine: store.resume_buffer("c"), not_on_hold_any_more),
    Scene("resume_buffer", held, lambda store, engine: store.resume_buffer("c", holder="consumers", cause="crm")),
    Scene("resume_buffer", open_buffer, lambda store, engine: store.resume_buffer("c")),
    *(
        Scene("extend_wait", state,
              lambda store, engine: store.extend_wait("c", extend_ms=20_000, max_wait_ms=30_000), unmoved)
        for state in (open_buffer, taken_and_more)
    ),
    Scene("extend_wait", idle,
          lambda store, engine: store.extend_wait("c", extend_ms=20_000, max_wait_ms=30_000)),
    *(
        Scene("retime_buffer", state, retime(rules))
        for state in (idle, open_buffer, due, claimed, taken_and_more, waiting_for_retry, held,
                      open_with_a_processor_that_sleeps)
        for rules in (NOW, Rules(silence_ms=60_000, max_wait_ms=120_000), Rules(silence_ms=100))
    ),
    *(
        Scene("edit_message", state,
              lambda store, engine: store.edit_message("c", "m2", payload=payload("m2", "new")))
        for state in (open_buffer, taken, completed, idle)
    ),
    *(
        Scene("delete_message", state, lambda store, engine: store.delete_message("c", "m2"),
              always(o.MessageAbsent(known=True, batch_id=None)))
        for state in (open_buffer, claimed, held)
    ),
    Scene("delete_message", taken_and_more, lambda store, engine: store.delete_message("c", "m3"),
          always(o.MessageAbsent(known=True, batch_id=None))),
    *(
        Scene("delete_message", state, lambda store, engine: store.delete_message("c", "m2"))
        for state in (taken, completed)
    ),
    *(
        Scene("find_message", state, lambda store, engine: store.find_message("c", "m2"))
        for state in (open_buffer, taken, completed, idle)
    ),
    Scene("edit_message", newest_deleted,
          lambda store, engine: in_steps(store).edit_message("c", "m2", payload=payload("m2", "new"))),
    Scene("note_reply", idle, lambda store, _: store.note_reply("c", at_ms=1)),
    Scene("note_reply", taken, lambda store, engine: store.note_reply("c", at_ms=engine.clock())),
    Scene("find_message", newest_deleted, lambda store, engine: in_steps(store).find_message("c", "m2")),
    *(
        Scene("list_conversations", state, lambda store, engine: store.list_conversations(0))
        for state in (idle, due_with_a_processor, taken_and_more)
    ),
    Scene("peek_conversation", taken_and_more, lambda store, engine: store.peek_conversation("c", limit=9)),
]  # fmt: skip
