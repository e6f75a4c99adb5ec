"""The table of the rules that operators change: one item for each scope, and one that counts the changes.

The version of an item is the table's version when it was written, so two writes never have the same version.
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
    """The rules as JSON has them, or None if they are not JSON, or are too long."""
    version: int
    updated_by: str | None
    updated_at_ms: int | None


class RulesTable:
    def __init__(self, table_name: str) -> None:
        self._table_name = table_name

    def version(self) -> int:
        """Return the table's version, which every write changes; it is 0 before the first. Raises SendFailed."""
        with aws.errors_as_ours("read version of rules"):
            return _number(self._item(VERSION_SCOPE), "version") or 0

    def read_all(self) -> list[StoredRules]:
        """Return the rules of all scopes. Raises SendFailed."""
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
        """Store the rules of a scope and return their version.

        `expected_version` is the version of the rules that these replace: 0 if there must be none, None if that does
        not matter. Raises RulesConflict, InvalidInput if the rules are too long, or SendFailed.
        """
        text = json.dumps(rules, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) > MAX_RULES_BYTES:
            raise InvalidInput(f"the rules of a scope have at most {MAX_RULES_BYTES} bytes")
        version, _ = self._write(scope, {"rules": {"S": text}}, by=by, at_ms=at_ms, expected_version=expected_version)
        return version

    def delete(self, scope: str, *, by: str, at_ms: int, expected_version: int | None) -> bool:
        """Delete the rules of a scope, and return whether there were any. Raises RulesConflict or SendFailed."""
        if scope == VERSION_SCOPE:
            return False
        _, existed = self._write(scope, None, by=by, at_ms=at_ms, expected_version=expected_version)
        return existed

    def _write(
        self, scope: str, fields: Item | None, *, by: str, at_ms: int, expected_version: int | None
    ) -> tuple[int, bool]:
        """Write the item, or delete it if there are no fields. Return the table's version, and whether it existed."""
        with aws.errors_as_ours("write rules"):
            for _ in range(TRIES):
                # Read the version first. If it has not changed when we write, nothing that was read after it has.
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
        raise RulesConflict(f"the rules of {scope} have changed since they were read")

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
    """Return an item, even if a person has spoiled it in the console."""
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
