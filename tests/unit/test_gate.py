"""The function that consumers may invoke has two of admin's operations, and reads no message for them."""

from types import SimpleNamespace

import pytest

from lambdas.admin.conversations import Conversations
from lambdas.admin.dead_letters import DeadLetters
from lambdas.admin.forgetting import Forgetting
from lambdas.admin.gate import handler
from lambdas.admin.gate.service import Gate
from lambdas.admin.rules import RulesAdmin
from lambdas.admin.service import Admin, gate_operations_of, operations_of
from tests.support.engine import Engine
from tests.support.fakes import FakeBus, RecordedTelemetry, valkey_lane
from tests.support.takeovers import FakeTakeovers
from tests.support.window import CONVERSATION, WindowScene

HOLD_MS = 60_000
OPERATIONS = {
    *operations_of(
        Conversations(None, FakeBus(), FakeTakeovers()),
        RulesAdmin.__new__(RulesAdmin),
        DeadLetters.__new__(DeadLetters),
        forgetting=Forgetting.__new__(Forgetting),
        telemetry=RecordedTelemetry(),
    )
}
CONTEXT = SimpleNamespace(aws_request_id="r-1")


@pytest.mark.parametrize("operation", sorted(OPERATIONS - {"gate", "conversation.hold"}))
def test_a_consumer_may_not_do_what_an_operator_may(
    fake: Engine, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the responder invoked the admin function, which reads words and rewrites rules."""
    fake.send(CONVERSATION, "m1", "my secret")
    telemetry = RecordedTelemetry()
    admin = Admin(gate_operations_of(Gate(valkey_lane(fake.store), clock=fake.clock)), telemetry)
    monkeypatch.setattr(handler, "_parts", lambda: (admin, telemetry))
    fields = {"by": "responder", "conversation": CONVERSATION, "messages": True, "scope": "stage", "rules": {}}
    answer = handler.handler({"operation": operation, **fields}, CONTEXT)
    assert answer["error"]["code"] == "invalid"
    assert answer["error"]["message"].endswith("valid: conversation.hold, gate.")


def test_a_consumer_asks_and_holds_and_is_told_with_its_request(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.send(CONVERSATION, "m1")
    telemetry = RecordedTelemetry()
    admin = Admin(gate_operations_of(Gate(valkey_lane(fake.store), clock=fake.clock)), telemetry)
    monkeypatch.setattr(handler, "_parts", lambda: (admin, telemetry))
    of = {"by": "responder", "conversation": CONVERSATION}
    asked = handler.handler({"operation": "gate", "generation": 1, **of}, CONTEXT)
    assert asked == {"ok": True, "result": {"current": 1, "newer": False}}
    held = handler.handler({"operation": "conversation.hold", "holdMs": HOLD_MS, **of}, CONTEXT)
    assert held == {"ok": True, "result": {"heldUntil": fake.clock.now_ms + HOLD_MS}}
    lines = telemetry.said("operator")
    assert [(line["operation"], line["requestId"]) for line in lines] == [("gate", "r-1"), ("conversation.hold", "r-1")]


@pytest.mark.parametrize("lane", ["dynamodb", "window"])
def test_the_gate_asks_the_lane_of_the_batch_also_by_its_old_name(window: WindowScene, fake: Engine, lane: str) -> None:
    fake.send(CONVERSATION, "m1")
    fake.send(CONVERSATION, "m2")
    window.send("m3")
    gate = Gate(valkey_lane(fake.store), dynamodb_lane=window.lane, clock=fake.clock)
    admin = Admin(gate_operations_of(gate), RecordedTelemetry())
    asked = {"operation": "gate", "by": "me", "conversation": CONVERSATION, "generation": 1}
    assert admin.answer(asked | {"lane": lane}, request_id="r-1")["result"] == {"current": 1, "newer": False}
    assert admin.answer(asked, request_id="r-2")["result"] == {"current": 2, "newer": True}
    refused = admin.answer(asked | {"lane": "fast"}, request_id="r-3")
    assert refused["error"]["message"] == "lane: there is no such lane; valid: valkey, dynamodb."


def test_the_gate_reads_no_message_of_the_dynamodb_lane(window: WindowScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function has no permission to query the table, in which the messages are beside their window."""
    window.send("m1")
    monkeypatch.setattr(window.table, "_pages", None)
    gate = Gate(None, dynamodb_lane=window.lane)
    admin, of = Admin(gate_operations_of(gate), RecordedTelemetry()), {"by": "me", "conversation": CONVERSATION}
    asked = admin.answer({"operation": "gate", "generation": 1, "lane": "dynamodb", **of}, request_id="r-1")
    assert asked["result"] == {"current": 1, "newer": False}
    assert admin.answer({"operation": "conversation.hold", "holdMs": HOLD_MS, **of}, request_id="r-2")["ok"]
