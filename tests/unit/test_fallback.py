"""Ingest's lane where there is a fallback: Valkey as long as it answers, and the DynamoDB lane while it does not."""

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from message_buffer.errors import ScriptInvariantBroken, SendFailed, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.circuit_breaker import MIN_BREAKER_PAUSE_MS
from message_buffer.messages.conversation_id import TRIAL_OF_FALLBACK
from message_buffer.rules.quota import Charge, Quota
from tests.support.engine import accepted, payload
from tests.support.two_lanes import RULES, TwoLanes
from tests.support.window import CONVERSATION, make_message_table
from tests.support.window import failing as failing_request

FLUSH = RULES.timing._replace(flush_reason="flush")


@pytest.fixture
def lanes(database: Any) -> TwoLanes:
    make_message_table(database)
    return TwoLanes()


def send(lanes: TwoLanes, message_id: str, *, text: str | None = None) -> o.MessageBuffered | o.MessageDuplicate:
    wire = payload(message_id, text)
    return accepted(lanes.ingesters[0].buffer_message(CONVERSATION, message_id, payload=wire, timing=RULES.timing))


def held(lanes: TwoLanes) -> list[str]:
    return [each.name for each in lanes.scene.table.messages.read(CONVERSATION).stored]


def waiting(lanes: TwoLanes) -> int:
    return lanes.engine.store.peek_conversation(CONVERSATION).count


def go_by(lanes: TwoLanes) -> None:
    """Until the next call may be a probe."""
    lanes.clock.advance(MIN_BREAKER_PAUSE_MS)


# -- which lane --------------------------------------------------------------------------------------------------------


def test_as_long_as_valkey_answers_the_table_is_not_asked(lanes: TwoLanes) -> None:
    send(lanes, "m1")
    assert waiting(lanes) == 1
    assert set(lanes.scene.wire.made) == {"valkey"}


@pytest.mark.promise("P10")
def test_without_valkey_messages_are_held(lanes: TwoLanes) -> None:
    lanes.cut("ingest", "swallowed")
    taken = send(lanes, "m1")
    assert isinstance(taken, o.MessageBuffered)
    assert taken.due_at_ms == lanes.clock() + RULES.silence_ms
    assert not taken.start_id
    assert (held(lanes), waiting(lanes)) == (["m1"], 0)


def test_a_trial_of_the_fallback_uses_it_while_valkey_is_well_and_is_not_counted(lanes: TwoLanes) -> None:
    conversation = f"{TRIAL_OF_FALLBACK}a-trial"
    lanes.ingesters[0].buffer_message(conversation, "m1", payload=payload("m1"), timing=RULES.timing)
    assert [each.name for each in lanes.scene.table.messages.read(conversation).stored] == ["m1"]
    assert "FallbackMessages" not in lanes.scene.telemetry.counts


