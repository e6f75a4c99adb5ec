"""The admin function on a stage with a DynamoDB lane, alone or as the fallback."""

import json
from typing import Any

import pytest

from lambdas.admin import conversations as listing
from lambdas.admin.conversations import Conversations
from lambdas.admin.requests import (
    HoldConversation,
    ListConversations,
    OfConversation,
    Request,
    ResumeConversation,
    ShowConversation,
)
from lambdas.operations import SubjectNotFound
from message_buffer.errors import InvalidInput, StoreUnavailable
from message_buffer.events.hand_offs import HandOffs
from message_buffer.lanes.holds import Hold
from message_buffer.lanes.lane import Lane
from message_buffer.limits import DAY_MS
from message_buffer.messages.message import Message, encode
from tests.support.engine import Engine, payload
from tests.support.fakes import FakeBus, FakeFunctions, valkey_lane
from tests.support.takeovers import FakeTakeovers
from tests.support.window import CONVERSATION, RULES, SILENCE_MS, WINDOW_MS, WindowScene


def of(**fields: Any) -> dict[str, Any]:
    return {"by": "operator", "conversation": CONVERSATION, **fields}


class Desk:
    def __init__(self, window: WindowScene, engine: Engine | None) -> None:
        self.functions, self.bus = FakeFunctions(), FakeBus()
        valkey = valkey_lane(engine.store, self.functions) if engine else None
        lanes: list[Lane] = [window.lane, *([valkey] if valkey else [])]
        self.conversations = Conversations(
            valkey,
            self.bus,
            HandOffs(lanes, self.bus, FakeTakeovers(), clock=window.clock),
            dynamodb_lane=window.lane,
            clock=window.clock,
        )


@pytest.fixture
def alone(window: WindowScene) -> Desk:
    return Desk(window, None)


@pytest.fixture
def behind(window: WindowScene, fake: Engine) -> Desk:
    return Desk(window, fake)


def test_the_dynamodb_lane_alone_is_seen_and_led(window: WindowScene, alone: Desk) -> None:
    with pytest.raises(SubjectNotFound):
        alone.conversations.flush(OfConversation(**of()))
    window.send("m1")
    assert alone.conversations.status(Request(by="operator"))["windows"] == {
        "open": 1, "nextDueAt": window.clock() + SILENCE_MS, "overdueMs": 0,
    }  # fmt: skip
    seen = alone.conversations.show(ShowConversation(**of(messages=True)))
    assert (seen["state"], seen["count"], seen["messages"][0]["id"]) == ("pending", 1, "m1")
    assert alone.conversations.hold(HoldConversation(**of(holdMs=60_000))) == {"heldUntil": window.clock() + 60_000}
    window.pass_time(2 * WINDOW_MS)
    assert window.batches() == []
    assert alone.conversations.resume(ResumeConversation(**of())) == {"dueAt": window.clock()}
    window.run()
    assert window.batches() == [["m1"]]
    window.send("m2")
    told = alone.conversations.cancel(OfConversation(**of()))
    assert (told["dropped"], told["frozen"]) == (1, 0)
    assert json.loads(alone.bus.published[0][1])["lane"] == "dynamodb"
    assert alone.functions.started == []


def test_in_an_outage_of_valkey_an_operators_hold_and_resume_reach_the_other_lane(
    window: WindowScene, behind: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_of: object, **_more: object) -> None:
        raise StoreUnavailable("hold_buffer: no connection")

    for method in ("hold_buffer", "resume_buffer"):
        monkeypatch.setattr(behind.conversations._valkey_lane, method, unreachable)
    with pytest.raises(StoreUnavailable):
        behind.conversations.hold(HoldConversation(**of(holdMs=60_000)))
    held = Hold("people", window.clock() + 60_000, "operator")
    assert window.lane.peek_conversation(CONVERSATION).holds == (held,)
    with pytest.raises(StoreUnavailable):
        behind.conversations.resume(ResumeConversation(**of()))
    assert window.lane.peek_conversation(CONVERSATION).holds == ()


