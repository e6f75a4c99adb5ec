"""The function that consumers may invoke has few operations, and reads no message for them."""

import json
from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.forgetting import Forgetting
from lambdas.admin.handler import operations_of as operators_operations_of
from lambdas.admin.rules import RulesAdmin
from lambdas.admin.tuning import Tuning
from lambdas.gate import handler
from lambdas.gate.service import Gate, operations_of
from lambdas.operations import MAX_ID_CHARACTERS, Operations
from lambdas.responder.batch import read_batch
from lambdas.responder.gate import DELIVER, DISCARD_AND_MERGE, MAX_REASON_CHARACTERS, BufferClient, check_gate
from message_buffer.aws.dynamodb import Table
from message_buffer.aws.functions import Functions
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.events.hand_offs import HandOffs
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb import quotas
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import HOUR_MS, MAX_HOLD_MS
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.takeovers import takeovers_table
from tests.support.engine import Engine
from tests.support.fakes import FakeBus, RecordedTelemetry, valkey_lane
from tests.support.takeovers import FakeTakeovers
from tests.support.window import CONVERSATION, WINDOW_MS, WindowScene

HOLD_MS = 60_000
NEEDS_AN_END = "This stage has no queue handoff, so a hand-off is a hold, and needs an end within 24 h."
OF_OPERATORS = {
    *operators_operations_of(
        Conversations(None, FakeBus(), HandOffs.__new__(HandOffs)),
        RulesAdmin.__new__(RulesAdmin),
        DeadLetters.__new__(DeadLetters),
        forgetting=Forgetting.__new__(Forgetting),
        tuning=Tuning.__new__(Tuning),
        idle_pass=lambda _request: {},
        telemetry=RecordedTelemetry(),
    )
}
OF_BOTH = {f"conversation.{verb}" for verb in ("hold", "resume", "handoff", "complete")}
BEGIN_AND_END = {"handed_off": "at", "handed_back": "handedOffAt"}
CONTEXT = SimpleNamespace(aws_request_id="r-1")


def gate_of(
    valkey: ValkeyLane | None, *, dynamodb_lane: DynamoDbLane | None = None, clock: Clock = system_clock
) -> Gate:
    return Gate(valkey, FakeBus(), FakeTakeovers(), dynamodb_lane=dynamodb_lane, clock=clock)


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
    return Function(gate_of(valkey_lane(fake.store), dynamodb_lane=window.lane))


