"""The base class of all DynamoDB tables. A method takes values and expressions, and returns items, or whether a
condition was met.

In an expression, `#name` stands for an attribute and `:name` for a value. An attribute may therefore have a name that
DynamoDB reserves. Values are Python's: texts, bytes, whole numbers, and sequences and mappings of these.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from message_buffer.aws import clients as aws

Item = dict[str, dict[str, Any]]
"""An item or a key in DynamoDB's form: the name of an attribute -> its type -> its value."""

Value = str | bytes | int | Sequence["Value"] | Mapping[str, "Value"]
Values = Mapping[str, Value]

_PLACEHOLDER = re.compile(r"#(\w+)")


class Updated(NamedTuple):
    done: bool
    """False if the condition failed, so nothing was changed."""
    item: Item
    """The attributes that the argument `returns` asks for, or, if the condition failed, the stored item."""


class ItemPage(NamedTuple):
    items: list[Item]
    is_last: bool


class Table:
    """Sends requests to one table. A request that fails raises SendFailed, whose text begins with `doing`."""

    def __init__(self, name: str, *, patience: aws.Patience = aws.PATIENT) -> None:
        self.name = name
        self._patience = patience

    @property
    def _client(self) -> Any:
        return aws.client("dynamodb", patience=self._patience)

    def _get(self, doing: str, key: Values) -> Item:
        """Return the item, read consistently, or an empty item if there is none."""
        with aws.errors_as_ours(doing):
            response = self._client.get_item(TableName=self.name, Key=encode(key), ConsistentRead=True)
        found: Item = response.get("Item", {})
        return found

    def _put(self, doing: str, item: Values, *, only_if: str = "") -> Updated:
        return self._asked(doing, "put_item", self._new(item, only_if=only_if)["Put"])

    def _update(
        self,
        doing: str,
        key: Values,
        do: str,
        values: Values | None = None,
        *,
        only_if: str = "",
        returns: Literal["NONE", "ALL_OLD", "ALL_NEW"] = "NONE",
    ) -> Updated:
        request = self._change(key, do, values, only_if=only_if)["Update"]
        return self._asked(doing, "update_item", request | {"ReturnValues": returns})

    def _change(self, key: Values, do: str, values: Values | None = None, *, only_if: str = "") -> dict[str, Any]:
        """Return an update of an item, in the form that `_transact` takes."""
        found = expressions(values, UpdateExpression=do, ConditionExpression=only_if)
        return {"Update": {"TableName": self.name, "Key": encode(key), **found}}

    def _new(self, item: Values, values: Values | None = None, *, only_if: str = "") -> dict[str, Any]:
        """Return a write of a whole item, in the form that `_transact` takes."""
        found = expressions(values, ConditionExpression=only_if)
        return {"Put": {"TableName": self.name, "Item": encode(item), **found}}

    def _delete(self, key: Values, values: Values | None = None, *, only_if: str = "") -> dict[str, Any]:
        """Return a deletion of an item, in the form that `_transact` takes."""
        found = expressions(values, ConditionExpression=only_if)
        return {"Delete": {"TableName": self.name, "Key": encode(key), **found}}

    def _asked(self, doing: str, call: str, request: dict[str, Any]) -> Updated:
        if "ConditionExpression" in request:
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        with aws.errors_as_ours(doing):
            try:
                response = getattr(self._client, call)(**request)
            except self._client.exceptions.ConditionalCheckFailedException as refused:
                return Updated(False, refused.response.get("Item", {}))
        return Updated(True, response.get("Attributes", {}))

    def _transact(self, doing: str, writes: Sequence[Mapping[str, Any]]) -> bool:
        """Make all of these writes, or none. Return False if a condition failed."""
        with aws.errors_as_ours(doing):
            try:
                # The client adds an idempotency token, so its own retry does not write twice.
                self._client.transact_write_items(TransactItems=writes)
            except self._client.exceptions.TransactionCanceledException as refused:
                codes = {reason.get("Code") for reason in refused.response.get("CancellationReasons", [])}
                if "ConditionalCheckFailed" not in codes:
                    raise  # another request was writing, or the service is busy, so the caller may try again
                return False
        return True

    def _pages(self, doing: str, call: Literal["query", "scan"], request: Mapping[str, Any]) -> Iterator[Item]:
        """Yield the items of all pages."""
        for page in self._each_page(doing, call, request):
            yield from page.items

    def _each_page(
        self,
        doing: str,
        call: Literal["query", "scan"],
        request: Mapping[str, Any],
        *,
        later: Mapping[str, Any] | None = None,
    ) -> Iterator[ItemPage]:
        """Yield the pages. From the second page on, the arguments in `later` replace those in `request`."""
        request = {"TableName": self.name, **request}
        with aws.errors_as_ours(doing):
            while True:
                page = getattr(self._client, call)(**request)
                is_last = "LastEvaluatedKey" not in page
                yield ItemPage(page["Items"], is_last)
                if is_last:
                    return
                request = {**request, **(later or {}), "ExclusiveStartKey": page["LastEvaluatedKey"]}


def expressions(values: Values | None = None, **texts: str) -> dict[str, Any]:
    """Return a request's arguments: the expressions that are not empty, and the names and values in them."""
    request: dict[str, Any] = {parameter: text for parameter, text in texts.items() if text}
    if names := {f"#{name}": name for text in texts.values() for name in _PLACEHOLDER.findall(text)}:
        request["ExpressionAttributeNames"] = names
    if values:
        request["ExpressionAttributeValues"] = encode({f":{name}": value for name, value in values.items()})
    return request


def encode(values: Values) -> Item:
    return {name: _encoded(value) for name, value in values.items()}


def _encoded(value: Value) -> dict[str, Any]:
    match value:
        case str():
            return {"S": value}
        case bytes():
            return {"B": value}
        case int():
            return {"N": str(value)}
        case Mapping():
            return {"M": encode(value)}
        case _:
            return {"L": [_encoded(each) for each in value]}


def text(item: Mapping[str, Any], name: str) -> str:
    """Return an attribute's text, or an empty text if the item does not have the attribute."""
    return str(item.get(name, {}).get("S", ""))


def number(item: Mapping[str, Any], name: str) -> int:
    """Return an attribute's whole number, or 0 if the item has no such number, for example because someone edited it by
    hand."""
    try:
        return int(item.get(name, {}).get("N", 0))
    except ValueError:
        return 0


def texts(item: Mapping[str, Any], name: str) -> list[str]:
    return [each["S"] for each in item.get(name, {}).get("L", [])]
