"""The DynamoDB lane's table: pages, sizes, expired rows, and writes that the service leaves undone."""

import json
from typing import Any

import pytest

from message_buffer.lanes.dynamodb.items import MAX_NAME_BYTES
from message_buffer.lanes.dynamodb.window import FrozenBatch
from message_buffer.limits import MAX_MESSAGES_IN_A_BATCH
from message_buffer.rules.due_time import Due
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.window import (
    CONVERSATION,
    SILENCE_MS,
    WINDOW_MS,
    WindowScene,
    due,
    lock,
    settle,
)


class Unprocessed:
    """DynamoDB makes one of several writes and returns the others as unprocessed."""

    def __init__(self, window: WindowScene, monkeypatch: pytest.MonkeyPatch, *, answers: int) -> None:
        self.answers = answers
        client = window.table.client._client
        write = client.batch_write_item

        def batch_write_item(*, RequestItems: dict[str, list[Any]]) -> dict[str, Any]:  # noqa: N803 - the service's
            ((name, requests),) = RequestItems.items()
            if not self.answers or len(requests) < 2:
                return dict(write(RequestItems=RequestItems))
            self.answers -= 1
            write(RequestItems={name: requests[:1]})
            return {"UnprocessedItems": {name: requests[1:] + requests[:1]}}

        monkeypatch.setattr(client, "batch_write_item", batch_write_item)
        monkeypatch.setattr("message_buffer.lanes.dynamodb.messages.time.sleep", lambda _: None)


def test_more_than_a_megabyte_of_stored_messages_is_read_page_by_page(window: WindowScene) -> None:
    names = [f"m{n:03}" for n in range(400)]
    for name in names:
        window.send(name, rules=Rules(silence_ms=SILENCE_MS, max_messages=1_000), text="x" * 3_900)
    window.pass_time(WINDOW_MS)
    assert window.wire.made.count("query") > 1
    (event,) = window.events()
    content = json.loads(window.objects.kept[event["messagesRef"]["key"]])
    assert [message["id"] for message in content["messages"]] == names


def test_the_longest_names_of_the_largest_batch_fit_into_an_item(window: WindowScene) -> None:
    window.send("m1")
    window.clock.advance(WINDOW_MS)
    now_ms = window.clock()
    lock(window, "me", until_ms=now_ms + 1)
    names = tuple(f"{n:04}" + "x" * (MAX_NAME_BYTES - 4) for n in range(MAX_MESSAGES_IN_A_BATCH))
    frozen = FrozenBatch("w-1", names, 1, now_ms, now_ms, Due(now_ms, "silence", "silenceMs", 0), has_more=False)
    seen = window.table.windows.read(CONVERSATION)
    assert window.table.windows.freeze(CONVERSATION, "me", frozen, window=seen, now_ms=window.clock())
    assert window.table.windows.read(CONVERSATION).frozen == frozen


def test_a_row_of_a_closed_window_that_is_removed_takes_nothing_along(window: WindowScene) -> None:
    due(window, "m1")
    window.run()
    (row,) = [item for item in window.table.client.scan(TableName="holding")["Items"] if item["item"]["S"] == "!"]
    assert "expires_at" in row
    window.table.client.delete_item(TableName="holding", Key={name: row[name] for name in ("conversation", "item")})
    window.send("m2")
    settle(window)
    assert window.batches() == [["m1"], ["m2"]]


def test_what_the_service_leaves_unprocessed_is_marked_as_emitted_by_asking_again(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_undone = Unprocessed(window, monkeypatch, answers=3)
    due(window, "m1", "m2", "m3")
    window.run()
    assert left_undone.answers == 0
    assert window.batches() == [["m1", "m2", "m3"]]
    assert window.is_idle()


def test_what_stays_unprocessed_is_marked_by_the_retry_and_not_emitted_again(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    Unprocessed(window, monkeypatch, answers=6)
    due(window, "m1", "m2", "m3")
    window.run()
    assert not window.is_idle()
    settle(window)
    assert len(window.events()) == 1
    assert window.telemetry.counts["Retries"] == 1
