"""Each short webhook is read as expected, and no odd value in a webhook breaks its platform's reader."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Incoming
from lambdas.ingest.preparation import prepare
from message_buffer.errors import InvalidInput
from message_buffer.events.batch_ready import content_of
from message_buffer.json_object import Json
from message_buffer.messages.message import encode
from message_buffer.rules.rule_book import RuleBook
from tests.support.fakes import RecordedTelemetry
from tests.support.platform_table import DOCUMENT, ORDER, ROWS, filled
from tests.support.platforms import one_message
from tests.support.webhook_cases import ACCOUNTS, Case, all_cases, cases, read, told

ALL = list(cases())
EVENT = json.loads((Path(__file__).parents[2] / "docs/schema/messages.batch.ready.json").read_text("utf-8"))
MESSAGE_SCHEMA = jsonschema.Draft4Validator({"$ref": "#/definitions/message", "definitions": EVENT["definitions"]})
ODD: list[Any] = [
    None, "", 0, 2**63, 1.5, True, [], {}, [None], {"a": None}, "\ud83d", "long" * 1_250,
]  # fmt: skip
META = {"whatsapp", "messenger", "instagram"}
NEIGHBOUR = "the neighbour"


@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_webhook_is_read_as_expected(case: Case) -> None:
    assert told(case.platform, read(case.platform, case.body)) == case.expected


def test_every_field_of_every_webhook_is_in_the_schema_of_the_event() -> None:
    named, of_attachment = (set(EVENT["definitions"][of]["properties"]) for of in ("message", "attachment"))
    for case in all_cases():
        for update in read(case.platform, case.body).updates:
            if isinstance(update, Incoming):
                (message,) = content_of([encode(update.message)]).messages
                MESSAGE_SCHEMA.validate(message)
                assert message.keys() <= named, case
                for attachment in message["attachments"]:
                    assert attachment["type"] in {"contact", "chat"} or attachment.keys() <= of_attachment, case


def test_every_optional_field_of_a_message_is_in_a_webhook() -> None:
    """This fails if a reader no longer fills a field, or if the schema has a field that no platform fills."""
    found = {
        field
        for case in all_cases()
        for update in read(case.platform, case.body).updates
        if isinstance(update, Incoming)
        for field in content_of([encode(update.message)]).messages[0]
    }
    assert set(EVENT["definitions"]["message"]["properties"]) - found <= {"editedAt"}


def test_the_table_of_what_each_platform_sends_is_current() -> None:
    """If this fails, run `python -m tests.support.platform_table`, which writes the table."""
    text = DOCUMENT.read_text("utf-8")
    assert filled(text) == text
    assert set(ORDER) == PLATFORMS.keys()
    assert all(f"\n| {row} | " in text for row in ROWS)


# -- odd values ------------------------------------------------------------------------------------


def places(value: Any) -> Iterator[list[Any]]:
    """Yield the path to each value inside this one, as a list of keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    for key, item in items:
        yield [key]
        yield from ([key, *rest] for rest in places(item))


def with_odd_values(body: Any) -> Iterator[tuple[list[Any], Any]]:
    """Replace each value in turn by each odd value. Yield its path and the body, which is always the same object."""
    for place in list(places(body)):
        parent = body
        for key in place[:-1]:
            parent = parent[key]
        kept = parent[place[-1]]
        for odd in ODD:
            parent[place[-1]] = copy.copy(odd)
            yield place, body
        parent[place[-1]] = kept


def with_neighbour(case: Case) -> Any:
    """Return a copy of the body. For Meta's platforms, append a good message to it, since their bodies have several."""
    body = copy.deepcopy(case.body)
    if case.platform in META:
        body["entry"] += one_message(case.platform, ACCOUNTS[case.platform], NEIGHBOUR)["entry"]
    return body


def _is_in_the_neighbour(place: list[Any], body: Any) -> bool:
    return place[0] != "entry" or len(place) == 1 or place[1] == len(body["entry"]) - 1


def _form(fields: Json) -> Json:
    """Return the fields as text, because a form contains only text."""
    return {name: str(value).encode("utf-8", "replace").decode() for name, value in fields.items()}


@pytest.mark.parametrize("kind", sorted({case.kind for case in ALL} | {"long"}))
def test_an_odd_value_is_at_most_refused_and_its_neighbours_are_kept(kind: str) -> None:
    book = RuleBook(None, {}, RecordedTelemetry())
    for case in (case for case in all_cases() if case.kind == kind):
        whole = with_neighbour(case)
        skip_invalid = PLATFORMS[case.platform].skips_invalid
        for place, body in with_odd_values(whole):
            try:
                sent = _form(body) if case.platform == "twilio" else body
                prepared = prepare(read(case.platform, sent), book, skip_invalid=skip_invalid)
            except InvalidInput:
                assert case.platform == "generic" or len(place) == 1, (str(case), place)
                continue
            if case.platform in META and not _is_in_the_neighbour(place, whole):
                texts = [message.payload for message in prepared.messages]
                assert any(NEIGHBOUR.encode() in text for text in texts), (str(case), place)
