"""The operators' requests for a tenant's settings, on DynamoDB's table."""

from typing import Any

import pytest

from lambdas.operations import Operations
from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.tenant_settings import (
    MAX_SETTING_CHARACTERS,
    MAX_TENANT_CHARACTERS,
    operations_of,
)
from message_buffer.json_object import Json
from tests.support.fakes import RecordedTelemetry
from tests.support.table_service import empty

NAME = "tenants"
ALL: Json = {
    "projectStatus": "inactive", "allowedChannels": ["whatsapp", "telegram"],
    "instructions": "You sell bicycles. \U0001f6b2 \ud83d", "model": "us.amazon.nova-lite-v1:0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _table(database: Any) -> None:
    if NAME not in database.list_tables()["TableNames"]:
        keys = {"id": "HASH", "part": "RANGE"}
        database.create_table(
            TableName=NAME,
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
            BillingMode="PAY_PER_REQUEST",
        )
    empty(database, NAME)


def ask(verb: str, **fields: object) -> Json:
    operations = Operations(operations_of(ConversationsTable(NAME, outbox_days=1, turn_days=1)), RecordedTelemetry())
    return operations.answer({"operation": f"tenant.settings.{verb}", "by": "me", **fields}, request_id="r-1")


def test_who_replaced_which_tenants_settings_is_told_without_them() -> None:
    telemetry = RecordedTelemetry()
    operations = Operations(operations_of(ConversationsTable(NAME, outbox_days=1, turn_days=1)), telemetry)
    request = {"operation": "tenant.settings.set", "by": "me", "tenant": "acme", "settings": ALL}
    operations.answer(request, request_id="r-1")
    (line,) = telemetry.said("operator")
    assert (line["claimedBy"], line["tenant"], line["outcome"]) == ("me", "acme", "ok")
    assert "bicycles" not in str(line)


def test_settings_are_replaced_whole_and_are_those_that_the_responder_reads() -> None:
    assert ask("get", tenant="acme") == {"ok": True, "result": {"tenant": "acme", "settings": {}}}
    for settings in (ALL, {"projectStatus": "active"}, {}):
        stored = {"ok": True, "result": {"tenant": "acme", "settings": settings}}
        assert ask("set", tenant="acme", settings=settings) == ask("get", tenant="acme") == stored
        assert ConversationsTable(NAME, outbox_days=1, turn_days=1).tenant_settings("acme") == settings
        assert ask("get", tenant="acm")["result"]["settings"] == {}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (None, "settings must be a JSON object."),
        ([], "settings must be a JSON object."),
        ({"projectStatus": "paused"}, "projectStatus must be active or inactive."),
        ({"allowedChannels": "sms"}, "allowedChannels must be a list of one or more of: custom, generic, instagram, "),
        ({"allowedChannels": ["sms"]}, "allowedChannels must be a list of one or more of: "),
        ({"allowedChannels": [{}]}, "allowedChannels must be a list of one or more of: "),
        ({"allowedChannels": []}, "allowedChannels must be a list of one or more of: "),
        ({"instructions": "x" * (MAX_SETTING_CHARACTERS + 1)}, "instructions must be a text of 1 to 32000 "),
        ({"model": ""}, "model must be a text of 1 to 32000 characters."),
        (
            {"model": 1, "tone": "kind"},
            "tone is unknown here; valid: projectStatus, allowedChannels, instructions, model. model must be ",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_a_sentence_and_nothing_is_stored(
    settings: Any, sentence: str
) -> None:
    error = ask("set", tenant="acme", settings=settings)["error"]
    assert error["code"] == "invalid"
    assert sentence in error["message"]
    assert ask("get", tenant="acme")["result"]["settings"] == {}


@pytest.mark.parametrize("tenant", [None, "", 1, "x" * (MAX_TENANT_CHARACTERS + 1)])
@pytest.mark.parametrize("verb", ["get", "set"])
def test_a_tenant_has_a_name(verb: str, tenant: Any) -> None:
    error = ask(verb, tenant=tenant, settings={})["error"]
    assert error == {"code": "invalid", "message": "tenant must be a text of 1 to 128 characters."}
