"""The published event schema is Draft 4, and true in the later drafts that consumers' tools may have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from message_buffer.json_object import Json

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.batch.ready.json").read_text())
DRAFTS = [jsonschema.Draft4Validator, jsonschema.Draft7Validator, jsonschema.Draft202012Validator]
TIME = 1_700_000_000_000


def message() -> Json:
    return {
        "id": "m1", "text": "Hey", "type": "text", "timestamp": "2023-11-14T22:13:20.000Z",
        "attachments": [{"type": "image", "sizeBytes": 3}], "receivedAt": TIME, "platform": "generic",
    }  # fmt: skip


def whole() -> Json:
    return {
        "version": 1, "batchId": "b-1", "conversationId": "default/generic/shop/c1", "tenant": "default",
        "generation": 1, "attempt": 1, "messages": [message()], "text": "Hey", "messageCount": 1, "bufferedAt": TIME,
        "flushReason": "silence", "lane": "valkey",
        "metadata": {
            "platform": "generic", "firstMessageAt": TIME, "lastMessageAt": TIME, "previousMessageAt": None,
            "waitMs": 1_000,
            "rule": "silenceMs", "appliedWaitMs": 1_000,
        },
    }  # fmt: skip


def referring() -> Json:
    reference = {"bucket": "b", "key": "batches/b-1.json", "bytes": 300_000}
    return whole() | {"messages": [], "text": None, "messagesRef": reference}


def test_the_schema_is_one_of_draft_4() -> None:
    jsonschema.Draft4Validator.check_schema(SCHEMA)
    assert jsonschema.validators.validator_for(SCHEMA) is jsonschema.Draft4Validator


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "event",
    [
        whole(),
        referring(),
        whole() | {"added": "later"},
        whole() | {"agent": "sales", "replyUntil": TIME + 1, "traceparent": f"00-{'4b' * 16}-{'f0' * 8}-01"},
        whole() | {"metadata": whole()["metadata"] | {"previousMessageAt": TIME - 1}},
        whole() | {"queue": "handoff", "handoff": {"cause": "answer", "until": TIME}},
        whole() | {"handoff": {"cause": "operator", "until": None}},
        whole() | {"messages": [message() | {"author": "ada", "replyTo": "m0", "sentAt": TIME}]},
    ],
)
def test_every_draft_takes_an_event(draft: Callable[[Json], Any], event: Json) -> None:
    draft(SCHEMA).validate(event)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "event",
    [
        whole() | {"version": 2},
        whole() | {"lane": "fast"},
        whole() | {"agent": None},
        whole() | {"queue": None},
        whole() | {"handoff": {"cause": "answer"}},
        whole() | {"traceparent": "00-4b-f0-01"},
        whole() | {"messages": [message() | {"timestamp": "2023-11-14T22:13:20+00:00"}]},
        whole() | {"messages": [message() | {"sentAt": None}]},
        whole() | {"conversationId": "default/generic/shop"},
        whole() | {"messages": []},
        referring() | {"text": "Hey"},
        referring() | {"messagesRef": {"bucket": "b"}},
        {name: value for name, value in whole().items() if name != "batchId"},
    ],
)
def test_every_draft_refuses_what_is_none(draft: Callable[[Json], Any], event: Json) -> None:
    assert not draft(SCHEMA).is_valid(event)
