"""The function that consumers may invoke has three operations, and reads no message for them."""

import json
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.forgetting import Forgetting
from lambdas.admin.handler import operations_of as operators_operations_of
from lambdas.admin.rules import RulesAdmin
from lambdas.gate import handler
from lambdas.gate.service import Gate, operations_of
from lambdas.operations import MAX_ID_CHARACTERS, Operations
from lambdas.responder.batch import read_batch
from lambdas.responder.gate import BufferClient
from message_buffer.aws.dynamodb import Table
from message_buffer.aws.functions import Functions
from message_buffer.errors import StoreUnavailable
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb import quotas
from message_buffer.limits import MAX_HOLD_MS
from tests.support.engine import Engine
from tests.support.fakes import FakeBus, RecordedTelemetry, valkey_lane
from tests.support.takeovers import FakeTakeovers
from tests.support.window import CONVERSATION, WINDOW_MS, WindowScene

HOLD_MS = 60_000
OF_OPERATORS = {
    *operators_operations_of(
        Conversations(None, FakeBus(), FakeTakeovers()),
        RulesAdmin.__new__(RulesAdmin),
        DeadLetters.__new__(DeadLetters),
        forgetting=Forgetting.__new__(Forgetting),
        telemetry=RecordedTelemetry(),
    )
}
CONTEXT = SimpleNamespace(aws_request_id="r-1")


class Function(Functions):
    """The function `gate`, called in this process."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.telemetry = RecordedTelemetry()
        self._operations = Operations(operations_of(gate), self.telemetry)

    def ask(self, operation: str, **fields: object) -> Json:
        event = {"operation": operation, "by": "me", "conversation": CONVERSATION, **fields}
        return self._operations.answer(event, request_id="r-1")

    def call(self, function: str, payload: Mapping[str, object], *, response_seconds: float) -> Json:
        return self._operations.answer(payload, request_id="r-1")


def unreachable(*_of: object, **_more: object) -> None:
    raise StoreUnavailable("hold_buffer: no connection")


@pytest.fixture
def both(window: WindowScene, fake: Engine) -> Function:
    return Function(Gate(valkey_lane(fake.store), dynamodb_lane=window.lane))


@pytest.mark.parametrize("operation", sorted(OF_OPERATORS - {"conversation.hold", "conversation.resume"}))
def test_a_consumer_may_not_do_what_an_operator_may(
    fake: Engine, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the responder invoked the admin function, which reads words and rewrites rules."""
    fake.send(CONVERSATION, "m1", "my secret")
    telemetry = RecordedTelemetry()
    operations = Operations(operations_of(Gate(valkey_lane(fake.store))), telemetry)
    monkeypatch.setattr(handler, "_parts", lambda: (operations, telemetry))
    fields = {"by": "responder", "conversation": CONVERSATION, "messages": True, "scope": "stage", "rules": {}}
    answer = handler.handler({"operation": operation, **fields}, CONTEXT)
    assert answer["error"]["code"] == "invalid"
    assert answer["error"]["message"].endswith("valid: conversation.hold, conversation.resume, gate.")


def test_the_gate_asks_the_lane_that_the_batch_came_from(both: Function, window: WindowScene, fake: Engine) -> None:
    for n in range(3):
        fake.send(CONVERSATION, f"m{n}")
    window.send("m9")
    assert both.ask("gate", generation=2)["result"]["newer"]
    assert not both.ask("gate", generation=3)["result"]["newer"]
    assert not both.ask("gate", generation=1, lane="dynamodb")["result"]["newer"]
    window.send("m10")
    assert both.ask("gate", generation=1, lane="dynamodb")["result"]["newer"]


