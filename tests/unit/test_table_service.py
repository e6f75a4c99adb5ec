"""The tests' tables answer as moto does by HTTP."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from tests.support.table_service import answering_without_http
from tests.support.window import TABLE, dynamodb, make_message_table

KEY = {"conversation": {"S": "c"}, "item": {"S": "m1"}}
NAMED = {"ExpressionAttributeNames": {"#n": "due_at"}, "ExpressionAttributeValues": {":n": {"N": "5"}}}
CALLS = {
    "put": lambda client: client.put_item(TableName=TABLE, Item=KEY | {"body": {"B": b"\xff\x00"}, "l": {"L": []}}),
    "get": lambda client: client.get_item(TableName=TABLE, Key=KEY),
    "get nothing": lambda client: client.get_item(TableName=TABLE, Key=KEY | {"item": {"S": "another"}}),
    "update": lambda client: client.update_item(
        TableName=TABLE, Key=KEY, UpdateExpression="SET #n = :n", ReturnValues="ALL_OLD", **NAMED
    ),
    "refused update": lambda client: client.update_item(
        TableName=TABLE, Key=KEY, UpdateExpression="SET #n = :n", ConditionExpression="#n = :other",
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
        **NAMED | {"ExpressionAttributeValues": {":n": {"N": "5"}, ":other": {"N": "6"}}},
    ),
    "refused transaction": lambda client: client.transact_write_items(
        TransactItems=[
            {"Put": {"TableName": TABLE, "Item": KEY, "ConditionExpression": "attribute_not_exists(conversation)"}}
        ]
    ),
    "reserved word": lambda client: client.update_item(TableName=TABLE, Key=KEY, UpdateExpression="REMOVE items"),
    "wrong request": lambda client: client.get_item(TableName=TABLE, Key="no key"),
    "page": lambda client: client.query(
        TableName=TABLE, Limit=1, KeyConditionExpression="conversation = :c",
        ExpressionAttributeValues={":c": {"S": "c"}},
    ),
    "batch": lambda client: client.batch_write_item(RequestItems={TABLE: [{"DeleteRequest": {"Key": KEY}}]}),
}  # fmt: skip


def answer_of(call: Callable[[Any], Any], client: Any) -> Any:
    try:
        answer = call(client)
    except ClientError as error:
        return type(error).__name__, {**error.response, "ResponseMetadata": None}
    except ParamValidationError as error:
        return type(error).__name__, str(error)
    answer.pop("ResponseMetadata", None)
    return answer


@pytest.mark.parametrize("name", CALLS)
def test_a_table_answers_alike_with_and_without_http(name: str) -> None:
    answers = []
    for way in ("without", "by"):
        with dynamodb() as client:
            make_message_table(client)
            client.put_item(TableName=TABLE, Item=KEY | {"item": {"S": "m2"}})
            CALLS["put"](client)
            if way == "by":
                client._make_api_call = type(client)._make_api_call.__get__(client)
            answers.append(answer_of(CALLS[name], client))
    assert answers[0] == answers[1]


def test_the_usual_way_is_not_taken_for_items() -> None:
    with dynamodb() as client:
        make_message_table(client)
        client._make_api_call = type(client)._make_api_call.__get__(client)
        with answering_without_http(client):
            assert "ResponseMetadata" not in client.get_item(TableName=TABLE, Key=KEY)
        assert "ResponseMetadata" in client.get_item(TableName=TABLE, Key=KEY)
