"""`bufferctl doctor` reports each fault that a test plants in the local stage, until the fault is repaired."""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from bufferctl import diagnoses
from bufferctl.diagnoses import Severity
from bufferctl.doctor import Report, examine
from bufferctl.facts import StageFacts
from bufferctl.stage import LOCAL, find_account
from message_buffer.clock import system_clock
from tests.support.local_stage import LocalStage
from tests.support.webhook_bodies import telegram_message

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("chaos-stage")]

BROKEN, FAILING, ADVICE = Severity
Plant = Callable[[LocalStage, pytest.MonkeyPatch], AbstractContextManager[None]]


def found(report: Report, severity: Severity, what: str) -> bool:
    return any(each.severity is severity and re.search(what, each.what) for each in report.findings)


@contextmanager
def a_broken_secret(stage: LocalStage, _: pytest.MonkeyPatch) -> Iterator[None]:
    secrets, secret_id = stage.outputs.client("secretsmanager"), stage.facts.outputs["WebhookSecretId"]
    before = secrets.get_secret_value(SecretId=secret_id)["SecretString"]
    secrets.put_secret_value(SecretId=secret_id, SecretString="generic: s3cret")
    yield
    secrets.put_secret_value(SecretId=secret_id, SecretString=before)


@contextmanager
def a_dead_letter(stage: LocalStage, _: pytest.MonkeyPatch) -> Iterator[None]:
    sqs, url = stage.outputs.client("sqs"), stage.outputs.DeadLetterQueueUrl
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"batchId": "b", "reason": "planted"}))
    yield
    sqs.purge_queue(QueueUrl=url)


@contextmanager
def an_unreachable_valkey(stage: LocalStage, _: pytest.MonkeyPatch) -> Iterator[None]:
    with stage.configured("watchdog", REDIS_URL="valkey://127.0.0.1:1"):
        stage.invoke("watchdog", wait=True)
        yield
    stage.invoke("watchdog", wait=True)


@contextmanager
def an_overdue_conversation(stage: LocalStage, patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(diagnoses, "MAX_OVERDUE_MS", 500)
    stage.wait_until_idle()
    with (
        stage.configured("ingest", PROCESSOR_FUNCTION_NAME="nobody"),
        stage.configured("watchdog", PROCESSOR_FUNCTION_NAME="nobody"),
    ):
        body = {"account": "doctor", "conversation": uuid.uuid4().hex, "id": "m1", "text": "Hey"}
        (waits,) = stage.webhooks.post("generic", body).json["conversations"].values()
        time.sleep(max(waits["dueAt"] / 1_000 + 1 - time.time(), 0))
        stage.invoke("watchdog", wait=True)
        yield
    with stage.watched(every_seconds=1.0):
        stage.wait_until_settled(f"default/generic/doctor/{body['conversation']}")
    stage.invoke("watchdog", wait=True)


@contextmanager
def an_emitter_without_its_rights(stage: LocalStage, _: pytest.MonkeyPatch) -> Iterator[None]:
    since_ms = system_clock()
    body = {"account": "doctor", "conversation": uuid.uuid4().hex, "id": "m1", "text": "Hey"}
    with stage.denied("conversation_processor", "events:PutEvents"):
        assert stage.webhooks.post("generic", body).status == 200
        deadline = time.monotonic() + 30
        while not any("emit failed" in line for line in stage.log("conversation_processor", since_ms=since_ms)):
            assert time.monotonic() < deadline, "the batch could leave"
            time.sleep(0.2)
        yield
    stage.wait_until_settled(f"default/generic/doctor/{body['conversation']}")


@contextmanager
def refused_webhooks(stage: LocalStage, patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(diagnoses, "MAX_REFUSED_WEBHOOKS", 2)
    for _ in range(3):
        forged = {"X-Telegram-Bot-Api-Secret-Token": "forged"}
        assert stage.webhooks.post("telegram", {"update_id": 1}, headers=forged).status == 401
    yield
    patch.undo()
    assert stage.webhooks.post("telegram", telegram_message(1, "Hey", user=1)).status == 200


FAULTS: dict[str, tuple[Plant, Severity, str]] = {
    "a broken secret": (a_broken_secret, BROKEN, "The secret of the webhooks is no JSON object"),
    "a dead letter": (a_dead_letter, BROKEN, "Dead letters: 1"),
    "an unreachable Valkey": (
        an_unreachable_valkey,
        BROKEN,
        "The watchdog logged `shard not checked` .* and not `shard checked` since: .*",
    ),
    "an overdue conversation": (an_overdue_conversation, BROKEN, "In shard 0 the oldest of 1 waiting .* no processor"),
    "an emitter without its rights": (
        an_emitter_without_its_rights,
        BROKEN,
        "The conversation processor logged `emit failed` .* and not `emitted` since: .*AccessDenied",
    ),
    "refused webhooks": (refused_webhooks, FAILING, "3 webhooks of telegram were answered 401"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_doctor_names_a_planted_fault_and_not_when_it_is_repaired(
    name: str, stage: LocalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, severity, what = FAULTS[name]
    with plant(stage, monkeypatch):
        report = examine(stage.facts)
        assert found(report, severity, what), report
    assert not found(examine(stage.facts), severity, what)


def test_doctor_names_a_function_that_crashed_and_its_error(stage: LocalStage) -> None:
    stage.invoke("watchdog", wait=True)
    with stage.configured("watchdog", settings={"valkey.store.shards": "none"}):
        stage.invoke("watchdog", wait=True)
        report = examine(stage.facts)
    assert found(report, FAILING, "The watchdog failed .* within the hour, last at .*: an uncaught error"), report


def test_doctor_changes_nothing_and_can_read_all_of_the_local_stage(stage: LocalStage) -> None:
    stage.invoke("watchdog", wait=True)
    stage.invoke("dynamodb_processor", {"sweep": True}, wait=True)
    called: set[str] = set()
    account = find_account(LOCAL, profile=None, region=None, outputs=stage.stage.outputs_file)

    def client(service: str) -> object:
        made = account.client(service)
        made.meta.events.register("before-call", lambda model, **_: called.add(model.name))
        return made

    report = examine(StageFacts(LOCAL, client, api_endpoint=account.api_endpoint))
    assert report.unread == {}
    assert {re.match("[A-Z][a-z]+", name)[0] for name in called} == {"Describe", "Filter", "Get", "List"}  # type: ignore[index]