def test_a_consumer_is_told_who_holds_and_ends_its_own_hold_in_both_lanes_and_nobody_elses(
    both: Function, window: WindowScene, fake: Engine
) -> None:
    lanes = (fake.store, window.lane)
    window.clock.now_ms = now_ms = fake.clock.now_ms
    for lane in lanes:
        lane.hold_buffer(CONVERSATION, holder="people", cause="answer", hold_ms=HOLD_MS)
    people = {"holder": "people", "cause": "answer", "until": now_ms + HOLD_MS}
    consumers = {"holder": "consumers", "cause": "me", "until": now_ms + 2 * HOLD_MS}
    assert both.ask("conversation.hold", holdMs=2 * HOLD_MS)["result"] == {"heldUntil": now_ms + 2 * HOLD_MS}
    for name in ("valkey", "dynamodb"):
        assert both.ask("gate", generation=1, lane=name)["result"]["holds"] == [people, consumers]
    for by in ("you", "answer"):
        assert both.ask("conversation.resume", by=by)["result"] == {"heldUntil": now_ms + 2 * HOLD_MS}
    for _ in range(2):
        assert both.ask("conversation.resume")["result"] == {"heldUntil": now_ms + HOLD_MS}
        assert [lane.peek_conversation(CONVERSATION).held_until_ms for lane in lanes] == [now_ms + HOLD_MS] * 2
    for lane in lanes:
        lane.resume_buffer(CONVERSATION)
    assert both.ask("conversation.resume")["result"] == {"heldUntil": None}


@pytest.mark.parametrize("hold_ms", [HOLD_MS, None])
def test_a_consumer_is_told_of_a_hand_off_and_cannot_end_it(
    both: Function, window: WindowScene, fake: Engine, hold_ms: int | None
) -> None:
    window.clock.now_ms = now_ms = fake.clock.now_ms
    for lane in (fake.store, window.lane):
        lane.hold_buffer(CONVERSATION, holder="handoff", cause="answer", hold_ms=hold_ms)
    mark = {"holder": "handoff", "cause": "answer", "until": hold_ms and now_ms + hold_ms}
    for fields in ({}, {"generation": 1}, {"generation": 1, "lane": "dynamodb"}):
        assert both.ask("gate", **fields)["result"]["holds"] == [mark]
    assert both.ask("conversation.hold", holdMs=HOLD_MS, by="answer")["result"] == {"heldUntil": now_ms + HOLD_MS}
    assert both.ask("conversation.resume", by="answer")["result"] == {"heldUntil": None}
    assert both.ask("gate")["result"]["holds"] == [mark]


def test_a_consumers_name_may_be_any_text(both: Function) -> None:
    for by in ("half a \ud83d pair", "line\nend", "people:x", "0 1"):
        assert both.ask("conversation.hold", by=by, holdMs=HOLD_MS)["ok"]
        (hold,) = both.ask("gate", generation=1)["result"]["holds"]
        assert hold["cause"] == by.encode("utf-8", "backslashreplace").decode()
        assert both.ask("conversation.resume", by=by)["result"] == {"heldUntil": None}