@pytest.mark.parametrize(
    "error",
    [
        NoAnswer("Timeout reading from socket"),
        ConnectionRefusedError("refused"),
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        ResponseError("ERR request throttled"),
        AuthenticationError("invalid username-password pair"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_passes_again_opens_the_fallback(
    lanes: TwoLanes, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis.exceptions import ConnectionError as LostConnection  # noqa: PLC0415 - the name is Python's own too

    failing(lanes, LostConnection("refused") if isinstance(error, ConnectionRefusedError) else error, monkeypatch)
    send(lanes, "m1")
    assert held(lanes) == ["m1"]
    counts = lanes.scene.telemetry.counts
    assert (counts["StoreFailures"], counts["FallbackMessages"]) == (1, 1)
    assert lanes.scene.telemetry.said("the DynamoDB lane stands in")


def test_a_bug_in_a_script_does_not(lanes: TwoLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(lanes, ResponseError("user_script:3: attempt to index a nil value"), monkeypatch)
    with pytest.raises(ScriptInvariantBroken):
        send(lanes, "m1")
    assert held(lanes) == []


def failing(lanes: TwoLanes, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(lanes.server, "execute_command", fail)


def test_one_webhook_waits_for_valkey_once(lanes: TwoLanes, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fail(*_: Any) -> None:
        tries.append(1)
        raise NoAnswer

    monkeypatch.setattr(lanes.server, "execute_command", fail)
    for number in range(20):
        send(lanes, f"m{number}")
        lanes.clock.advance(40)
    assert len(tries) == 1
    assert len(held(lanes)) == 20
    assert len(lanes.scene.telemetry.said("the DynamoDB lane stands in")) == 1


def test_one_read_finds_out_that_valkey_is_back(lanes: TwoLanes) -> None:
    lanes.cut("ingest", "swallowed")
    send(lanes, "m1")
    lanes.mend("ingest")
    send(lanes, "m2")
    assert (held(lanes), waiting(lanes)) == (["m1", "m2"], 0)
    go_by(lanes)
    send(lanes, "m3")
    send(lanes, "m4")
    assert (held(lanes), waiting(lanes)) == (["m1", "m2"], 2)


def test_a_probe_that_fails_is_no_news(lanes: TwoLanes) -> None:
    lanes.cut("ingest", "swallowed")
    for number in range(3):
        send(lanes, f"m{number}")
        lanes.clock.advance(10_000)
    counts = lanes.scene.telemetry.counts
    assert (counts["StoreFailures"], counts["FallbackMessages"]) == (3, 3)
    assert len(lanes.scene.telemetry.said("the DynamoDB lane stands in")) == 1


def test_without_valkey_and_the_table_the_platform_is_to_send_it_again(lanes: TwoLanes) -> None:
    lanes.cut("ingest", "swallowed")

    def fail() -> None:
        raise SendFailed("put item: ThrottlingException")

    with lanes.scene.wire.at("put_item", fail), pytest.raises(SendFailed):
        send(lanes, "m1")
    assert isinstance(send(lanes, "m1"), o.MessageBuffered)


# -- what people and operators do besides -----------------------------------------------------------------------------

Call = Callable[[TwoLanes], Any]


def edit(lanes: TwoLanes, message_id: str = "m1") -> Any:
    return lanes.ingesters[0].edit_message(CONVERSATION, message_id, payload=payload(message_id, "edited"))


def delete(lanes: TwoLanes, message_id: str = "m1") -> Any:
    return lanes.ingesters[0].delete_message(CONVERSATION, message_id)


def find(lanes: TwoLanes, message_id: str = "m1") -> Any:
    return lanes.ingesters[0].find_message(CONVERSATION, message_id)


def stop(lanes: TwoLanes) -> Any:
    return lanes.ingesters[0].cancel_buffer(CONVERSATION, cancel_id="stop-1")


def flush(lanes: TwoLanes) -> Any:
    return lanes.ingesters[0].retime_buffer(CONVERSATION, timing=FLUSH)


def typing(lanes: TwoLanes) -> Any:
    return lanes.ingesters[0].extend_wait(CONVERSATION, extend_ms=3_000, max_wait_ms=8_000)


def test_where_the_dynamodb_lane_never_was_the_valkey_lane_alone_answers(lanes: TwoLanes) -> None:
    send(lanes, "m1")
    assert edit(lanes) == o.MessageEdited(is_newest=True)
    assert find(lanes) == o.MessageWaiting()
    assert isinstance(typing(lanes), o.BufferExtended)
    assert isinstance(flush(lanes), o.BufferRetimed)
    assert delete(lanes) == o.MessageDeleted()
    assert isinstance(stop(lanes), o.BufferCancelled)
    assert set(lanes.scene.wire.made) == {"valkey", "get_item"}


@pytest.mark.parametrize("back", [False, True], ids=["in the outage", "after it"])
def test_a_stored_message_is_edited_found_and_deleted(lanes: TwoLanes, *, back: bool) -> None:
    lanes.cut("ingest", "swallowed")
    send(lanes, "m1")
    if back:
        lanes.mend("ingest")
        go_by(lanes)
    assert isinstance(edit(lanes), o.MessageEdited)
    assert b"edited" in lanes.scene.lane.peek_conversation(CONVERSATION, limit=1).payloads[0]
    assert find(lanes) == o.MessageWaiting(lane="dynamodb")
    assert isinstance(delete(lanes), o.MessageDeleted)
    assert held(lanes) == []
    assert find(lanes) == o.MessageAbsent(known=True, batch_id=None, lane="dynamodb")


def test_a_message_in_both_lanes_is_edited_and_deleted_in_both(lanes: TwoLanes) -> None:
    lanes.cut("ingest", "unanswered")
    send(lanes, "m1")
    lanes.mend("ingest")
    go_by(lanes)
    assert (held(lanes), waiting(lanes)) == (["m1"], 1)
    edit(lanes)
    assert b"edited" in lanes.scene.lane.peek_conversation(CONVERSATION, limit=1).payloads[0]
    assert b"edited" in lanes.engine.store.peek_conversation(CONVERSATION, limit=1).payloads[0]
    assert isinstance(delete(lanes), o.MessageDeleted)
    assert (held(lanes), waiting(lanes)) == ([], 0)


@pytest.mark.parametrize("change", [edit, delete])
def test_a_change_to_what_only_the_valkey_lane_may_have_comes_again_after_the_outage(
    lanes: TwoLanes, change: Call
) -> None:
    send(lanes, "m1")
    lanes.cut("ingest", "swallowed")
    with pytest.raises(StoreUnavailable):
        change(lanes)
    assert find(lanes) == o.MessageAbsent(known=False, batch_id=None, lane="dynamodb"), "a reaction does without"
    lanes.mend("ingest")
    go_by(lanes)
    assert isinstance(change(lanes), (o.MessageEdited, o.MessageDeleted))


def test_a_stop_drops_what_both_lanes_have(lanes: TwoLanes) -> None:
    send(lanes, "m1")
    lanes.cut("ingest", "swallowed")
    send(lanes, "m2")
    lanes.mend("ingest")
    go_by(lanes)
    stopped = stop(lanes)
    assert (stopped.buffered, stopped.frozen, stopped.leaving) == (2, 0, False)
    assert (held(lanes), waiting(lanes)) == ([], 0)


def test_a_stop_in_an_outage_drops_nothing_and_its_repeat_drops_and_counts_all(lanes: TwoLanes) -> None:
    send(lanes, "m1")
    lanes.cut("ingest", "swallowed")
    send(lanes, "m2")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            stop(lanes)
    assert (held(lanes), waiting(lanes)) == (["m2"], 1)
    lanes.mend("ingest")
    go_by(lanes)
    assert stop(lanes).buffered == 2
    assert (held(lanes), waiting(lanes)) == ([], 0)
    assert isinstance(stop(lanes), o.AlreadyCancelled)


@pytest.mark.parametrize("request_of_stop", ["get_item", "update_item", "query", "batch_write_item"])
def test_a_stop_that_fails_in_the_table_is_to_come_again_and_then_drops_what_is_there(
    lanes: TwoLanes, request_of_stop: str
) -> None:
    send(lanes, "m1")
    lanes.cut("ingest", "swallowed")
    send(lanes, "m2")
    lanes.mend("ingest")
    go_by(lanes)
    with lanes.scene.wire.at(request_of_stop, failing_request()), pytest.raises(SendFailed):
        stop(lanes)
    valkey_is_cancelled = request_of_stop != "get_item"
    assert waiting(lanes) == (0 if valkey_is_cancelled else 1)
    again = stop(lanes)
    assert (held(lanes), waiting(lanes)) == ([], 0)
    # The first call knew what Valkey dropped, so the sum is not known any more.
    assert isinstance(again, o.AlreadyCancelled if valkey_is_cancelled else o.BufferCancelled)


def test_a_hold_and_a_resume_concern_both_lanes(lanes: TwoLanes) -> None:
    held = lanes.ingesters[0].hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=60_000)
    stores = (lanes.engine.store, lanes.scene.lane)
    assert [each.peek_conversation(CONVERSATION).held_until_ms for each in stores] == [held.held_until_ms] * 2
    assert isinstance(lanes.ingesters[0].resume_buffer(CONVERSATION), o.HoldEnded)
    assert [each.peek_conversation(CONVERSATION).held_until_ms for each in stores] == [None, None]
    assert isinstance(lanes.ingesters[0].resume_buffer(CONVERSATION), o.NotOnHold)


def test_a_hold_in_an_outage_is_to_come_again(lanes: TwoLanes) -> None:
    lanes.cut("ingest", "swallowed")
    with pytest.raises(StoreUnavailable, match="hold: "):
        lanes.ingesters[0].hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=60_000)
    assert lanes.scene.lane.peek_conversation(CONVERSATION).held_until_ms == lanes.clock() + 60_000
    with pytest.raises(StoreUnavailable, match="resume: "):
        lanes.ingesters[0].resume_buffer(CONVERSATION)
    lanes.mend("ingest")
    go_by(lanes)
    lanes.ingesters[0].hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=60_000)
    assert lanes.engine.store.peek_conversation(CONVERSATION).held_until_ms == lanes.clock() + 60_000


# -- quotas ------------------------------------------------------------------------------------------------------------


def test_an_outage_of_valkey_lifts_no_quota(lanes: TwoLanes) -> None:
    charge = Charge((("generic/shop", Quota(messages_per_minute=5, conversations_per_minute=5)),))

    def ask(*, others: int) -> o.Charged | o.MessageRefused:
        return lanes.ingesters[0].charge(CONVERSATION, charge, messages=5 - others, others=others)

    assert isinstance(ask(others=5), o.Charged)
    assert isinstance(ask(others=5), o.MessageRefused)
    assert isinstance(ask(others=0), o.Charged), "Valkey charges each message when it is buffered"
    lanes.cut("ingest", "swallowed")
    assert isinstance(ask(others=5), o.Charged)
    assert isinstance(ask(others=0), o.MessageRefused)


def test_a_reply_is_noted_in_the_lane_that_knows_the_conversation(lanes: TwoLanes) -> None:
    ingest = lanes.ingesters[0]
    dynamodb = lanes.scene.table.windows

    def note() -> int:
        return lanes.clock.advance(1) if ingest.note_reply(CONVERSATION, at_ms=lanes.clock()) else 0

    assert not note(), "no lane knows it"
    lanes.deliver(0)
    lanes.wait(10_000)
    lanes.execute()
    assert note()
    assert not dynamodb.read(CONVERSATION).replied_at_ms
    lanes.cut("ingest", "swallowed")
    lanes.deliver(0)
    lanes.let_windows_end()
    at_ms = lanes.clock()
    assert note()
    assert dynamodb.read(CONVERSATION).replied_at_ms == at_ms
