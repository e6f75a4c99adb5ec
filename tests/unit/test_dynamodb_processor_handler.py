"""The triggers of one delivery are processed side by side, and each ends by itself."""

import json
from contextlib import suppress
from itertools import product
from threading import Barrier, Event, get_ident
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from lambdas.dynamodb_processor import handler as dynamodb_processor
from lambdas.dynamodb_processor import service
from message_buffer.errors import SendFailed
from message_buffer.lanes.dynamodb.triggers import SWEEP
from message_buffer.limits import LARGE_MESSAGE_BYTES, WINDOW_GRACE_MS
from tests.support.window import MAX_ATTEMPTS, WINDOW_MS, Killed, WindowScene, settle

CONTEXT = SimpleNamespace(get_remaining_time_in_millis=lambda: 30_000)
# Enough for all windows to get to the same step, and short enough for a failing test.
GATE_SECONDS = 5.0
# A thread that does not wait for its turn takes less than this.
MOMENT_SECONDS = 0.1
CONVERSATIONS = [f"default/generic/shop/c{n}" for n in range(10)]


@pytest.fixture
def scene(window: WindowScene, monkeypatch: pytest.MonkeyPatch) -> WindowScene:
    monkeypatch.setattr(dynamodb_processor, "_parts", lambda: (window.processor, None, window.telemetry))
    return window


def deliver(scene: WindowScene) -> list[str]:
    """Invoke the handler with all triggers that the queue delivers now. Return the conversations of those that stay."""
    given = {}
    while trigger := scene.triggers.receive():
        given[trigger.receipt] = trigger
    records = [
        {
            "messageId": receipt,
            "body": json.dumps({"conversation_id": each.conversation}),
            "receiptHandle": receipt,
        }
        for receipt, each in given.items()
    ]
    return end(scene, given, records)


def end(scene: WindowScene, given: dict[str, Any], records: list[dict[str, str]]) -> list[str]:
    answer = dynamodb_processor.handler({"Records": records}, CONTEXT)
    assert answer is not None
    failed = {each["itemIdentifier"] for each in answer["batchItemFailures"]}
    for receipt in given.keys() - failed:
        scene.triggers.delete(given[receipt])
    return sorted(given[receipt].conversation for receipt in failed)


def all_due(scene: WindowScene) -> None:
    for name in CONVERSATIONS:
        scene.send("m1", conversation=name)
    scene.clock.advance(WINDOW_MS)


def test_windows_that_are_due_at_once_are_emitted_side_by_side(scene: WindowScene) -> None:
    all_due(scene)
    gate = Barrier(len(CONVERSATIONS), timeout=GATE_SECONDS)

    def wait(request: str) -> None:
        if request == "put_events":
            gate.wait()  # until every window of the delivery is about to be published

    scene.wire.before = wait
    assert deliver(scene) == []
    assert [scene.batches(name) for name in CONVERSATIONS] == [[["m1"]]] * len(CONVERSATIONS)
    assert scene.telemetry.flushes == 1


@pytest.mark.parametrize("error", [SendFailed("put event: Throttling"), KeyError("a bug")], ids=["refused", "bug"])
@pytest.mark.parametrize("request_name", ["get_item", "put_events"])
def test_one_window_that_fails_is_delivered_again_and_the_others_are_done(
    scene: WindowScene, monkeypatch: pytest.MonkeyPatch, error: Exception, request_name: str
) -> None:
    all_due(scene)
    failing = CONVERSATIONS[3]
    read, send = scene.processor._windows.read, scene.processor._emission.send

    def fail(of: Any, name: str) -> Any:
        def call(conversation: str, *others: Any) -> Any:
            if request_name == name and conversation == failing:
                raise error
            return of(conversation, *others)

        return call

    with monkeypatch.context() as broken:
        broken.setattr(scene.processor._windows, "read", fail(read, "get_item"))
        broken.setattr(scene.processor._emission, "send", fail(send, "put_events"))
        assert deliver(scene) == [failing]
    assert {event["conversationId"] for event in scene.events()} == set(CONVERSATIONS) - {failing}
    settle(scene)
    assert scene.batches(failing) == [["m1"]]


