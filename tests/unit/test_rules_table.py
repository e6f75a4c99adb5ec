"""The rules table: the requests it makes, and which of two writers wins."""

import json
from typing import Any

import botocore.session
import pytest
from botocore.stub import Stubber

from message_buffer.aws import clients as aws
from message_buffer.errors import InvalidInput, RulesConflict
from message_buffer.rules.rules_table import MAX_RULES_BYTES, MAX_RULES_WRITES, RulesTable, StoredRules

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


def item(scope: str, version: int, rules: Any = None) -> Item:
    fields = {"scope": {"S": scope}, "version": {"N": str(version)}, "updatedBy": {"S": "op"}, "updatedAt": {"N": "5"}}
    return fields | ({} if rules is None else {"rules": {"S": json.dumps(rules, separators=(",", ":"))}})


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
    put = {"Put": {"TableName": "t", "Item": item("stage", 1, {"silenceMs": 5})}}
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
    delete = {"Delete": {"TableName": "t", "Key": {"scope": {"S": "stage"}}}}
    stub.add_response("transact_write_items", {}, {"TransactItems": [delete, bump(9, before=8)]})
    assert RulesTable("t").delete("stage", by="op", at_ms=5, expected_version=3) is True
    finds(stub, "!version", item("!version", 9))
    finds(stub, "stage", None)
    assert RulesTable("t").delete("stage", by="op", at_ms=5, expected_version=None) is False


def test_the_count_of_changes_is_nobodys_to_delete(stub: Stubber) -> None:
    assert RulesTable("rules").delete("!version", by="ada", at_ms=2, expected_version=None) is False
    stub.assert_no_pending_responses()


def test_rules_that_nobody_would_read_are_not_written(stub: Stubber) -> None:
    with pytest.raises(InvalidInput, match=f"at most {MAX_RULES_BYTES} bytes"):
        RulesTable("t").put("stage", {"stopWords": ["x" * MAX_RULES_BYTES]}, by="op", at_ms=5, expected_version=None)
