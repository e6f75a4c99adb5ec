"""Rules change while the stage runs: every instance uses the new ones within ten seconds."""

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bufferctl.events import Event, Subscription, subscribe
from message_buffer.aws import clients as aws
from message_buffer.rules.rules_table import RulesTable
from tests.support.local_stage import SILENCE_MS, WARM_PROCESSES, LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.buffer.cancelled.json").read_text())
LIVE_SECONDS = 10
CHANGED_MS = 3_100
# Longer than cold starts on a busy machine, which a wait that is measured from outside contains.
LONG_MS = 30_000


@pytest.fixture
def table(stage: LocalStage, monkeypatch: pytest.MonkeyPatch) -> RulesTable:
    client = stage.outputs.client("dynamodb")
    monkeypatch.setattr(aws, "_made", lambda *_: client)
    return RulesTable(stage.outputs.RulesTableName)


@pytest.fixture
def scope(table: RulesTable) -> Iterator[str]:
    """Yield the scope of a tenant that no other test uses; its rules are deleted at the end."""
    scope = f"tenant:t-{uuid.uuid4().hex}"
    yield scope
    table.delete(scope, by="test", at_ms=0, expected_version=None)


def put(table: RulesTable, scope: str, rules: dict[str, Any], *, expected_version: int | None = None) -> int:
    at_ms = time.time_ns() // 1_000_000
    return table.put(scope, rules, by="test", at_ms=at_ms, expected_version=expected_version)


def say(stage: LocalStage, scope: str, conversation: str, text: str = "Hey") -> dict[str, Any]:
    body = {
        "account": "shop", "conversation": conversation, "id": uuid.uuid4().hex, "text": text,
        "tenant": scope.removeprefix("tenant:"),
    }  # fmt: skip
    answer = stage.webhooks.post("generic", body)
    assert answer.status == 200
    return dict(answer.json)


def waits_ms(stage: LocalStage, scope: str) -> int:
    before_ms = time.time_ns() // 1_000_000
    ((_, state),) = say(stage, scope, uuid.uuid4().hex)["conversations"].items()
    return int(state["dueAt"]) - before_ms


def test_a_change_is_seen_by_every_running_instance_within_ten_seconds(
    stage: LocalStage, table: RulesTable, scope: str
) -> None:
    with ThreadPoolExecutor(WARM_PROCESSES) as pool:

        def all_wait() -> list[int]:
            return list(pool.map(lambda _: waits_ms(stage, scope), range(WARM_PROCESSES)))

        assert max(all_wait()) < LONG_MS
        put(table, scope, {"silenceMs": LONG_MS, "maxWaitMs": 2 * LONG_MS})
        changed_at = time.monotonic()
        while (left := changed_at + LIVE_SECONDS - time.monotonic()) > 0:
            all_wait()
            time.sleep(min(1.0, left))
        assert min(all_wait()) >= LONG_MS


def received(subscription: Subscription, enough: int, *, seconds: int) -> list[Event]:
    """Return the events that arrive within `seconds`, and return earlier if there are enough."""
    events: list[Event] = []
    deadline = time.monotonic() + seconds
    while len(events) < enough and time.monotonic() < deadline:
        events += [arrival.event for arrival in subscription.poll(wait_seconds=1)]
    return events


def test_a_rule_of_the_bus_selects_the_events_of_an_agent(stage: LocalStage) -> None:
    """Receive one agent's batches and amendments only, as a consumer that serves one agent does."""
    agent = f"agent-{uuid.uuid4().hex}"
    pattern = {"source": ["message-buffer"], "detail": {"agent": [agent]}}
    with subscribe(stage.outputs.client, stage.outputs.EventBusName, pattern=pattern, prefix="test") as subscription:
        for conversation, serving in (("mine", agent), ("another's", f"{agent}-2"), ("nobody's", None)):
            body = {"account": agent, "conversation": conversation, "id": f"{agent}-{conversation}", "text": "Hey"}
            named = {} if serving is None else {"agent": serving}
            assert stage.webhooks.post("generic", body | named).status == 200
        edit = {"account": agent, "conversation": "mine", "id": "of-yesterday", "text": "Ho", "edited": True}
        assert stage.webhooks.post("generic", edit | {"agent": agent}).status == 200
        events = received(subscription, 2, seconds=30) + received(subscription, 3, seconds=3)
    assert {event["detail-type"] for event in events} == {"messages.batch.ready", "messages.amended"}
    assert {event["detail"]["conversationId"] for event in events} == {f"default/generic/{agent}/mine"}
    assert {event["detail"]["agent"] for event in events} == {agent}
    batch = next(event["detail"] for event in events if event["detail-type"] == "messages.batch.ready")
    assert batch["version"] == 1
    assert batch["bufferedAt"] >= batch["metadata"]["firstMessageAt"] + SILENCE_MS


@pytest.mark.case(23)
def test_a_stop_word_drops_waiting_messages_and_that_is_published(
    stage: LocalStage, table: RulesTable, scope: str
) -> None:
    put(table, scope, {"stopWords": ["stop"], "silenceMs": CHANGED_MS})
    pattern = {"detail-type": ["messages.buffer.cancelled"]}
    with subscribe(stage.outputs.client, stage.outputs.EventBusName, pattern=pattern, prefix="test") as subscription:
        event, conversations, deadline = None, [], time.monotonic() + 2 * LIVE_SECONDS
        while event is None:
            assert time.monotonic() < deadline, "no instance uses the rules"
            conversations.append(f"{scope.removeprefix('tenant:')}/generic/shop/{uuid.uuid4().hex}")
            say(stage, scope, conversations[-1].rpartition("/")[2])
            say(stage, scope, conversations[-1].rpartition("/")[2], "Stop!")
            event = next(iter(received(subscription, 1, seconds=1)), None)
    jsonschema.Draft4Validator(SCHEMA).validate(event["detail"])
    stopped = event["detail"]["conversationId"]
    assert stopped in conversations
    assert event["detail"]["dropped"] == 1
    stage.wait_until_settled(stopped)
    assert not [each for each in stage.inbox.arrivals if each.batch["conversationId"] == stopped]
