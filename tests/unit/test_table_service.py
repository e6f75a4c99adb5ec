"""The tests' tables answer our client as they answer the SDK's by HTTP, and refuse some requests for a moment."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from message_buffer.aws import clients as aws
from message_buffer.aws.json_client import AwsRefused
from tests.support.table_service import weather
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
        of_the_sdk = {"Error", "ResponseMetadata", "message"}
        fields = {name: value for name, value in error.response.items() if name not in of_the_sdk}
        return error.response["Error"]["Code"], fields
    except AwsRefused as error:
        return error.code, {name: value for name, value in error.response.items() if name != "__type"}
    answer.pop("ResponseMetadata", None)
    return answer


@pytest.mark.parametrize("name", CALLS)
def test_a_table_answers_our_client_as_it_answers_the_sdk(name: str) -> None:
    answers = []
    for is_ours in (True, False):
        with dynamodb() as sdk:
            make_message_table(sdk)
            sdk.put_item(TableName=TABLE, Item=KEY | {"item": {"S": "m2"}})
            CALLS["put"](sdk)
            answers.append(answer_of(CALLS[name], aws.client("dynamodb") if is_ours else sdk))
    assert answers[0] == answers[1]


def test_a_request_that_the_sdk_would_not_send_fails_its_test() -> None:
    with dynamodb() as sdk:
        make_message_table(sdk)
        with pytest.raises(AssertionError, match="Invalid type"):
            aws.client("dynamodb").get_item(TableName=TABLE, Key="no key")


@pytest.mark.parametrize("patience", [aws.PATIENT, aws.HURRIED])
def test_no_caller_sees_that_every_second_request_is_refused(
    patience: aws.Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dynamodb() as sdk:
        make_message_table(sdk)
        monkeypatch.setattr(weather, "share", 1.0)
        client = aws.client("dynamodb", patience=patience)
        ask, asked = client._ask_once, []

        def counted(*args: Any, **options: Any) -> Any:
            asked.append(args)
            return ask(*args, **options)

        monkeypatch.setattr(client, "_ask_once", counted)
        put = {"Put": {"TableName": TABLE, "Item": KEY}}
        for _ in range(20):
            client.update_item(TableName=TABLE, Key=KEY, UpdateExpression="SET #n = :n", **NAMED)
            client.transact_write_items(TransactItems=[put])
        assert len(asked) == 80, "the table has refused nothing"
