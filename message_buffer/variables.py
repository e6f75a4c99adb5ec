"""Reads a function's environment variables as texts, whole numbers or JSON objects."""

import json
from collections.abc import Mapping
from typing import Any

from message_buffer.errors import InvalidSettings


class Variables:
    """Raises InvalidSettings for a missing or invalid variable. The error names the variable, but not its value."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def optional(self, name: str) -> str | None:
        return self._variables.get(name) or None

    def text(self, name: str) -> str:
        value = self.optional(name)
        if value is None:
            raise InvalidSettings(f"The environment variable {name} is missing.")
        return value

    def whole(self, name: str, *, at_least: int = 1) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit()) or int(text) < at_least:
            raise InvalidSettings(f"The environment variable {name} must be a whole number from {at_least}.")
        return int(text)

    def object(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.text(name))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise InvalidSettings(f"The environment variable {name} must be a JSON object.")
        return value
