"""Compare outcomes of the store by type and value, and change single fields of them."""

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def same(got: object, expected: object) -> bool:
    """Return whether both have the same type and value: as tuples `LeaseTaken(5)` and `LeaseAcquired(5)` are equal."""
    return type(got) is type(expected) and got == expected


def parts(outcome: Any) -> dict[str, Any]:
    names = [field.name for field in fields(outcome)] if is_dataclass(outcome) else outcome._fields
    return {name: getattr(outcome, name) for name in names}


def changed(outcome: T, **changes: Any) -> T:
    return type(outcome)(**parts(outcome) | changes)
