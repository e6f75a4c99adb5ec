"""The settings of a tenant's conversations, which operators read and replace. They override the stage's settings."""

import json
from collections.abc import Mapping
from typing import Any

from lambdas.operations import Operation
from message_buffer.aws.dynamodb import Table, text
from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import PLATFORM_NAMES

PROJECT_STATUSES = ("active", "inactive")
MAX_TENANT_CHARACTERS = 128
MAX_MODEL_CHARACTERS = 2_048
# Every prompt contains the instructions. An item of the table has at most 400 KB.
MAX_INSTRUCTIONS_CHARACTERS = 32_000


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
    problems = [_problem(name, value) for name, value in given.items()]
    if any(problems):
        raise InvalidInput(" ".join(filter(None, problems)))
    return given


def _problem(name: str, value: Any) -> str | None:
    """Return what is wrong with a setting, or None."""
    match name:
        case "projectStatus":
            return None if value in PROJECT_STATUSES else f"{name} must be {' or '.join(PROJECT_STATUSES)}."
        case "allowedChannels":
            is_valid = isinstance(value, list) and value and all(each in PLATFORM_NAMES for each in value)
            names = ", ".join(PLATFORM_NAMES)
            return None if is_valid else f"{name} must be a list of one or more of: {names}. Leave it out to allow all."
        case "instructions":
            return _text_problem(name, value, MAX_INSTRUCTIONS_CHARACTERS)
        case "model":
            return _text_problem(name, value, MAX_MODEL_CHARACTERS)
    return f"{name} is unknown here; valid: projectStatus, allowedChannels, instructions, model."


def _text_problem(name: str, value: Any, most: int) -> str | None:
    is_valid = isinstance(value, str) and 0 < len(value) <= most
    return None if is_valid else f"{name} must be a text of 1 to {most} characters."


def _tenant(event: Json) -> str:
    tenant = event.get("tenant")
    if not isinstance(tenant, str) or not 0 < len(tenant) <= MAX_TENANT_CHARACTERS:
        raise InvalidInput(f"tenant must be a text of 1 to {MAX_TENANT_CHARACTERS} characters.")
    return tenant


def _key(tenant: str) -> dict[str, str]:
    return {"id": f"tenant:{tenant}", "part": "!"}
