"""A word that a person wrote is in every place of a stage, and after a forget in none."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from bufferctl.__main__ import main as bufferctl
from message_buffer.json_object import Json
from tests.support.local_stage import MAX_EVENT_BYTES, LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("responder-stage")]

WORD = "xylophone-7f3a"
ENOUGH_SECONDS = 60.0


class Person:
    def __init__(self, stage: LocalStage) -> None:
        self._stage = stage
        self.user = f"person-{uuid.uuid4().hex[:8]}"
        self.name = f"default/generic/shop/{self.user}"
        self.ids: list[str] = []

    def write(self, text: str = WORD, message_id: str | None = None) -> Json:
        message_id = message_id or f"id-{uuid.uuid4().hex}"
        self.ids.append(message_id)
        body = {"account": "shop", "conversation": self.user, "id": message_id, "text": text}
        answer = self._stage.webhooks.post("generic", body)
        assert answer.status == 200, answer.body
        return dict(json.loads(answer.body))

    def batches(self) -> list[Json]:
        return [each.batch for each in self._stage.inbox.arrivals if each.batch["conversationId"] == self.name]


def wait_for(is_so: Any, what: str) -> None:
    deadline = time.monotonic() + ENOUGH_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


class Places:
    """Everything that the stage keeps, as text."""

    def __init__(self, stage: LocalStage) -> None:
        self._stage = stage
        self._client = stage.outputs.client

    def having(self, *texts: str) -> set[str]:
        """Return the places that contain one of the texts."""
        return {place for place, content in self._contents() if any(text in content for text in texts)}

    def _contents(self) -> Iterator[tuple[str, str]]:
        for key in self._stage.keys("*"):
            yield f"valkey {key.split(':')[1]}", f"{key} {self._value(key)}"
        dynamodb = self._client("dynamodb")
        for table in dynamodb.list_tables()["TableNames"]:
            for page in dynamodb.get_paginator("scan").paginate(TableName=table):
                for item in page["Items"]:
                    part = item.get("part", item.get("item", {"S": ""}))["S"][:2]
                    yield f"table {_kind(table)} {part}".strip(), str(item)
        s3 = self._client("s3")
        for each in s3.list_objects_v2(Bucket=self._stage.outputs.OversizeBucketName).get("Contents", []):
            body = s3.get_object(Bucket=self._stage.outputs.OversizeBucketName, Key=each["Key"])["Body"].read()
            yield f"bucket {each['Key'].partition('/')[0]}", f"{each['Key']} {body.decode()}"
        yield from self._queues()

    def _queues(self) -> Iterator[tuple[str, str]]:
        sqs = self._client("sqs")
        for url in sqs.list_queues().get("QueueUrls", []):
            if "MessageBuffer-local" not in url or "Echo" in url:
                continue
            received = []
            while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
                received += messages
            for message in received:
                yield f"queue {_kind(url)}", message["Body"]
                sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)

    def _value(self, key: str) -> str:
        valkey = self._stage.valkey
        with suppress(UnicodeDecodeError):
            match valkey.type(key):
                case "hash":
                    return str(valkey.hgetall(key))
                case "list":
                    return str(valkey.lrange(key, 0, -1))
                case "zset":
                    return str(valkey.execute_command("ZRANGE", key, 0, -1, NEVER_DECODE=True))
        return str(valkey.execute_command("DUMP", key, NEVER_DECODE=True))


def _kind(name: str) -> str:
    """Return a resource's construct from the name that CloudFormation gave it."""
    return name.rpartition("/")[2].split("-")[3][:12]


def operate(responder_stage: LocalStage, capsys: pytest.CaptureFixture[str], *command: str) -> Json:
    capsys.readouterr()
    assert bufferctl(["--outputs", str(responder_stage.stage.outputs_file), "--json", *command]) == 0
    return dict(json.loads(capsys.readouterr().out))


def plant(responder_stage: LocalStage, person: Person, places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    """Put the person's word into every place."""
    large = WORD + "x" * MAX_EVENT_BYTES
    person.write(large[: MAX_EVENT_BYTES - 200])
    person.write()
    # Over-size: in the bucket, and answered: a turn and a mark.
    wait_for(lambda: "table Conversation !" in places.having(WORD), "no turn")
    rules = json.dumps({"stopWords": [WORD]})
    operate(responder_stage, capsys, "rules", "set", f"conversation:{person.name}", rules)
    with responder_stage.denied("conversation_processor", "events:PutEvents"):
        person.write(f"{WORD} again")
        wait_for(lambda: "queue DeadLetters" in places.having(WORD), "no dead letter")
        for _ in range(5):
            person.write(large[: MAX_EVENT_BYTES - 200])
        wait_for(lambda: "bucket dead-letters" in places.having(WORD), "no over-size dead letter")
        person.write(f"{WORD} again")
        wait_for(lambda: "valkey batch" in places.having(WORD), "nothing is frozen")
        operate(responder_stage, capsys, "conversation", "hold", person.name)
        person.write(f"{WORD} again")
        planted = places.having(WORD, person.name)
        assert planted >= {
            "valkey msgs", "bucket batches", "bucket dead-letters", "queue DeadLetters",
            "table Rules", "table Conversation !", "table Conversation o#",
        }, planted  # fmt: skip
        assert "valkey seen" in places.having(*person.ids)
        forget(responder_stage, person, places, capsys)


def forget(responder_stage: LocalStage, person: Person, places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    seen = operate(responder_stage, capsys, "conversation", "forget", person.name, "--dry-run")
    assert WORD not in str(seen)
    done = operate(responder_stage, capsys, "conversation", "forget", person.name, "--yes")
    assert done["counts"]["deadLetters"] >= 2
    # Only platforms with several names for a person have aliases, and only those with echoes have takeovers.
    possible = {"frozen", "aliases", "takeovers"}
    assert {name for name, count in done["counts"].items() if not count} <= possible
    assert done["agesOut"]
    assert places.having(WORD, *person.ids) == set()


def test_a_word_that_was_everywhere_is_nowhere_after_a_forget(
    responder_stage: LocalStage, capsys: pytest.CaptureFixture[str]
) -> None:
    person, other, places = Person(responder_stage), Person(responder_stage), Places(responder_stage)
    since_ms = int(time.time() * 1_000)
    other.write("hello")
    plant(responder_stage, person, places, capsys)
    left = places.having(person.name)
    assert left <= {"table Conversation !"}, left
    assert not any(
        WORD in line
        for role in responder_stage.outputs.Functions
        for line in responder_stage.log(role, since_ms=since_ms)
    )

    # Its platform delivers a message again, which is a new message now.
    count = len(person.batches())
    assert person.write("delivered again", person.ids[0])["duplicates"] == 0
    wait_for(lambda: len(person.batches()) > count, "the new message did not leave")
    (batch,) = person.batches()[count:]
    assert batch["text"] == "delivered again"
    assert places.having(WORD) == set()
    assert operate(responder_stage, capsys, "conversation", "forget", other.name, "--dry-run")["counts"]["turns"]
