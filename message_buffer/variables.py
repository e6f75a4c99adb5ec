"""Passes a function its settings in environment variables: `to_variables` makes them, and `read_settings` reads them.

Almost all settings are in the variable SETTINGS, as JSON. A field that is None or has its default value is left out.
Beside it, a function has the settings in OWN_VARIABLES, and the two variables from which Powertools reads the names of
the service and of the metrics' namespace.
"""

import json
import os
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from message_buffer.errors import InvalidSettings

S = TypeVar("S")

SETTINGS = "SETTINGS"
# The settings whose variables docs/design.md names, by their path in the settings.
OWN_VARIABLES = {
    "valkey.connection.url": "REDIS_URL",
    "valkey.processor_function": "PROCESSOR_FUNCTION_NAME",
    "conversation_processor_function": "CONVERSATION_PROCESSOR_FUNCTION_NAME",
}


def to_variables(settings: tuple[Any, ...]) -> dict[str, str]:
    """Return the variables that contain the settings. The values of fields may be CDK's tokens."""
    own: dict[str, str] = {}
    fields = _to_json(settings, "", own)
    return own | {SETTINGS: json.dumps(fields, ensure_ascii=False, separators=(",", ":"))}


def _to_json(value: Any, path: str, own: dict[str, str]) -> Any:
    """Return a value for JSON. Put the settings that have variables of their own into `own` instead."""
    if not hasattr(value, "_fields"):
        return value
    found = {}
    for name, each in value._asdict().items():
        if each is None or each == value._field_defaults.get(name):
            continue
        field = _below(path, name)
        if field in OWN_VARIABLES:
            own[OWN_VARIABLES[field]] = each
        else:
            found[name] = _to_json(each, field, own)
    return found


def read_settings(kind: type[S], variables: Mapping[str, str] | None = None) -> S:
    """Return the settings from `variables`, or from the environment.

    Raise InvalidSettings if a field is missing, unknown or of another type. The error names the field, but never its
    value.
    """
    given = os.environ if variables is None else variables
    try:
        fields = json.loads(given.get(SETTINGS, ""))
    except ValueError:
        raise InvalidSettings(f"{SETTINGS} is missing or not JSON.") from None
    settings: S = _decode(kind, fields, "", given)
    return settings


def _decode(kind: Any, value: Any, path: str, variables: Mapping[str, str]) -> Any:
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    if hasattr(kind, "_fields"):
        return _decode_fields(kind, value, path, variables)
    of, kind = get_args(kind), get_origin(kind) or kind
    if kind is tuple and type(value) is list:
        return tuple(_decode(of[0], each, path, variables) for each in value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise InvalidSettings(f"{_name(path)} must have the type {kind.__name__}.")
    return value


def _decode_fields(kind: Any, value: Any, path: str, variables: Mapping[str, str]) -> Any:
    if type(value) is not dict:
        raise InvalidSettings(f"{_name(path)} must be a JSON object.")
    if unknown := value.keys() - set(kind._fields):
        raise InvalidSettings(f"{_name(_below(path, min(unknown)))} is unknown.")
    found = dict(kind._field_defaults)
    for name, of in kind.__annotations__.items():
        field = _below(path, name)
        given = variables.get(OWN_VARIABLES[field]) if field in OWN_VARIABLES else value.get(name)
        if given is not None:
            found[name] = _decode(of, given, field, variables)
        elif NoneType in get_args(of):
            found[name] = None
        elif name not in found:
            raise InvalidSettings(f"{_name(field)} is missing.")
    return kind(**found)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(path: str) -> str:
    """Return the name of a setting for an error's text."""
    return OWN_VARIABLES.get(path) or f"{SETTINGS}.{path}".rstrip(".")
