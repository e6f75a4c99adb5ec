"""How long a person's replies keep a conversation on hold."""

from hypothesis import given
from hypothesis import strategies as st

from message_buffer.limits import HOUR_MS, MINUTE_MS
from message_buffer.takeovers.takeover import MAX_HOLDS_IN_A_TAKEOVER, MAX_REPLIES_REMEMBERED, Takeover

NOW = 1_700_000_000_000
HOLD = 12 * HOUR_MS


def after(takeover: Takeover, reply_id: str, *, at_ms: int = NOW, now_ms: int = 0, hold_ms: int = HOLD) -> Takeover:
    return takeover.after_reply(reply_id, at_ms=at_ms, hold_ms=hold_ms, now_ms=now_ms or at_ms)


def test_the_first_reply_begins_the_takeover() -> None:
    takeover = after(Takeover(), "a")
    assert (takeover.began_at_ms, takeover.until_ms, takeover.version) == (NOW, NOW + HOLD, 1)
    assert (takeover.is_on(NOW + HOLD - 1), takeover.is_on(NOW + HOLD)) == (True, False)


def test_the_hold_counts_from_the_latest_reply_up_to_the_ceiling() -> None:
    takeover = after(Takeover(), "a")
    later = after(takeover, "b", at_ms=NOW + HOUR_MS)
    assert (later.began_at_ms, later.until_ms) == (NOW, NOW + HOUR_MS + HOLD)
    for hour in range(2, 24):
        later = after(later, f"c{hour}", at_ms=NOW + hour * HOUR_MS)
        assert later.until_ms == min(NOW + hour * HOUR_MS + HOLD, NOW + MAX_HOLDS_IN_A_TAKEOVER * HOLD)


def test_a_reply_after_the_end_begins_another_takeover_which_is_published_again() -> None:
    first = after(Takeover(), "a")._replace(is_published=True)
    assert after(first, "b", at_ms=NOW + 1).is_published
    second = after(first, "b", at_ms=NOW + HOLD)
    assert (second.began_at_ms, second.until_ms, second.is_published) == (NOW + HOLD, NOW + 2 * HOLD, False)


def test_a_redelivery_changes_nothing_even_with_another_time() -> None:
    takeover = after(after(Takeover(), "a"), "b", at_ms=NOW + 5)
    assert after(takeover, "a", now_ms=NOW + HOUR_MS) is takeover
    assert after(takeover, "a", at_ms=NOW + HOUR_MS) is takeover


def test_a_reply_from_before_a_resume_holds_nothing_and_a_later_one_does() -> None:
    resumed = after(Takeover(), "a")._replace(resumed_at_ms=NOW + 10, until_ms=0)
    assert after(resumed, "b", at_ms=NOW + 10, now_ms=NOW + 99) is resumed
    assert after(resumed, "a", at_ms=NOW + 50) is resumed, "it is the one that the resume ended"
    assert after(resumed, "c", at_ms=NOW + 11).until_ms == NOW + 11 + HOLD


def test_a_reply_that_comes_after_its_hold_would_be_over_holds_nothing() -> None:
    assert after(Takeover(), "a", now_ms=NOW + HOLD) == Takeover()


def test_a_reply_of_a_platform_whose_clock_is_ahead_counts_from_now() -> None:
    assert after(Takeover(), "a", at_ms=NOW + HOUR_MS, now_ms=NOW).until_ms == NOW + HOLD


def test_a_hand_off_meanwhile_prolongs_a_takeover_and_is_no_other_one() -> None:
    first = after(Takeover(), "a")._replace(is_published=True)
    longer = first.after_hand_off(until_ms=NOW + 2 * HOLD, now_ms=NOW + 1)
    assert (longer.began_at_ms, longer.until_ms, longer.is_published) == (NOW, NOW + 2 * HOLD, True)
    assert longer.after_hand_off(until_ms=NOW + 5, now_ms=NOW + 2).until_ms == NOW + 2 * HOLD
    assert after(longer, "b", at_ms=NOW + HOUR_MS).until_ms == NOW + 2 * HOLD, "a reply does not shorten it"
    second = first.after_hand_off(until_ms=NOW + 3 * HOLD, now_ms=NOW + HOLD)
    assert (second.began_at_ms, second.is_published) == (NOW + HOLD, False)


def test_after_a_hand_back_the_next_hand_off_is_another_takeover() -> None:
    on = Takeover().after_hand_off(until_ms=NOW + HOLD, now_ms=NOW)._replace(is_published=True)
    handed_back = on.after_hand_back(NOW + 1)
    assert (handed_back.is_on(NOW + 1), handed_back.resumed_at_ms) == (False, NOW + 1)
    again = handed_back.after_hand_off(until_ms=NOW + 9, now_ms=NOW + 2)
    assert (again.is_on(NOW + 2), again.began_at_ms, again.is_published) == (True, NOW + 2, False)


def test_ids_are_remembered_as_few_digests() -> None:
    takeover = Takeover()
    for number in range(MAX_REPLIES_REMEMBERED + 9):
        takeover = after(takeover, f"{number}" * 900, at_ms=NOW + number)
    assert len(takeover.reply_ids) == MAX_REPLIES_REMEMBERED
    assert {len(each) for each in takeover.reply_ids} == {24}
    assert after(takeover, "\ud83d", at_ms=NOW + 100) is not takeover, "half a surrogate pair is no problem"


replies = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 72 * 60)), min_size=1, max_size=40)


@given(replies, st.randoms(use_true_random=False))
def test_no_order_and_no_repetition_of_replies_prolongs_a_takeover_beyond_its_ceiling(replies: list, random) -> None:  # type: ignore[no-untyped-def, type-arg]
    sent = [(str(number), NOW + minute * MINUTE_MS) for number, minute in replies]
    now_ms, takeover = NOW, Takeover()
    while sent:
        reply_id, at_ms = random.choice(sent)
        now_ms = max(now_ms, at_ms)
        before, takeover = takeover, after(takeover, reply_id, at_ms=at_ms, now_ms=now_ms)
        assert takeover.until_ms <= takeover.began_at_ms + MAX_HOLDS_IN_A_TAKEOVER * HOLD
        assert takeover.until_ms <= now_ms + HOLD
        if takeover.began_at_ms == before.began_at_ms:
            assert takeover.until_ms >= before.until_ms
        if random.random() < 0.6:
            sent.remove((reply_id, at_ms))