@pytest.mark.parametrize("operation", ["conversation.hold", "conversation.resume"])
def test_in_an_outage_of_valkey_the_other_lane_obeys_and_the_consumer_asks_again(
    window: WindowScene, fake: Engine, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey = valkey_lane(fake.store)
    function = Function(Gate(valkey, dynamodb_lane=window.lane))
    fields = {"holdMs": HOLD_MS} if operation == "conversation.hold" else {}
    if not fields:
        function.ask("conversation.hold", holdMs=HOLD_MS)
    for method in ("hold_buffer", "resume_buffer"):
        monkeypatch.setattr(valkey, method, unreachable)
    monkeypatch.setattr(valkey, "generation_and_holds", unreachable)
    assert function.ask(operation, **fields)["error"]["code"] == "unavailable"
    assert bool(function.ask("gate")["result"]["holds"]) == bool(fields), "who asks for holds alone needs no Valkey"
    assert bool(window.lane.peek_conversation(CONVERSATION).holds) == bool(fields)


@pytest.mark.parametrize(
    ("operation", "fields", "message"),
    [
        ("gate", {"generation": 0}, "generation: must be a whole number, 1 or more."),
        ("gate", {"generation": 1, "lane": "fast"}, "there is no such lane; valid: valkey, dynamodb"),
        (
            "gate",
            {"conversation": "c" * (MAX_ID_CHARACTERS + 1)},
            "conversation: must be a text of 1 to 1100 characters.",
        ),
        ("conversation.resume", {"holdMs": 1}, "holdMs is unknown here; valid: by, conversation."),
        ("conversation.hold", {"holdMs": MAX_HOLD_MS + 1}, "holdMs: must be a whole number, from 1 to 86400000."),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_a_sentence(
    both: Function, operation: str, fields: Json, message: str
) -> None:
    assert both.ask(operation, **fields)["error"] == {"code": "invalid", "message": message}


def test_the_gate_reads_no_message_of_the_dynamodb_lane(window: WindowScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function has no permission to query the table, in which the messages are beside their window."""
    window.send("m1")
    monkeypatch.setattr(Table, "_each_page", None)
    alone = Function(Gate(None, dynamodb_lane=window.lane))
    assert alone.ask("gate", generation=1, lane="dynamodb")["result"] == {"current": 1, "newer": False, "holds": []}
    assert alone.ask("conversation.hold", holdMs=HOLD_MS)["ok"]
    assert alone.ask("conversation.resume")["ok"]


@pytest.mark.parametrize("only_in", ["valkey", "dynamodb"])
@pytest.mark.parametrize("fields", [{}, {"generation": 1}, {"generation": 1, "lane": "dynamodb"}])
def test_a_hold_that_a_resume_at_the_same_time_left_in_one_lane_is_told(
    both: Function, window: WindowScene, fake: Engine, only_in: str, fields: Json
) -> None:
    lane = fake.store if only_in == "valkey" else window.lane
    lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=HOLD_MS)
    (hold,) = both.ask("gate", **fields)["result"]["holds"]
    assert (hold["holder"], hold["cause"]) == ("people", "operator")


def test_a_hold_that_is_refused_stays_in_no_lane(both: Function, fake: Engine) -> None:
    fake.store.settings = fake.store.settings._replace(max_held=1)
    assert both.ask("conversation.hold", conversation="default/generic/shop/ben", holdMs=HOLD_MS)["ok"]
    assert not both.ask("conversation.hold", holdMs=HOLD_MS)["ok"]
    assert both.ask("gate")["result"] == {"holds": []}


def test_the_bound_of_the_table_bounds_the_holds_of_a_stage_with_both_lanes(
    both: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_CONSUMERS_HOLDS_IN_AN_HOUR", 1)
    answers = []
    for _ in range(2):
        answers.append(both.ask("conversation.hold", holdMs=HOLD_MS)["ok"])
        both.ask("conversation.resume")
    assert answers == [True, False]


@pytest.mark.parametrize("has_valkey", [True, False])
def test_the_responder_sees_the_window_that_its_batch_came_from(
    window: WindowScene, fake: Engine, has_valkey: bool
) -> None:
    gate = Gate(valkey_lane(fake.store) if has_valkey else None, dynamodb_lane=window.lane)
    buffer = BufferClient(Function(gate), "gate", by="responder")
    window.send("m1")
    window.pass_time(WINDOW_MS)
    (detail,) = window.events()
    body = {"detail-type": "messages.batch.ready", "detail": detail}
    batch = read_batch(json.dumps(body), window.objects)
    assert buffer.newest_generation(batch) == (batch.generation, None)
    window.send("m2")
    assert buffer.newest_generation(batch)[0] > batch.generation
    assert buffer.current_hold(batch) is None
    gate.hold({"conversation": CONVERSATION, "by": "another", "holdMs": HOLD_MS})
    hold = buffer.current_hold(batch)
    assert hold
    assert (hold.holder, hold.cause) == ("consumers", "another")
    window.pass_time(2 * WINDOW_MS)
    assert window.batches() == [["m1"]]
    window.pass_time(HOLD_MS)
    assert window.batches() == [["m1"], ["m2"]]
    window.lane.hold_buffer(CONVERSATION, holder="handoff", cause="answer", hold_ms=None)
    assert buffer.current_hold(batch) == ("handoff", "answer", None)
