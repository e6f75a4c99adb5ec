"""The table of the rules that operators change: one item a scope, and one that counts the changes.

The version of an item is the table's version when it was written, so no two writes ever have the same.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from message_buffer.aws import clients as aws
from message_buffer.errors import InvalidInput, RulesConflict

VERSION_SCOPE = "!version"
MAX_RULES_BYTES = 65_536
# Each try lost means that somebody else's write came through.
TRIES = 5

Item = dict[str, dict[str, Any]]


class StoredRules(NamedTuple):
    scope: str
    rules: Any
    """As JSON has them; None if they are no JSON, or too long to be rules."""
    version: int
    updated_by: str | None
    updated_at_ms: int | None


class RulesTable:
    def __init__(self, table_name: str) -> None:
        self._table_name = table_name

    def version(self) -> int:
        """It is another one after every write; 0 before the first."""
        with aws.errors_as_ours("read version of rules"):
            return _number(self._item(VERSION_SCOPE), "version") or 0

    def read_all(self) -> list[StoredRules]:
        request: dict[str, Any] = {"TableName": self._table_name, "ConsistentRead": True}
        found: list[StoredRules] = []
        with aws.errors_as_ours("read rules"):
            while True:
                page = self._client.scan(**request)
                found += [_stored(item) for item in page["Items"] if item["scope"]["S"] != VERSION_SCOPE]
                if "LastEvaluatedKey" not in page:
                    return found
                request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def put(self, scope: str, rules: Mapping[str, Any], *, by: str, at_ms: int, expected_version: int | None) -> int:
        """The new version. `expected_version`: of the rules that these replace, 0 if there are to be none, None if
        that does not matter. Raises RulesConflict."""
        text = json.dumps(rules, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) > MAX_RULES_BYTES:
            raise InvalidInput(f"the rules of a scope have at most {MAX_RULES_BYTES} bytes")
        version, _ = self._write(scope, {"rules": {"S": text}}, by=by, at_ms=at_ms, expected_version=expected_version)
        return version

    def delete(self, scope: str, *, by: str, at_ms: int, expected_version: int | None) -> bool:
        """Were there any? Raises RulesConflict."""
        if scope == VERSION_SCOPE:
            return False
        _, existed = self._write(scope, None, by=by, at_ms=at_ms, expected_version=expected_version)
        return existed

    def _write(
        self, scope: str, fields: Item | None, *, by: str, at_ms: int, expected_version: int | None
    ) -> tuple[int, bool]:
        """(the table's version, was there an item). Without fields the item is deleted."""
        with aws.errors_as_ours("write rules"):
            for _ in range(TRIES):
                # First: every write changes it, so what is read after it stands unless it is another one by then.
                head = self._item(VERSION_SCOPE)
                item = self._item(scope)
                if expected_version not in (None, _number(item, "version") or 0):
                    break
                version = _number(head, "version") or 0
                if not fields and not item:
                    return version, False
                author = {"version": {"N": str(version + 1)}, "updatedBy": {"S": by}, "updatedAt": {"N": str(at_ms)}}
                change = self._put(scope, fields | author) if fields else self._delete(scope)
                bump = self._put(VERSION_SCOPE, author)
                bump["Put"] |= _unchanged(head)
                try:
                    self._client.transact_write_items(TransactItems=[change, bump])
                except self._client.exceptions.TransactionCanceledException:
                    continue
                return version + 1, bool(item)
        raise RulesConflict(f"the rules of {scope} are no longer those that were read")

    def _item(self, scope: str) -> Item | None:
        answer = self._client.get_item(TableName=self._table_name, Key={"scope": {"S": scope}}, ConsistentRead=True)
        item: Item | None = answer.get("Item")
        return item

    def _put(self, scope: str, fields: Item) -> dict[str, dict[str, Any]]:
        return {"Put": {"TableName": self._table_name, "Item": {"scope": {"S": scope}, **fields}}}

    def _delete(self, scope: str) -> dict[str, dict[str, Any]]:
        return {"Delete": {"TableName": self._table_name, "Key": {"scope": {"S": scope}}}}

    @property
    def _client(self) -> Any:
        return aws.client("dynamodb", patience=aws.HURRIED)


def _unchanged(head: Item | None) -> dict[str, Any]:
    names = {"#v": "version"}
    version = (head or {}).get("version")
    if version is None:
        return {"ConditionExpression": "attribute_not_exists(#v)", "ExpressionAttributeNames": names}
    return {
        "ConditionExpression": "#v = :v",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {":v": version},
    }


def _stored(item: Item) -> StoredRules:
    """Whatever a person made of it in the console."""
    return StoredRules(
        item["scope"]["S"],
        _parsed(item.get("rules", {}).get("S")),
        _number(item, "version") or 0,
        item.get("updatedBy", {}).get("S"),
        _number(item, "updatedAt"),
    )


def _parsed(text: str | None) -> Any:
    if text is None or len(text) > MAX_RULES_BYTES:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(item: Item | None, name: str) -> int | None:
    text = (item or {}).get(name, {}).get("N", "")
    return int(text) if text.isdecimal() else None
