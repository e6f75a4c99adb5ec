"""The type of a JSON object, such as an event, a request or a response."""

from typing import Any

Json = dict[str, Any]