def test_a_window_that_kills_its_function_uses_up_one_attempt_of_each_other_at_most(scene: WindowScene) -> None:
    all_due(scene)
    killer, died, publish = CONVERSATIONS[3], Event(), scene.bus.publish

    def kill(detail_type: str, detail: str) -> None:
        conversation = json.loads(detail)["conversationId"]
        if conversation == killer:
            died.set()
        # A window that is emitted at the same time dies with the function.
        if died.wait(MOMENT_SECONDS):
            raise Killed
        publish(detail_type, detail)

    with patch.object(scene.bus, "publish", kill):
        for run in range(MAX_ATTEMPTS + 1):
            died.clear()
            with suppress(Killed):
                deliver(scene)
            attempts = [scene.table.windows.read(name).attempt for name in CONVERSATIONS if name != killer]
            assert max(attempts) <= 1
            # The others wait at most until the third run. Their triggers, and the killer's, may always come together.
            assert run < 2 or {event["conversationId"] for event in scene.events()} == set(CONVERSATIONS) - {killer}
            scene.clock.advance(100_000)
    assert [json.loads(body)["conversationId"] for body in scene.letters.bodies] == [killer]


@pytest.mark.parametrize(("messages", "bytes_of_one"), [(1, LARGE_MESSAGE_BYTES), (4, 3_000)])
def test_of_the_large_windows_one_at_a_time_is_in_the_functions_memory(
    scene: WindowScene, monkeypatch: pytest.MonkeyPatch, messages: int, bytes_of_one: int
) -> None:
    monkeypatch.setattr(service, "LARGE_WINDOW_BYTES", 10_000)
    for name, number in product(CONVERSATIONS[:3], range(messages)):
        scene.send(f"m{number}", conversation=name, text="x" * bytes_of_one)
    scene.clock.advance(WINDOW_MS)
    read, held = set[int](), set[int]()
    another = Event()

    def take(request: str) -> None:
        if request == "update_item" and get_ident() in read:
            held.add(get_ident())  # it has the bodies, and is about to freeze them
        elif request == "put_events":
            another.wait(MOMENT_SECONDS)
        if len(held) > 1:
            another.set()

    def leave(request: str) -> None:
        if request == "query":
            read.add(get_ident())
        elif request == "put_events":
            read.discard(get_ident())
            held.discard(get_ident())

    scene.wire.before, scene.wire.after = take, leave
    assert deliver(scene) == []
    assert not another.is_set()


def test_a_sweep_that_fails_leaves_the_windows_of_its_delivery_alone(
    scene: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.send("m1")
    scene.clock.advance(WINDOW_MS)

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(scene.processor, "sweep", fail)
    trigger = scene.triggers.receive()
    assert trigger
    records = [
        {"messageId": "sweep", "body": json.dumps(SWEEP), "receiptHandle": "r"},
        {
            "messageId": trigger.receipt,
            "body": json.dumps({"conversation_id": trigger.conversation}),
            "receiptHandle": trigger.receipt,
        },
    ]
    assert end(scene, {trigger.receipt: trigger}, records) == []
    assert scene.batches() == [["m1"]]


def test_a_large_window_whose_turn_comes_too_late_is_put_back(
    scene: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LARGE_WINDOW_BYTES", 10_000)
    for name, number in product(CONVERSATIONS[:3], range(4)):
        scene.send(f"m{number}", conversation=name, text="x" * 3_000)
    scene.clock.advance(WINDOW_MS)
    left_ms = 30_000

    def publish(request: str) -> None:
        nonlocal left_ms
        if request == "put_events":
            Event().wait(MOMENT_SECONDS)  # until the other windows wait for their turn
            left_ms = 5_000

    scene.wire.after = publish
    monkeypatch.setattr(CONTEXT, "get_remaining_time_in_millis", lambda: left_ms)
    assert len(deliver(scene)) == 2
    frozen = [scene.table.windows.read(name).frozen for name in CONVERSATIONS[:3]]
    assert frozen == [None] * 3, "a window was worked on with too little time"


def test_a_sweep_ends_before_its_run_is_killed(scene: WindowScene, monkeypatch: pytest.MonkeyPatch) -> None:
    all_due(scene)
    scene.triggers.waiting.clear()
    scene.clock.advance(WINDOW_GRACE_MS + 1)
    left_ms = 30_000

    def run_out(request: str) -> None:
        nonlocal left_ms
        if request == "send_message" and len(scene.triggers.waiting) == 2:
            left_ms = 5_000

    scene.wire.after = run_out
    monkeypatch.setattr(CONTEXT, "get_remaining_time_in_millis", lambda: left_ms)
    assert end(scene, {}, [{"messageId": "sweep", "body": json.dumps(SWEEP), "receiptHandle": "r"}]) == []
    assert len(scene.triggers.waiting) == 2
