"""The settings of a tenant's conversations, which operators read and replace. They override the stage's settings."""

from collections.abc import Callable, Mapping
from typing import Any

from lambdas.operations import Operation
from lambdas.responder.conversations_table import ConversationsTable
from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import PLATFORM_NAMES

MAX_TENANT_CHARACTERS = 128
# Every prompt contains the instructions. An item of the table has at most 400 KB.
MAX_SETTING_CHARACTERS = 32_000


def _is_text(value: Any, most: int = MAX_SETTING_CHARACTERS) -> bool:
    return isinstance(value, str) and 0 < len(value) <= most


def _are_platforms(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(each in PLATFORM_NAMES for each in value)


TEXT = (_is_text, f"a text of 1 to {MAX_SETTING_CHARACTERS} characters")
# The settings: what checks a value, and what a value that it refuses should be.
CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "projectStatus": (lambda value: value in ("active", "inactive"), "active or inactive"),
    "allowedChannels": (_are_platforms, f"a list of one or more of: {', '.join(PLATFORM_NAMES)}"),
    "instructions": TEXT,
    "model": TEXT,
}


def operations_of(table: ConversationsTable) -> Mapping[str, Operation]:
    def get(event: Json) -> Json:
        tenant = _tenant(event)
        return {"tenant": tenant, "settings": table.tenant_settings(tenant)}

    def replace(event: Json) -> Json:
        tenant, settings = _tenant(event), check_settings(event.get("settings"))
        table.put_tenant_settings(tenant, settings)
        return {"tenant": tenant, "settings": settings}

    return {"tenant.settings.get": get, "tenant.settings.set": replace}


def check_settings(given: Any) -> Json:
    """Return the settings. Raise InvalidInput, with a sentence for each problem."""
    if not isinstance(given, dict):
        raise InvalidInput("settings must be a JSON object.")
    problems = [f"{name} is unknown here; valid: {', '.join(CHECKS)}." for name in given if name not in CHECKS]
    checks = ((name, *CHECKS[name]) for name in CHECKS if name in given)
    problems += [f"{name} must be {wanted}." for name, is_valid, wanted in checks if not is_valid(given[name])]
    if problems:
        raise InvalidInput(" ".join(problems))
    return given


def _tenant(event: Json) -> str:
    tenant = event.get("tenant")
    if not _is_text(tenant, MAX_TENANT_CHARACTERS):
        raise InvalidInput(f"tenant must be a text of 1 to {MAX_TENANT_CHARACTERS} characters.")
    return str(tenant)
