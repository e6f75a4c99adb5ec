"""The table of the rules that operators change: an item for each scope, and an item with the table's version.

Each write raises the table's version, and gives it to the written item. So no two writes have the same version. An item
keeps the version before it as `previous`. The item of deleted rules has only that, and expires.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, number, text
from message_buffer.errors import InvalidInput, RulesConflict
from message_buffer.limits import DAY_MS

# The rules of one scope are limited to this size, as JSON, because an instance reads the rules of all scopes at once.
MAX_RULES_BYTES = 64 * 1024
# A write of rules is tried at most this many times. A try fails only if another operator is writing at the same time.
MAX_RULES_WRITES = 5
# Deleted rules can be brought back for this long.
DELETED_RULES_DAYS = 30
VERSION_SCOPE = "!version"
# The attributes that the next version of an item keeps.
KEPT = ("rules", "version", "updatedBy", "updatedAt")


class StoredRules(NamedTuple):
    scope: str
    rules: Any
    """The parsed JSON, or None if the stored text is empty, too long or not valid JSON."""
    version: int
    updated_by: str | None = None
    updated_at_ms: int | None = None


class RulesTable(Table):
    def __init__(self, name: str) -> None:
        # A webhook waits for this call. If the call fails, the function can go on with the rules that it read last.
        super().__init__(name, patience=aws.HURRIED)

    def version(self) -> int:
        """Return a number that grows with every write, and is 0 before the first write."""
        return number(self._get("read version of rules", _key(VERSION_SCOPE)), "version")

    def read_all(self) -> list[StoredRules]:
        found = self._pages("read rules", "scan", {"ConsistentRead": True})
        return [_stored(item) for item in found if "rules" in item]

    def last_change(self, scope: str) -> list[StoredRules | None]:
        """Return the rules before and after the last change, each None if there were none; nothing if none is known."""
        item = self._get("read rules", _key(scope))
        states = ({**previous["M"], "scope": item["scope"]}, item) if (previous := item.get("previous")) else ()
        return [_stored(each) if "rules" in each else None for each in states]

    def put(self, scope: str, rules: Mapping[str, Any], *, by: str, at_ms: int, expected_version: int | None) -> int:
        """Store rules and return their version. Raise RulesConflict if the stored version is not `expected_version`,
        which is 0 if there must be no rules yet, and None if any version may be replaced."""
        wire = json.dumps(rules, ensure_ascii=False, separators=(",", ":"))
        if len(wire.encode()) > MAX_RULES_BYTES:
            raise InvalidInput(f"the rules of a scope have at most {MAX_RULES_BYTES} bytes")
        version, _ = self._write(scope, {"rules": wire}, by=by, at_ms=at_ms, expected_version=expected_version)
        return version

    def delete(self, scope: str, *, by: str, at_ms: int, expected_version: int | None) -> int | None:
        """Delete the rules of a scope, but keep them as `previous`. Return the table's version, or None if there were
        no rules. Raise RulesConflict as `put` does."""
        expires = {"expires_at": at_ms // 1_000 + DELETED_RULES_DAYS * DAY_MS // 1_000}
        version, existed = self._write(scope, expires, by=by, at_ms=at_ms, expected_version=expected_version)
        return version if existed else None

    def erase(self, scope: str, *, by: str, at_ms: int) -> bool:
        """Delete the rules of a scope and those before them. Return whether it had rules."""
        return self._write(scope, {}, by=by, at_ms=at_ms, expected_version=None)[1]

    def _write(
        self, scope: str, fields: Values, *, by: str, at_ms: int, expected_version: int | None
    ) -> tuple[int, bool]:
        """Write an item, or delete it without fields. Return the table's version, and whether the scope had rules."""
        for _ in range(MAX_RULES_WRITES):
            # Read the table's version before the item. The write below fails if the version has changed since, so it
            # never replaces an item that this call has not seen.
            head = self._get("write rules", _key(VERSION_SCOPE))
            item = self._get("write rules", _key(scope))
            existed = "rules" in item
            if expected_version not in (None, number(item, "version") if existed else 0):
                break
            version = number(head, "version")
            if not existed and not ("rules" in fields if fields else item):
                return version, False
            author: Values = {"version": version + 1, "updatedBy": by, "updatedAt": at_ms}
            change = self._new({**_key(scope), **fields, **author}) if fields else self._delete(_key(scope))
            if fields:
                change["Put"]["Item"]["previous"] = {"M": {name: item[name] for name in KEPT if name in item}}
            unchanged = "#version = :version" if version else "attribute_not_exists(#version)"
            bump = self._new(
                {**_key(VERSION_SCOPE), **author}, {"version": version} if version else None, only_if=unchanged
            )
            with aws.errors_as_ours("write rules"):
                try:
                    self._client.transact_write_items(TransactItems=[change, bump])
                except self._client.exceptions.TransactionCanceledException:
                    continue  # another write came first, or was under way
            return version + 1, existed
        raise RulesConflict(f"the rules of {scope} have changed since they were read")


def _key(scope: str) -> dict[str, str]:
    return {"scope": scope}


def _stored(item: Item) -> StoredRules:
    """Return the rules of an item, which may have been edited by hand."""
    return StoredRules(
        text(item, "scope"),
        _parsed(text(item, "rules")),
        number(item, "version"),
        text(item, "updatedBy") or None,
        number(item, "updatedAt") or None,
    )


def _parsed(wire: str) -> Any:
    if not wire or len(wire) > MAX_RULES_BYTES:
        return None
    try:
        return json.loads(wire)
    except (ValueError, RecursionError):
        return None