@pytest.mark.parametrize("operation", sorted(OF_OPERATORS - OF_BOTH))
def test_a_consumer_may_not_do_what_an_operator_may(
    fake: Engine, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the responder invoked the admin function, which reads words and rewrites rules."""
    fake.send(CONVERSATION, "m1", "my secret")
    telemetry = RecordedTelemetry()
    operations = Operations(operations_of(gate_of(valkey_lane(fake.store))), telemetry)
    monkeypatch.setattr(handler, "_parts", lambda: (operations, telemetry))
    fields = {"by": "responder", "conversation": CONVERSATION, "messages": True, "scope": "stage", "rules": {}}
    answer = handler.handler({"operation": operation, **fields}, CONTEXT)
    assert answer["error"]["code"] == "invalid"
    assert answer["error"]["message"].endswith(
        "valid: conversation.hold, conversation.resume, conversation.handoff, conversation.handback, "
        "conversation.complete, gate."
    )


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
def test_a_consumer_is_told_of_a_hand_off_and_its_resume_does_not_end_it(
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


def test_a_consumer_that_may_reply_has_its_replys_time_noted_in_the_lane_of_its_batch(
    both: Function, window: WindowScene, fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    for name, lane in (("valkey", ValkeyLane), ("dynamodb", DynamoDbLane)):
        monkeypatch.setattr(lane, "note_reply", lambda *_, name=name, **__: noted.append(name))
    fake.send(CONVERSATION, "m1")
    window.send("m2")
    both.ask("gate", generation=1)
    both.ask("conversation.hold", holdMs=HOLD_MS)
    both.ask("gate", generation=1, sending=True)
    both.ask("conversation.resume")
    assert noted == [], "a question before the agent is asked, and one about a conversation on hold"
    both.ask("gate", generation=1, sending=True)
    both.ask("gate", generation=1, lane="dynamodb", sending=True)
    both.ask("gate", lane="dynamodb", sending=True)
    assert noted == ["valkey", "dynamodb", "dynamodb"]
    monkeypatch.setattr(ValkeyLane, "note_reply", unreachable)
    assert both.ask("gate", generation=1, sending=True)["result"] == {"current": 1, "newer": False, "holds": []}
    fake.send(CONVERSATION, "m3")
    assert both.ask("gate", generation=1, sending=True)["result"]["newer"]
    assert noted == ["valkey", "dynamodb", "dynamodb"]


@pytest.mark.parametrize("policy", [DELIVER, DISCARD_AND_MERGE])
def test_the_responders_reply_is_noted_when_it_sends_and_not_when_it_asks_its_assistant(
    both: Function, fake: Engine, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    monkeypatch.setattr(ValkeyLane, "note_reply", lambda _self, name, **_: noted.append(name))
    fake.send(CONVERSATION, "m1")
    batch: Any = SimpleNamespace(conversation=parse_conversation_id(CONVERSATION), generation=1, lane="valkey")
    ask = partial(check_gate, BufferClient(both, "gate", by="responder"), policy, batch, parts_sent=0)
    ask(has_waited=False, sending=False)
    assert noted == []
    ask(has_waited=False)
    ask(has_waited=True)
    assert noted == [CONVERSATION] * 2


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
    function = Function(gate_of(valkey, dynamodb_lane=window.lane))
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
        ("conversation.handoff", {}, NEEDS_AN_END),
        ("conversation.handoff", {"holdMs": MAX_HOLD_MS + 1}, NEEDS_AN_END),
        (
            "conversation.handoff",
            {"holdMs": 1, "reason": "x" * 1_001},
            "reason: must be a text of 1 to 1000 characters.",
        ),
        ("conversation.handback", {"reason": ""}, "reason: must be a text of 1 to 1000 characters."),
        ("conversation.complete", {"at": 9_999_999_999_999}, "at: must be a whole number, from 1 to {now}."),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_a_sentence(
    window: WindowScene, fake: Engine, operation: str, fields: Json, message: str
) -> None:
    both = Function(gate_of(valkey_lane(fake.store), dynamodb_lane=window.lane, clock=fake.clock))
    message = message.format(now=fake.clock.now_ms)
    assert both.ask(operation, **fields)["error"] == {"code": "invalid", "message": message}


# -- handing off, handing back, completing -----------------------------------------------------------


class HandOffScene:
    """A gate on both lanes, whose clocks show the same time, and which publishes to a recorded bus."""

    def __init__(self, window: WindowScene, engine: Engine, *, has_queue: bool) -> None:
        window.clock.now_ms = engine.clock.now_ms
        self.has_queue = has_queue
        self.clock, self.bus, self.lanes = engine.clock, FakeBus(), (engine.store, window.lane)
        self.valkey, self.window_lane, self.takeovers = valkey_lane(engine.store), window.lane, FakeTakeovers()
        gate = Gate(
            self.valkey, self.bus, self.takeovers, dynamodb_lane=window.lane, has_queue=has_queue, clock=engine.clock
        )
        self.function = Function(gate)

    def result(self, verb: str, **fields: object) -> Json:
        answer = self.function.ask(f"conversation.{verb}", **fields)
        assert answer["ok"], answer
        result: Json = answer["result"]
        return result

    def holds(self) -> list[Json]:
        holds: list[Json] = self.function.ask("gate")["result"]["holds"]
        return holds

    def events(self, verb: str) -> list[Json]:
        name = f"messages.conversation.{verb}"
        schema = json.loads((Path(__file__).parents[2] / f"docs/schema/{name}.json").read_text())
        found = [json.loads(detail) for detail_type, detail in self.bus.published if detail_type == name]
        for each in found:
            jsonschema.Draft4Validator(schema).validate(each)
        return found


@pytest.fixture(params=[True, False], ids=["with a queue", "without"])
def scene(window: WindowScene, fake: Engine, request: pytest.FixtureRequest) -> HandOffScene:
    return HandOffScene(window, fake, has_queue=request.param)


def test_a_hand_off_keeps_agents_silent_until_it_is_handed_back_and_both_are_published(scene: HandOffScene) -> None:
    now_ms = scene.clock.now_ms
    done = scene.result("handoff", holdMs=HOLD_MS, reason="She asked for a person.")
    assert done == {"handedOffUntil": now_ms + HOLD_MS}
    mark = {"holder": "handoff", "cause": "me", "until": now_ms + HOLD_MS}
    hold = {"holder": "people", "cause": "handoff", "until": now_ms + HOLD_MS}
    assert scene.holds() == [mark if scene.has_queue else hold]
    (event,) = scene.events("handed_off")
    shared = {"version": 1, "conversationId": CONVERSATION, "tenant": "default", "cause": "me", "by": "me"}
    shared |= {"metadata": {"platform": "generic"}}
    assert event == shared | {
        "reason": "She asked for a person.", "messageId": None, "at": now_ms, "until": now_ms + HOLD_MS,
    }  # fmt: skip
    scene.clock.now_ms += 5
    assert scene.result("handback", by="desk", reason="Solved.") == {"heldUntil": None}
    assert scene.holds() == []
    (event,) = scene.events("handed_back")
    assert event == shared | {
        "cause": "desk", "by": "desk", "reason": "Solved.", "handedOffAt": now_ms, "at": now_ms + 5,
    }  # fmt: skip
    assert scene.result("handback") == {"heldUntil": None}
    assert len(scene.events("handed_back")) == 1, "nothing was handed off any more"


def test_a_hand_off_begun_twice_is_one_and_lasts_until_the_later_end(scene: HandOffScene) -> None:
    now_ms = scene.clock.now_ms
    assert scene.result("handoff", holdMs=2 * HOLD_MS, reason="first")["handedOffUntil"] == now_ms + 2 * HOLD_MS
    assert scene.result("handoff", holdMs=HOLD_MS, reason="again")["handedOffUntil"] == now_ms + 2 * HOLD_MS
    assert [each["reason"] for each in scene.events("handed_off")] == ["first"]
    scene.result("handback")
    scene.clock.now_ms += 1
    scene.result("handoff", holdMs=HOLD_MS)
    assert [each["at"] for each in scene.events("handed_off")] == [now_ms, now_ms + 1]


@pytest.mark.parametrize(
    ("verb", "failing", "told"),
    [
        ("handoff", each, 2 if each == "mark_published" else 1)
        for each in ("read", "save", "lane", "bus", "mark_published")
    ]
    + [("handback", each, 2 if each == "save" else 1) for each in ("read", "save", "lane", "bus")],
)
def test_whatever_fails_the_caller_tries_again_and_a_repeated_event_can_be_told(
    scene: HandOffScene, verb: str, failing: str, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: Json = {"holdMs": HOLD_MS} if verb == "handoff" else {}
    if verb == "handback":
        scene.result("handoff", holdMs=HOLD_MS)
    began_ms = scene.clock.now_ms
    match failing:
        case "bus":
            scene.bus.failures = [SendFailed("put event: ThrottlingException")]
        case "lane":
            monkeypatch.setattr(scene.valkey, "hold_buffer" if verb == "handoff" else "resume_buffer", unreachable)
        case _:
            scene.takeovers.failures = [failing]
    assert scene.function.ask(f"conversation.{verb}", **fields)["error"]["code"] == "unavailable"
    monkeypatch.undo()
    scene.clock.now_ms += 5 if failing not in ("read", "save") or verb == "handback" else 0
    for _ in range(2):
        scene.result(verb, **fields)
    assert bool(scene.holds()) == (verb == "handoff")
    events = scene.events({"handoff": "handed_off", "handback": "handed_back"}[verb])
    assert len(events) == told, "published at least once, and seldom more often"
    assert {each["at" if verb == "handoff" else "handedOffAt"] for each in events} == {began_ms}


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("number", range(10))
def test_a_hand_off_that_begins_during_a_hand_back_is_ended_with_it_or_keeps_agents_silent(
    scene: HandOffScene, number: int, was_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if was_on:
        scene.result("handoff", holdMs=HOLD_MS)
    calls = count()

    def before_each_call(owner: object, name: str) -> None:
        make = getattr(owner, name)

        def stepped(*of: object, **more: object) -> object:
            if next(calls) == number:
                scene.clock.now_ms += 1
                scene.result("handoff", holdMs=HOLD_MS)
            return make(*of, **more)

        monkeypatch.setattr(owner, name, stepped)

    for lane in (scene.valkey, scene.window_lane):
        before_each_call(lane, "resume_buffer")
    before_each_call(scene.takeovers, "_called")
    before_each_call(scene.bus, "publish")
    scene.result("handback", by="desk")
    begun, ended = ({each[at] for each in scene.events(verb)} for verb, at in BEGIN_AND_END.items())
    is_on = scene.takeovers.states[CONVERSATION].is_on(scene.clock.now_ms)
    assert (bool(scene.holds()), len(begun - ended)) == (is_on, is_on)


def test_a_hand_back_ends_no_other_hold(scene: HandOffScene) -> None:
    now_ms = scene.clock.now_ms
    scene.result("handoff", holdMs=HOLD_MS)
    scene.result("hold", holdMs=2 * HOLD_MS)
    assert scene.result("handback", by="desk") == {"heldUntil": now_ms + 2 * HOLD_MS}
    for lane in scene.lanes:
        lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=3 * HOLD_MS)
    assert scene.result("handback", by="desk") == {"heldUntil": now_ms + 3 * HOLD_MS}


def test_with_a_queue_a_hand_off_may_have_no_limit(window: WindowScene, fake: Engine) -> None:
    scene = HandOffScene(window, fake, has_queue=True)
    assert scene.result("handoff") == {"handedOffUntil": None}
    assert scene.result("handoff", holdMs=30 * MAX_HOLD_MS) == {"handedOffUntil": None}
    assert scene.holds() == [{"holder": "handoff", "cause": "me", "until": None}]
    assert [each["until"] for each in scene.events("handed_off")] == [None]


def test_consumers_cannot_fill_the_cache_with_hand_offs(
    window: WindowScene, fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeovers_table, "MAX_CONSUMERS_HAND_OFFS_IN_AN_HOUR", 1)
    scene = HandOffScene(window, fake, has_queue=True)
    scene.result("handoff", conversation="default/generic/shop/ben")
    assert scene.function.ask("conversation.handoff")["error"]["code"] == "unavailable"
    assert (scene.holds(), len(scene.events("handed_off"))) == ([], 1)
    fake.clock.now_ms += HOUR_MS
    scene.result("handoff")


def test_the_responders_tools_are_operations_of_the_gate(scene: HandOffScene) -> None:
    buffer, conversation = BufferClient(scene.function, "gate", by="responder"), parse_conversation_id(CONVERSATION)
    buffer.call("conversation.complete", conversation, at=scene.clock.now_ms, summary="asked")
    buffer.call("conversation.handoff", conversation, holdMs=MAX_HOLD_MS, reason="x" * MAX_REASON_CHARACTERS)
    assert [each["summary"] for each in scene.events("completed")] == ["asked"]
    assert [each["until"] for each in scene.events("handed_off")] == [scene.clock.now_ms + MAX_HOLD_MS]


def test_a_completed_task_is_published_with_its_end_and_its_summary(window: WindowScene, fake: Engine) -> None:
    scene, now_ms = HandOffScene(window, fake, has_queue=False), fake.clock.now_ms
    assert scene.result("complete", summary="Sold a bicycle.") == {"at": now_ms}
    assert scene.result("complete", at=now_ms - 9) == {"at": now_ms - 9}
    first, second = scene.events("completed")
    assert first == {
        "version": 1, "conversationId": CONVERSATION, "tenant": "default", "cause": "me", "by": "me",
        "summary": "Sold a bicycle.", "at": now_ms, "metadata": {"platform": "generic"},
    }  # fmt: skip
    assert (second["summary"], second["at"]) == (None, now_ms - 9)


def test_the_gate_reads_no_message_of_the_dynamodb_lane(window: WindowScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function has no permission to query the table, in which the messages are beside their window."""
    window.send("m1")
    monkeypatch.setattr(Table, "_each_page", None)
    alone = Function(gate_of(None, dynamodb_lane=window.lane))
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
    gate = gate_of(valkey_lane(fake.store) if has_valkey else None, dynamodb_lane=window.lane)
    ask = partial(check_gate, BufferClient(Function(gate), "gate", by="responder"), DISCARD_AND_MERGE)
    window.send("m1")
    window.pass_time(WINDOW_MS)
    (detail,) = window.events()
    body = {"detail-type": "messages.batch.ready", "detail": detail}
    batch = read_batch(json.dumps(body), window.objects)
    assert ask(batch, parts_sent=0, has_waited=False) == (None, False)
    window.send("m2")
    assert ask(batch, parts_sent=0, has_waited=False) == (None, True)
    assert ask(batch, parts_sent=0, has_waited=True) == (None, False)
    gate.hold({"conversation": CONVERSATION, "by": "another", "holdMs": HOLD_MS})
    hold = ask(batch, parts_sent=0, has_waited=True).hold
    assert hold
    assert (hold["holder"], hold["cause"]) == ("consumers", "another")
    window.pass_time(2 * WINDOW_MS)
    assert window.batches() == [["m1"]]
    window.pass_time(HOLD_MS)
    assert window.batches() == [["m1"], ["m2"]]
    window.lane.hold_buffer(CONVERSATION, holder="handoff", cause="answer", hold_ms=None)
    hold = ask(batch, parts_sent=0, has_waited=True).hold
    assert hold == {"holder": "handoff", "cause": "answer", "until": None}
