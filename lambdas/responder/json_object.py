"""The type of a JSON object, such as an event, a request or an answer."""

from typing import Any

Json = dict[str, Any]
