"""The table of takeovers, on DynamoDB's table and on the one in memory, which other tests use."""

from typing import Any

import pytest

from lambdas.ingest.progress import ProgressTable
from message_buffer.limits import DAY_MS, HOUR_MS
from message_buffer.takeovers import takeovers_table
from message_buffer.takeovers.takeover import Takeover
from message_buffer.takeovers.takeovers_table import TAKEOVER_KEPT_MS, TakeoversTable
from tests.support.table_service import empty
from tests.support.takeovers import FakeTakeovers

NAME = "takeovers"
NOW = 1_700_000_000_000
CHAT, OTHER = "default/whatsapp/555/491", "default/whatsapp/555/492"
Table = TakeoversTable | FakeTakeovers


@pytest.fixture
def real(database: Any) -> TakeoversTable:
    if NAME not in database.list_tables()["TableNames"]:
        database.create_table(
            TableName=NAME,
            KeySchema=[{"AttributeName": "conversation", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "conversation", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
    empty(database, NAME)
    return TakeoversTable(NAME)


@pytest.fixture(params=["real", "in memory"])
def table(request: pytest.FixtureRequest, real: TakeoversTable) -> Table:
    return real if request.param == "real" else FakeTakeovers()


def reply(takeover: Takeover, reply_id: str, at_ms: int = NOW) -> Takeover:
    return takeover.after_reply(reply_id, at_ms=at_ms, hold_ms=1_000, now_ms=at_ms)


def hand_back(table: Table, now_ms: int) -> None:
    assert table.save(CHAT, table.read(CHAT).after_hand_back(now_ms), now_ms=now_ms)


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
    hand_back(table, NOW + 2)
    resumed = table.read(CHAT)
    assert (resumed.until_ms, resumed.resumed_at_ms, resumed.version) == (0, NOW + 2, 2)
    assert not table.save(CHAT, late, now_ms=NOW)
    again = reply(resumed, "c", NOW + 3)
    assert table.save(CHAT, again, now_ms=NOW)
    assert table.read(CHAT) == again


def test_a_resume_counts_even_if_there_was_no_takeover(table: Table) -> None:
    stale = reply(table.read(CHAT), "a")
    hand_back(table, NOW)
    assert not table.save(CHAT, stale, now_ms=NOW)
    assert table.read(CHAT).resumed_at_ms == NOW


def test_a_takeover_is_marked_as_published_only_while_it_is_the_current_one(table: Table) -> None:
    assert not table.mark_published(CHAT, began_at_ms=NOW)
    table.save(CHAT, reply(Takeover(), "a"), now_ms=NOW)
    assert not table.mark_published(CHAT, began_at_ms=NOW - 1)
    assert table.mark_published(CHAT, began_at_ms=NOW)
    assert table.mark_published(CHAT, began_at_ms=NOW), "a repeat does no harm"
    assert table.read(CHAT).is_published
    hand_back(table, NOW + 1)
    assert not table.mark_published(CHAT, began_at_ms=NOW)


def test_consumers_begin_a_bounded_number_of_hand_offs_in_an_hour(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeovers_table, "MAX_CONSUMERS_HAND_OFFS_IN_AN_HOUR", 2)
    hour = NOW // HOUR_MS * HOUR_MS
    assert [table.count_hand_off(hour + ms) for ms in (0, 1, HOUR_MS - 1, HOUR_MS)] == [True, True, False, True]


def test_a_conversation_is_forgotten_and_no_other(table: Table) -> None:
    for name in (CHAT, OTHER):
        table.save(name, reply(Takeover(), "a"), now_ms=NOW)
    assert (table.count(CHAT), table.forget(CHAT)) == (1, 1)
    assert (table.count(CHAT), table.forget(CHAT), table.count(OTHER)) == (0, 0, 1)
    assert table.read(CHAT) == Takeover()


def test_every_item_expires_and_contains_no_message_id(database: Any, real: TakeoversTable) -> None:
    real.save(CHAT, reply(Takeover(), "wamid.secret"), now_ms=NOW)
    real.save(OTHER, Takeover().after_hand_back(NOW), now_ms=NOW)
    items = {item["conversation"]["S"]: int(item["expires_at"]["N"]) for item in database.scan(TableName=NAME)["Items"]}
    kept_ms = NOW + TAKEOVER_KEPT_MS
    assert items == {CHAT: (kept_ms + 1_000) // 1_000, OTHER: kept_ms // 1_000}, "counted from the takeover's end"
    assert "wamid" not in str(database.scan(TableName=NAME))


def test_the_progress_of_a_webhook_is_known_for_a_day(real: TakeoversTable) -> None:
    """Ingest keeps it in the same table."""
    table = ProgressTable(NAME)
    assert table.read("digest", now_ms=NOW) == 0
    table.save("digest", 300, now_ms=NOW)
    table.save("digest", 600, now_ms=NOW)
    assert table.read("digest", now_ms=NOW + DAY_MS - 1_000) == 600
    assert table.read("digest", now_ms=NOW + DAY_MS) == table.read("other", now_ms=NOW) == 0
