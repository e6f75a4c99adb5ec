"""The table of takeovers, on DynamoDB's table and on the one in memory, which other tests use."""

from collections.abc import Callable, Iterator

import pytest

from message_buffer.aws import clients as aws
from message_buffer.limits import TAKEOVER_KEPT_MS, UNCONFIRMED_SENDS_ARE_ONE_WITHIN_MS
from message_buffer.takeovers.takeover import Interval, Takeover
from message_buffer.takeovers.takeovers_table import TakeoversTable
from tests.support.responder import tables
from tests.support.table_service import answering_without_http
from tests.support.takeovers import FakeTakeovers

NOW = 1_700_000_000_000
CHAT, OTHER = "default/whatsapp/555/491", "default/whatsapp/555/492"
Table = TakeoversTable | FakeTakeovers
New = Callable[[], Table]


@pytest.fixture(scope="module")
def made() -> Iterator[Callable[[], TakeoversTable]]:
    # The responder's table has the same keys.
    with tables() as new_table, answering_without_http(aws.client("dynamodb", patience=aws.HURRIED)):
        yield lambda: TakeoversTable(new_table().name)


@pytest.fixture(params=["real", "in memory"])
def table(request: pytest.FixtureRequest, made: Callable[[], TakeoversTable]) -> Table:
    return made() if request.param == "real" else FakeTakeovers()


def reply(takeover: Takeover, reply_id: str, at_ms: int = NOW) -> Takeover:
    return takeover.after_reply(reply_id, at_ms=at_ms, hold_ms=1_000, now_ms=at_ms)


def test_a_takeover_is_read_as_it_was_saved(table: Table) -> None:
    assert table.read(CHAT) == Takeover()
    takeover = reply(Takeover(), "a")
    assert table.save(CHAT, takeover, now_ms=NOW)
    assert table.read(CHAT) == takeover
    assert table.read(OTHER) == Takeover()


def test_only_one_of_two_requests_that_read_the_same_state_saves(table: Table) -> None:
    for number in range(2):
        before = table.read(CHAT)
        first, second = reply(before, f"a{number}", NOW + number), reply(before, f"b{number}", NOW + number)
        assert table.save(CHAT, first, now_ms=NOW)
        assert not table.save(CHAT, second, now_ms=NOW)
        assert table.read(CHAT) == first


def test_a_resume_ends_the_takeover_and_refuses_a_save_of_before(table: Table) -> None:
    table.save(CHAT, reply(Takeover(), "a"), now_ms=NOW)
    late = reply(table.read(CHAT), "b", NOW + 1)
    table.resume(CHAT, now_ms=NOW + 2)
    resumed = table.read(CHAT)
    assert (resumed.until_ms, resumed.resumed_at_ms, resumed.version) == (0, NOW + 2, 2)
    assert not table.save(CHAT, late, now_ms=NOW)
    again = reply(resumed, "c", NOW + 3)
    assert table.save(CHAT, again, now_ms=NOW)
    assert table.read(CHAT) == again


def test_a_resume_counts_even_if_there_was_no_takeover(table: Table) -> None:
    stale = reply(table.read(CHAT), "a")
    table.resume(CHAT, now_ms=NOW)
    assert not table.save(CHAT, stale, now_ms=NOW)
    assert table.read(CHAT).resumed_at_ms == NOW


def test_a_takeover_is_marked_as_published_only_while_it_is_the_current_one(table: Table) -> None:
    assert not table.mark_published(CHAT, began_at_ms=NOW)
    table.save(CHAT, reply(Takeover(), "a"), now_ms=NOW)
    assert not table.mark_published(CHAT, began_at_ms=NOW - 1)
    assert table.mark_published(CHAT, began_at_ms=NOW)
    assert table.mark_published(CHAT, began_at_ms=NOW), "a repeat does no harm"
    assert table.read(CHAT).is_published
    table.resume(CHAT, now_ms=NOW + 1)
    assert not table.mark_published(CHAT, began_at_ms=NOW)


def test_a_sent_message_is_ours_in_its_conversation_alone(table: Table) -> None:
    table.begin_sending(CHAT, now_ms=NOW, until_ms=NOW + 9)
    assert table.read(CHAT).sending == Interval(NOW, NOW + 9)
    assert not table.was_sent_by_us(CHAT, "m")
    table.end_sending(CHAT, "m", now_ms=NOW + 1)
    assert (table.read(CHAT).sending, table.was_sent_by_us(CHAT, "m")) == (Interval(), True)
    assert not table.was_sent_by_us(CHAT, "n")
    assert not table.was_sent_by_us(OTHER, "m")


