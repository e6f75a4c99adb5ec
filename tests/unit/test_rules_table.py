"""The rules table: the requests it makes, and which of two writers wins."""

import json
from functools import partial
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.admin.requests import DeleteRules, OfScope, SetRules
from lambdas.admin.rules import RulesAdmin
from lambdas.operations import SubjectNotFound
from message_buffer.aws import clients as aws
from message_buffer.errors import InvalidInput, RulesConflict
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_table import MAX_RULES_BYTES, MAX_RULES_WRITES, RulesTable, StoredRules
from tests.support.fakes import RecordedTelemetry
from tests.support.table_service import empty

Item = dict[str, Any]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    session = botocore.session.Session()
    session.set_credentials("test", "test")
    client = session.create_client("dynamodb", region_name="us-east-1")
    stubber = Stubber(client)
    stubber.activate()
    monkeypatch.setattr(aws, "_made", lambda *_: client)
    return stubber


def item(scope: str, version: int, rules: Any = None, *, after: Item | None = None) -> Item:
    fields = {"scope": {"S": scope}, "version": {"N": str(version)}, "updatedBy": {"S": "op"}, "updatedAt": {"N": "5"}}
    previous = {} if after is None else {"previous": {"M": {k: v for k, v in after.items() if k != "scope"}}}
    return fields | ({} if rules is None else {"rules": {"S": json.dumps(rules, separators=(",", ":"))}}) | previous


def finds(stub: Stubber, scope: str, found: Item | None) -> None:
    asked = {"TableName": "t", "Key": {"scope": {"S": scope}}, "ConsistentRead": True}
    stub.add_response("get_item", {"Item": found} if found else {}, asked)


def bump(version: int, *, before: int) -> Item:
    names = {"#version": "version"}
    condition: Item = (
        {"ConditionExpression": "#version = :version", "ExpressionAttributeNames": names,
         "ExpressionAttributeValues": {":version": {"N": str(before)}}}
        if before
        else {"ConditionExpression": "attribute_not_exists(#version)", "ExpressionAttributeNames": names}
    )  # fmt: skip
    return {"Put": {"TableName": "t", "Item": item("!version", version), **condition}}


def test_the_version_is_read_consistently_and_0_before_the_first_write(stub: Stubber) -> None:
    finds(stub, "!version", None)
    finds(stub, "!version", item("!version", 12))
    assert [RulesTable("t").version(), RulesTable("t").version()] == [0, 12]


def test_every_page_is_read_and_no_item_that_a_person_spoiled_spoils_another(stub: Stubber) -> None:
    asked = {"TableName": "t", "ConsistentRead": True}
    next_page = {"scope": {"S": "stage"}}
    spoiled: list[Item] = [
        {"scope": {"S": "a"}, "rules": {"S": "{"}, "version": {"N": "1"}},
        {"scope": {"S": "b"}, "rules": {"M": {"silenceMs": {"N": "5"}}}},
        {"scope": {"S": "c"}, "rules": {"S": "[" * 100_000}},
        {"scope": {"S": "d"}, "rules": {"S": '"' + "x" * MAX_RULES_BYTES + '"'}, "version": {"S": "1"}},
    ]
    stub.add_response("scan", {"Items": [item("stage", 3, {"a": 1})], "LastEvaluatedKey": next_page}, asked)
    stub.add_response("scan", {"Items": [item("!version", 9), *spoiled]}, asked | {"ExclusiveStartKey": next_page})
    assert RulesTable("t").read_all() == [
        StoredRules("stage", {"a": 1}, 3, "op", 5),
        StoredRules("a", None, 1, None, None),
        *(StoredRules(scope, None, 0, None, None) for scope in "bcd"),
    ]


@pytest.mark.parametrize("expected_version", [None, 0])
def test_the_first_rules_get_the_first_version(stub: Stubber, expected_version: int | None) -> None:
    finds(stub, "!version", None)
    finds(stub, "stage", None)
    put = {"Put": {"TableName": "t", "Item": item("stage", 1, {"silenceMs": 5}, after={})}}
    stub.add_response("transact_write_items", {}, {"TransactItems": [put, bump(1, before=0)]})
    version = RulesTable("t").put("stage", {"silenceMs": 5}, by="op", at_ms=5, expected_version=expected_version)
    assert version == 1
    stub.assert_no_pending_responses()


@pytest.mark.parametrize("stored", [None, item("stage", 4, {})])
def test_rules_that_somebody_else_changed_are_not_replaced(stub: Stubber, stored: Item | None) -> None:
    finds(stub, "!version", item("!version", 8))
    finds(stub, "stage", stored)
    with pytest.raises(RulesConflict, match="the rules of stage have changed since they were read"):
        RulesTable("t").put("stage", {}, by="op", at_ms=5, expected_version=3)


