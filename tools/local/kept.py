"""What the local stage keeps from one start to the next, in `kept.json`: its port, its webhook secrets, its rules."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.local.outputs import Outputs


@dataclass(frozen=True)
class Kept:
    """The content of kept.json."""

    emulator_port: int | None = None
    webhook_secrets: dict[str, Any] = field(default_factory=dict)
    """By platform, as Secrets Manager has them."""
    rules: list[dict[str, Any]] = field(default_factory=list)
    """The items of the rules' table, in DynamoDB's JSON. One of them is the table's version."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Kept:
        try:
            return cls(**json.loads(path.read_text()))
        except (FileNotFoundError, TypeError, ValueError):
            return cls()


def read_rules(outputs: Outputs) -> list[dict[str, Any]]:
    pages = outputs.client("dynamodb").get_paginator("scan").paginate(TableName=outputs.RulesTableName)
    return [item for page in pages for item in page["Items"]]


def put_rules(outputs: Outputs, items: list[dict[str, Any]]) -> None:
    for item in items:
        outputs.client("dynamodb").put_item(TableName=outputs.RulesTableName, Item=item)


def count_rules(items: list[dict[str, Any]]) -> int:
    """Return how many scopes have rules."""
    return sum("rules" in item for item in items)
