"""The type of a JSON object, such as an event, a request or a response, and how an event is written as JSON."""

import json
from typing import Any

Json = dict[str, Any]


def to_json(value: Any) -> bytes:
    """Return the value as JSON. Replace lone surrogates, which UTF-8 cannot encode."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