def test_a_send_that_was_refused_leaves_no_trace(table: Table) -> None:
    table.begin_sending(CHAT, now_ms=NOW, until_ms=NOW + 9)
    table.end_sending(CHAT, None, now_ms=NOW + 1)
    assert table.read(CHAT) == Takeover()


def test_a_doubtful_send_is_remembered_from_its_beginning(table: Table) -> None:
    table.begin_sending(CHAT, now_ms=NOW, until_ms=NOW + 9)
    table.doubt_sending(CHAT, now_ms=NOW + 5, until_ms=NOW + 6)
    found = table.read(CHAT)
    assert (found.sending, found.unsure) == (Interval(), Interval(NOW, NOW + 6))
    table.doubt_sending(OTHER, now_ms=NOW + 5, until_ms=NOW + 6)
    assert table.read(OTHER).unsure == Interval(NOW + 5, NOW + 6)


def test_a_send_whose_end_was_not_recorded_is_doubted_by_the_next_one(table: Table) -> None:
    table.begin_sending(CHAT, now_ms=NOW, until_ms=NOW + 9)
    table.begin_sending(CHAT, now_ms=NOW + 20, until_ms=NOW + 29)
    found = table.read(CHAT)
    assert (found.sending, found.unsure) == (Interval(NOW + 20, NOW + 29), Interval(NOW, NOW + 9))
    table.end_sending(CHAT, "m", now_ms=NOW + 21)
    assert table.read(CHAT).unsure == Interval(NOW, NOW + 9)


def test_doubtful_sends_that_follow_each_other_are_all_remembered(table: Table) -> None:
    """Send several parts without a response, as happens while the platform is slow."""
    for at_ms in (NOW, NOW + 9_000):
        table.begin_sending(CHAT, now_ms=at_ms, until_ms=at_ms + 9_000)
        table.doubt_sending(CHAT, now_ms=at_ms + 8_000, until_ms=at_ms + 8_000)
    assert table.read(CHAT).unsure == Interval(NOW, NOW + 17_000)
    for at_ms in (NOW + 18_000, NOW + 27_000):
        table.begin_sending(CHAT, now_ms=at_ms, until_ms=at_ms + 9_000)
    assert table.read(CHAT).unsure == Interval(NOW, NOW + 27_000)
    assert table.read(CHAT).sending == Interval(NOW + 27_000, NOW + 36_000)


def test_a_doubtful_send_long_after_another_replaces_it(table: Table) -> None:
    table.doubt_sending(CHAT, now_ms=NOW, until_ms=NOW)
    later = NOW + UNCONFIRMED_SENDS_ARE_ONE_WITHIN_MS
    table.doubt_sending(CHAT, now_ms=later, until_ms=later)
    assert table.read(CHAT).unsure == Interval(later, later)


def test_a_reply_that_is_saved_during_a_send_leaves_the_send_alone(table: Table) -> None:
    before = table.read(CHAT)
    table.begin_sending(CHAT, now_ms=NOW, until_ms=NOW + 9)
    assert table.save(CHAT, reply(before, "a"), now_ms=NOW)
    assert table.read(CHAT).sending == Interval(NOW, NOW + 9)


def test_a_conversation_is_forgotten_and_no_other(table: Table) -> None:
    for name in (CHAT, OTHER):
        table.save(name, reply(Takeover(), "a"), now_ms=NOW)
        table.end_sending(name, "m", now_ms=NOW)
    assert table.count(CHAT) == 2
    assert table.forget(CHAT) == 2
    assert (table.count(CHAT), table.forget(CHAT), table.count(OTHER)) == (0, 0, 2)
    assert table.read(CHAT) == Takeover()
    assert not table.was_sent_by_us(CHAT, "m")


def test_every_item_expires_and_contains_no_message_id(made: Callable[[], TakeoversTable]) -> None:
    table = made()
    table.resume(CHAT, now_ms=NOW)
    table.begin_sending(CHAT, now_ms=NOW, until_ms=NOW)
    table.end_sending(CHAT, "wamid.secret", now_ms=NOW)
    table.save(CHAT, reply(table.read(CHAT), "wamid.secret", NOW + 1), now_ms=NOW)
    table.doubt_sending(OTHER, now_ms=NOW, until_ms=NOW)
    items = aws.client("dynamodb").scan(TableName=table.name)["Items"]
    assert [int(item["expires_at"]["N"]) for item in items] == [(NOW + TAKEOVER_KEPT_MS) // 1_000] * 3
    assert "wamid" not in str(items)