def test_open_windows_are_listed_after_the_shards(
    window: WindowScene, fake: Engine, alone: Desk, behind: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = ListConversations(by="operator")
    assert alone.conversations.list(everything) == {"conversations": [], "next": None, "more": False}
    window.send("m1")
    row = {
        "conversation": CONVERSATION, "lane": "dynamodb", "shard": None, "state": "pending", "count": 1, "frozen": 0,
        "reason": "silence", "rule": "silenceMs", "appliedWaitMs": SILENCE_MS, "dueAt": window.clock() + SILENCE_MS,
    }  # fmt: skip
    assert alone.conversations.list(everything) == {"conversations": [row], "next": None, "more": False}
    assert alone.conversations.list(ListConversations(by="operator", tenant="nobody"))["conversations"] == []
    fake.store.buffer_message(CONVERSATION, "m2", payload=payload("m2"), timing=RULES.timing)
    lanes = [row["lane"] for row in behind.conversations.list(everything)["conversations"]]
    assert lanes == ["valkey", "dynamodb"], "one conversation may wait in both lanes"
    first = behind.conversations.list(ListConversations(by="operator", limit=1))
    assert ([row["lane"] for row in first["conversations"]], first["more"]) == (["valkey"], True)
    then = behind.conversations.list(ListConversations(by="operator", limit=1, cursor=first["next"]))
    assert then == {"conversations": [row], "next": None, "more": False}
    monkeypatch.setattr(listing, "MAX_WINDOWS_IN_A_LISTING", 1)
    assert behind.conversations.list(everything)["more"], "windows that were not looked at are not called listed"
    with pytest.raises(InvalidInput, match="no earlier call returned '0/open:0'"):
        alone.conversations.list(ListConversations(by="operator", cursor="0/open:0"))


def test_behind_the_valkey_lane_it_is_led_along(window: WindowScene, fake: Engine, behind: Desk) -> None:
    fake.store.buffer_message(CONVERSATION, "m1", payload=payload("m1"), timing=RULES.timing)
    assert "dynamodb" not in behind.conversations.show(ShowConversation(**of()))
    window.send("m2")
    seen = behind.conversations.show(ShowConversation(**of()))
    assert (seen["count"], seen["dynamodb"]["count"]) == (1, 1)
    assert behind.conversations.flush(OfConversation(**of()))["count"] == 2
    window.run()
    assert window.batches() == [["m2"]]
    window.send("m3")
    assert behind.conversations.cancel(OfConversation(**of()))["dropped"] == 2
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m2"]]


def test_the_reply_window_of_a_window_begins_with_its_last_message_even_after_its_batch(
    window: WindowScene, alone: Desk
) -> None:
    name = "default/whatsapp/555/491"
    message = Message(id="m1", platform="whatsapp", received_at=window.clock())
    window.lane.buffer_message(name, "m1", payload=encode(message), timing=RULES.timing)
    shown = ShowConversation(**of() | {"conversation": name})
    waiting = alone.conversations.show(shown)
    window.pass_time(WINDOW_MS)
    emitted = alone.conversations.show(shown)
    assert (waiting["state"], emitted["state"]) == ("pending", "idle")
    assert waiting["replyUntil"] == emitted["replyUntil"] == message.received_at + DAY_MS


def test_a_hold_holds_both_lanes(window: WindowScene, fake: Engine, behind: Desk) -> None:
    window.send("m1")
    behind.conversations.hold(HoldConversation(**of(holdMs=60_000)))
    window.pass_time(2 * WINDOW_MS)
    assert window.batches() == []
    behind.conversations.resume(ResumeConversation(**of()))
    window.run()
    assert window.batches() == [["m1"]]
    with pytest.raises(SubjectNotFound):
        behind.conversations.resume(ResumeConversation(**of()))
