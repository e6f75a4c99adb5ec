"""The settings of a tenant's conversations, which operators read and replace. They override the stage's settings."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lambdas.operations import Operation
from message_buffer.aws.dynamodb import Table, text
from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import PLATFORM_NAMES

MAX_TENANT_CHARACTERS = 128
# Every prompt contains the instructions. An item of the table has at most 400 KB.
MAX_INSTRUCTIONS_CHARACTERS = 32_000
MAX_MODEL_CHARACTERS = 2_048


def _is_text(most: int, value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= most


def _are_platforms(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(each in PLATFORM_NAMES for each in value)


# The settings: what checks a value, and what a value that it refuses should be.
CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "projectStatus": (lambda value: value in ("active", "inactive"), "active or inactive"),
    "allowedChannels": (_are_platforms, f"a list of one or more of: {', '.join(PLATFORM_NAMES)}"),
    "instructions": (
        partial(_is_text, MAX_INSTRUCTIONS_CHARACTERS),
        f"a text of 1 to {MAX_INSTRUCTIONS_CHARACTERS} characters",
    ),
    "model": (partial(_is_text, MAX_MODEL_CHARACTERS), f"a text of 1 to {MAX_MODEL_CHARACTERS} characters"),
}


class TenantSettingsTable(Table):
    """The items of tenants in the table of conversations."""

    def read(self, tenant: str) -> Json:
        settings: Json = json.loads(text(self._get("read tenant", _key(tenant)), "settings") or "{}")
        return settings

    def put(self, tenant: str, settings: Json) -> None:
        """Replace all settings of the tenant."""
        self._put("write tenant", _key(tenant) | {"settings": json.dumps(settings)})


def operations_of(table: TenantSettingsTable) -> Mapping[str, Operation]:
    def get(event: Json) -> Json:
        tenant = _tenant(event)
        return {"tenant": tenant, "settings": table.read(tenant)}

    def replace(event: Json) -> Json:
        tenant, settings = _tenant(event), check_settings(event.get("settings"))
        table.put(tenant, settings)
        return {"tenant": tenant, "settings": settings}

    return {"tenant.settings.get": get, "tenant.settings.set": replace}


def check_settings(given: Any) -> Json:
    """Return the settings. Raise InvalidInput, with a sentence for each problem."""
    if not isinstance(given, dict):
        raise InvalidInput("settings must be a JSON object.")
    problems = [f"{name} is unknown here; valid: {', '.join(CHECKS)}." for name in given if name not in CHECKS]
    problems += [
        f"{name} must be {wanted}."
        for name, (is_valid, wanted) in CHECKS.items()
        if name in given and not is_valid(given[name])
    ]
    if problems:
        raise InvalidInput(" ".join(problems))
    return given


def _tenant(event: Json) -> str:
    tenant = event.get("tenant")
    if not _is_text(MAX_TENANT_CHARACTERS, tenant):
        raise InvalidInput(f"tenant must be a text of 1 to {MAX_TENANT_CHARACTERS} characters.")
    return str(tenant)


def _key(tenant: str) -> dict[str, str]:
    return {"id": f"tenant:{tenant}", "part": "!"}
