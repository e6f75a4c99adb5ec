"""DynamoDB in the tests' own process: moto's tables under our own client, without the HTTP request between them.

Signing a request, sending it and parsing it again takes four times as long as what the table does with it. The DynamoDB
lane's tests make some fifty thousand requests, so they call the table itself.

As in AWS, a request may be refused for a moment, or be carried out in part. The client must repeat what the service
refuses, so no test should see anything of it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from time import monotonic
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from botocore import xform_name
from botocore.exceptions import ClientError
from botocore.validate import ParamValidator
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.responses import DynamoHandler

from message_buffer.aws import json_client
from message_buffer.aws.json_client import AwsResponse, JsonClient
from message_buffer.lanes.dynamodb import messages

Ask = Callable[..., AwsResponse]

# Replaces `clients.OURS`, because moto intercepts only the SDK's requests.
OURS = frozenset({"dynamodb"})
REFUSED_SHARE = 0.05
WRITES = {"PutItem", "UpdateItem", "DeleteItem"}
# In a batch call, the kinds of requests that may be left undone, in the request and in the response.
BATCHES = {"BatchWriteItem": "UnprocessedItems", "BatchGetItem": "UnprocessedKeys"}


class Weather:
    """Decides, by a seed, which requests are refused. A request is refused at most once in a row."""

    def __init__(self) -> None:
        self.share = REFUSED_SHARE
        self.begin()

    def begin(self) -> None:
        self._random = Random(1)
        self._was_refused = False

    def refusal(self, operation: str, request: Mapping[str, Any], *, is_repeated: bool) -> AwsResponse | None:
        """Return the error response to a request, or None. Throttle only a client that retries (`is_repeated`)."""
        self._was_refused = not self._was_refused and self._random.random() < self.share
        if not self._was_refused:
            return None
        if operation == "TransactWriteItems":
            reasons = [{"Code": "None"} for _ in request["TransactItems"]]
            self._random.choice(reasons)["Code"] = "TransactionConflict"
            return _refused("TransactionCanceledException", CancellationReasons=reasons)
        if operation in WRITES:
            return _refused("TransactionConflictException")
        return _refused("ThrottlingException") if is_repeated else None

    def undone(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Take some requests out of a batch call, and return them as the response names them."""
        if operation not in BATCHES or self._random.random() >= self.share:
            return {}
        ((table, asked),) = request["RequestItems"].items()
        requests = asked if operation == "BatchWriteItem" else asked["Keys"]
        if len(requests) < 2:
            return {}
        left = [requests.pop(self._random.randrange(len(requests)))]
        return {BATCHES[operation]: {table: left if operation == "BatchWriteItem" else {**asked, "Keys": left}}}


weather = Weather()


@contextmanager
def answering_without_http(sdk: Any) -> Iterator[None]:
    """Answer our client's calls to DynamoDB by calling moto's tables. The SDK's client is asked about refusals."""
    no_sleep = SimpleNamespace(sleep=lambda _seconds: None, monotonic=monotonic)
    weather.begin()
    with (
        patch.object(JsonClient, "_ask_once", _without_http(sdk)),
        patch.object(json_client, "time", no_sleep),
        patch.object(messages, "time", no_sleep),
    ):
        yield


def empty(client: Any, table: str) -> None:
    """Remove all items of a table, which is quicker than making the table anew."""
    dynamodb_backends[DEFAULT_ACCOUNT_ID][client.meta.region_name].tables[table].items.clear()
    weather.begin()


def _without_http(sdk: Any) -> Ask:
    validator, model = ParamValidator(), sdk.meta.service_model

    def ask(client: JsonClient, _path: str, headers: Mapping[str, str], body: bytes, **_: Any) -> AwsResponse:
        operation = headers["x-amz-target"].rpartition(".")[2]
        shown = json.loads(body, object_hook=json_client._bytes)
        found = validator.validate(shown, model.operation_model(operation).input_shape)
        assert not found.has_errors(), found.generate_report()
        request = json.loads(body)
        if refusal := weather.refusal(operation, request, is_repeated=client._attempts > 1):
            return refusal
        undone = weather.undone(operation, request)
        handler = DynamoHandler()
        handler.current_account, handler.region = DEFAULT_ACCOUNT_ID, sdk.meta.region_name
        handler.body = request
        try:
            answer = getattr(handler, xform_name(operation))().result
        except Exception:  # noqa: BLE001 - a refused request changes nothing: ask again for AWS's form of the error
            return _refusal_of(getattr(sdk, xform_name(operation)), shown)
        return AwsResponse(200, None, json.dumps({**answer, **undone}, default=json_client._base64).encode())

    return ask


def _refusal_of(call: Callable[..., Any], request: Mapping[str, Any]) -> AwsResponse:
    try:
        call(**request)
    except ClientError as error:
        of_the_sdk = {"Error", "ResponseMetadata", "message"}
        fields = {name: value for name, value in error.response.items() if name not in of_the_sdk}
        return _refused(error.response["Error"]["Code"], **fields)
    raise AssertionError("the table carries out by HTTP what it refused without")


def _refused(code: str, **fields: Any) -> AwsResponse:
    return AwsResponse(400, None, json.dumps({"__type": code, **fields}, default=json_client._base64).encode())
