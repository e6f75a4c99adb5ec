"""The schema of the generic platform's body: it accepts exactly the bodies that the platform's reader accepts."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import InvalidWebhook, Signer
from message_buffer.limits import MAX_MESSAGE_ID_BYTES, MAX_TIME_MS
from tests.support.platforms import RECEIVED_AT_MS, webhook

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/generic.webhook.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
FIELDS = sorted(SCHEMA["definitions"]["message"]["properties"])
ALL_FIELDS = sorted({*FIELDS, "reaction"})
OF_ATTACHMENT = sorted(SCHEMA["definitions"]["attachment"]["properties"])
LEAST: dict[str, Any] = {"account": "shop", "conversation": "c1", "id": "m1", "text": "Hey"}
WHOLE = LEAST | {
    "type": "image",
    "author": "Ada",
    "sentAt": 1_700_000_000_000,
    "replyTo": "m0",
    "attachments": [
        {"type": "image", "url": "https://example.com/a.png", "id": "a1", "mimeType": "image/png", "name": "a.png",
         "sizeBytes": 3, "pending": True},
    ],
    "groupId": "album",
    "tenant": "acme",
    "agent": "sales",
    "edited": True,
    "deleted": False,
}  # fmt: skip
OF = {"account": "shop", "conversation": "c1", "id": "m1"}
DELETION = OF | {"deleted": True, "author": "Ada", "tenant": "acme"}
REACTION = OF | {"reaction": "👍", "author": "Ada", "tenant": "acme"}


def is_read(body: object) -> bool:
    sent = webhook("generic", json.dumps(body).encode())
    try:
        PLATFORMS["generic"].read(sent, signer=Signer(all_but=frozenset()), received_at_ms=RECEIVED_AT_MS)
    except InvalidWebhook:
        return False
    return True


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in LEAST.items() if name != field}


def attached(**fields: Any) -> dict[str, Any]:
    return LEAST | {"attachments": [{"type": "image"} | fields]}


def test_the_schema_is_one_of_draft_4() -> None:
    jsonschema.Draft4Validator.check_schema(SCHEMA)
    assert jsonschema.validators.validator_for(SCHEMA) is jsonschema.Draft4Validator


def test_the_schema_names_every_field_that_the_reader_takes() -> None:
    assert set(WHOLE) == set(FIELDS)
    assert set(WHOLE["attachments"][0]) == set(OF_ATTACHMENT)
    sent = webhook("generic", json.dumps(WHOLE | {"edited": False}).encode())
    intake = PLATFORMS["generic"].read(sent, signer=Signer(all_but=frozenset()), received_at_ms=RECEIVED_AT_MS)
    (update,) = intake.updates
    message = update.message.model_dump(by_alias=True)  # type: ignore[union-attr] # it is new
    for field in set(WHOLE) - {"account", "conversation", "tenant", "agent", "edited", "deleted"}:
        assert message[field] == WHOLE[field], field


@pytest.mark.parametrize(
    "body",
    [
        [LEAST] * 1_000,
        [LEAST, DELETION, REACTION, OF | {"reaction": None}],
        LEAST | {"text": "", "type": "call"},
        LEAST | {"text": "", "attachments": [{"type": "image"}] * 100},
        LEAST | {"sentAt": "2026-01-31T12:00:00.123456+05:30"},
        LEAST | dict.fromkeys(["type", "author", "sentAt", "replyTo", "attachments", "groupId", "agent"]),
        LEAST | {"sentAt": MAX_TIME_MS, "id": "x" * MAX_MESSAGE_ID_BYTES},
    ],
)
def test_both_accept_a_body_of_the_platform(body: object) -> None:
    assert (VALIDATOR.is_valid(body), is_read(body)) == (True, True)


@pytest.mark.parametrize(
    "body",
    [
        [],
        [LEAST] * 1_001,
        *(LEAST | {field: None} for field in (*LEAST, "tenant", "edited")),
        *(LEAST | {"sentAt": wrong} for wrong in (-1, 1.5, "1700000000000", True, MAX_TIME_MS + 1)),
        *(LEAST | {"sentAt": f"{wrong}"} for wrong in ("2026-01-31", "2026-01-31T12:00:00", "1969-12-31T12:00:00Z")),
        LEAST | {"unknown": {"to": ["us"]}},
        LEAST | {"text": "", "edited": True},
        OF | {"deleted": True, "reaction": "👍"},
        OF | {"deleted": False},
        *(changed | {"edited": False} for changed in (DELETION, REACTION)),
        LEAST | {"id": "x" * (MAX_MESSAGE_ID_BYTES + 1)},
        LEAST | {"attachments": [{"type": "image"}] * 101},
    ],
)
def test_both_refuse_a_body_that_is_wrong(body: object) -> None:
    assert (VALIDATOR.is_valid(body), is_read(body)) == (False, False)


# A schema counts characters: surrogates alone, and ids of few characters with many bytes, are beyond it.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 2**48), st.floats(allow_nan=False), TEXTS,
    st.lists(TEXTS, max_size=2), st.dictionaries(TEXTS, TEXTS, max_size=2),
)  # fmt: skip
ATTACHMENTS = st.lists(st.dictionaries(st.sampled_from(OF_ATTACHMENT), ANYTHING, max_size=4), max_size=2)
CHANGES = st.dictionaries(st.sampled_from(ALL_FIELDS), ANYTHING | ATTACHMENTS, max_size=3)
MESSAGES = st.builds(
    lambda known, changed: known | changed, st.sampled_from([LEAST, WHOLE, DELETION, REACTION]), CHANGES
)


@given(MESSAGES | st.lists(MESSAGES, max_size=3) | ANYTHING)
def test_schema_and_reader_agree_on_any_body(body: object) -> None:
    assert VALIDATOR.is_valid(body) == is_read(body)