def test_a_write_that_another_one_crossed_is_tried_again_on_what_it_left(stub: Stubber) -> None:
    for version in (8, 9):
        finds(stub, "!version", item("!version", version))
        finds(stub, "stage", item("stage", 3, {}))
        if version == 8:
            stub.add_client_error("transact_write_items", "TransactionCanceledException")
    stub.add_response("transact_write_items", {})
    assert RulesTable("t").put("stage", {}, by="op", at_ms=5, expected_version=3) == 10


def test_who_never_comes_through_is_told(stub: Stubber) -> None:
    for _ in range(MAX_RULES_WRITES):
        finds(stub, "!version", item("!version", 8))
        finds(stub, "stage", None)
        stub.add_client_error("transact_write_items", "TransactionCanceledException")
    with pytest.raises(RulesConflict):
        RulesTable("t").put("stage", {}, by="op", at_ms=5, expected_version=None)


def test_what_is_deleted_is_a_change_and_what_is_not_there_is_none(stub: Stubber) -> None:
    finds(stub, "!version", item("!version", 8))
    finds(stub, "stage", item("stage", 3, {}))
    deleted = item("stage", 9, after=item("stage", 3, {})) | {"expires_at": {"N": str(30 * 86_400)}}
    put = {"Put": {"TableName": "t", "Item": deleted}}
    stub.add_response("transact_write_items", {}, {"TransactItems": [put, bump(9, before=8)]})
    assert RulesTable("t").delete("stage", by="op", at_ms=5, expected_version=3) == 9
    for left in (None, deleted):
        finds(stub, "!version", item("!version", 9))
        finds(stub, "stage", left)
        assert RulesTable("t").delete("stage", by="op", at_ms=5, expected_version=0) is None


def test_what_is_erased_leaves_nothing_to_undo(stub: Stubber) -> None:
    delete = {"Delete": {"TableName": "t", "Key": {"scope": {"S": "stage"}}}}
    for found, had_rules in ((item("stage", 3, {}), True), (item("stage", 3, after={}), False)):
        finds(stub, "!version", item("!version", 8))
        finds(stub, "stage", found)
        stub.add_response("transact_write_items", {}, {"TransactItems": [delete, bump(9, before=8)]})
        assert RulesTable("t").erase("stage", by="op", at_ms=5) is had_rules
    stub.assert_no_pending_responses()


def test_the_count_of_changes_is_nobodys_to_delete_or_undo(stub: Stubber) -> None:
    for _ in range(2):
        finds(stub, "!version", item("!version", 8))
    assert RulesTable("t").delete("!version", by="op", at_ms=5, expected_version=None) is None
    finds(stub, "!version", item("!version", 8))
    assert RulesTable("t").last_change("!version") == []


CHANGES = st.lists(st.sampled_from(["delete", "undo"]) | st.integers(0, 3), max_size=8)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHANGES)
def test_an_undo_brings_back_what_the_last_change_replaced_and_a_second_one_redoes(
    database: Any, changes: list[str | int]
) -> None:
    if "rules" not in database.list_tables()["TableNames"]:
        database.create_table(
            TableName="rules", BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "scope", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "scope", "AttributeType": "S"}],
        )  # fmt: skip
    empty(database, "rules")
    table = RulesTable("rules")
    admin = RulesAdmin(
        table=table, book_of=partial(RuleBook, stage_rules={}, telemetry=RecordedTelemetry()),
        valkey_lane=None, dynamodb_lane=None, time_left=lambda: 60_000,
        clock=lambda: 1_700_000_000_000,
    )  # fmt: skip
    before = now = None
    is_known, version = False, 0
    for each in changes:
        was_possible = {"delete": now is not None, "undo": is_known}.get(str(each), True)
        try:
            if isinstance(each, int):
                done = admin.set(SetRules(by="op", scope="stage", rules={"silenceMs": each}))
                before, now = now, {"silenceMs": each}
            elif each == "delete":
                done = admin.delete(DeleteRules(by="op", scope="stage"))
                before, now = now, None
            else:
                done = admin.undo(OfScope(by="op", scope="stage"))
                assert (done["before"], done["after"]) == (now, before)
                before, now = now, before
        except SubjectNotFound:
            assert not was_possible
            continue
        assert was_possible
        is_known, version = True, version + 1
        assert done["version"] == table.version() == version
        assert [(each.rules, each.version) for each in table.read_all()] == ([(now, version)] if now else [])


def test_rules_that_nobody_would_read_are_not_written(stub: Stubber) -> None:
    with pytest.raises(InvalidInput, match=f"at most {MAX_RULES_BYTES} bytes"):
        RulesTable("t").put("stage", {"stopWords": ["x" * MAX_RULES_BYTES]}, by="op", at_ms=5, expected_version=None)
