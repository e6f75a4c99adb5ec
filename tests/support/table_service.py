"""DynamoDB in the tests' own process: moto's tables, called without the HTTP request that moto would have to read.

Signing a request, writing it and parsing it again takes four times as long as what the table does with it. The DynamoDB
lane's tests make some fifty thousand requests, so they call the table itself.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from botocore import xform_name
from botocore.validate import ParamValidator
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.responses import DynamoHandler

Call = Callable[[str, Mapping[str, Any]], Any]

# Replaces `clients.OURS`, so that every client is the SDK's, because moto intercepts only the SDK's requests.
OF_THE_SDK: frozenset[str] = frozenset()

ON_ITEMS = {
    "BatchGetItem", "BatchWriteItem", "DeleteItem", "GetItem", "PutItem", "Query", "TransactWriteItems", "UpdateItem",
}  # fmt: skip


@contextmanager
def answering_without_http(client: Any) -> Iterator[None]:
    """Answer the client's calls about items by calling moto's tables. Every other call takes moto's usual way."""
    with patch.object(client, "_make_api_call", _without_http(client, client._make_api_call)):
        yield


def empty(client: Any, table: str) -> None:
    """Remove all items of a table, which is quicker than making the table anew."""
    dynamodb_backends[DEFAULT_ACCOUNT_ID][client.meta.region_name].tables[table].items.clear()


def _without_http(client: Any, by_http: Call) -> Call:
    validator = ParamValidator()
    model = client.meta.service_model

    def call(operation: str, request: Mapping[str, Any]) -> Any:
        if operation not in ON_ITEMS:
            return by_http(operation, request)
        if validator.validate(request, model.operation_model(operation).input_shape).has_errors():
            return by_http(operation, request)
        handler = DynamoHandler()
        handler.current_account, handler.region = DEFAULT_ACCOUNT_ID, client.meta.region_name
        handler.body = _copied(request)
        try:
            answer = getattr(handler, xform_name(operation))()
        except Exception:  # noqa: BLE001 - a refused request changes nothing: ask again for moto's own error
            return by_http(operation, request)
        return _copied(answer.result)

    return call


def _copied(value: Any) -> Any:
    """Return a copy of what JSON can hold: neither side may see the other change it."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return value
