"""The layers of rules: which of them apply to a message, how they are merged, and which layer set a field.

    defaults <- platform <- deployed <- stage <- tenant <- agent <- conversation

In each layer, the preset is applied first, then the layer's own fields, then its override for the message's platform.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from message_buffer.errors import InvalidRules
from message_buffer.json_object import Json
from message_buffer.rules.rules_and_defaults import RULE_FIELDS, CheckedModel, RuleLayer, Rules, RuleValue


class Origin(NamedTuple):
    """The layer from which a field has its value."""

    layer: str
    via: str
    version: int | None


class SkippedLayer(NamedTuple):
    layer: str
    reason: str


DEPLOYED = "deployed"
_DEFAULT = Origin("defaults", "default", None)


class ResolvedRules(NamedTuple):
    rules: Rules
    origins: Mapping[str, Origin]
    """A field's Python name -> its origin, for the fields that a layer set."""
    skipped: tuple[SkippedLayer, ...] = ()
    """The layers that were left out, because each would have made the rules invalid. Report them to the operator."""

    def explain(self) -> dict[str, Json]:
        """Return the value of each rule, by wire name, and the layer that it comes from."""
        explained: dict[str, Json] = {}
        for name, wire_name in RULE_FIELDS.items():
            layer, via, version = self.origins.get(name, _DEFAULT)
            value = getattr(self.rules, name)
            value = value.model_dump() if isinstance(value, CheckedModel) else value
            explained[wire_name] = {"value": value, "layer": layer, "via": via, "version": version}
        return explained


def resolve_rules(layers: Iterable[RuleLayer], platform: str = "", numbers: RuleLayer | None = None) -> ResolvedRules:
    """Merge the layers, the lowest first, for a message of this platform. Never raise, so that ingest can go on.

    If the merged rules are invalid, begin with as many of the lowest layers as are valid together. Then add the others
    one by one. Skip each layer that makes the rules invalid, and name it in `skipped`. The result depends only on the
    arguments, so a caller may cache it until a layer changes. `numbers` is the layer `platform`, which applies only if
    all layers are valid together.
    """
    layers = tuple(layers)
    if numbers and not (resolved := resolve_rules((numbers, *layers), platform)).skipped:
        return resolved
    kept, resolved = _longest_valid_run(layers, platform)
    skipped = []
    for layer in layers[len(kept) :]:
        try:
            resolved = _merge((*kept, layer), platform)
            kept = (*kept, layer)
        except InvalidRules as error:
            skipped.append(SkippedLayer(layer.name, str(error)))
    return resolved._replace(skipped=tuple(skipped))


def _longest_valid_run(layers: tuple[RuleLayer, ...], platform: str) -> tuple[tuple[RuleLayer, ...], ResolvedRules]:
    for length in range(len(layers), 0, -1):
        with suppress(InvalidRules):
            return layers[:length], _merge(layers[:length], platform)
    return (), _merge((), platform)


def read_layer(scope: str, rules: Mapping[str, Any], *, version: int | None = None) -> RuleLayer:
    """Return the layer of a scope. Raise InvalidRules, with a line for each problem."""
    if ours := {"name", "version"} & rules.keys():
        raise InvalidRules("\n".join(f"{field}: unknown field; remove it" for field in sorted(ours)))
    if "quota" in rules and not scope.startswith("tenant:"):
        raise InvalidRules("quota: unknown field; remove it, or set it for the tenant or the account")
    return RuleLayer.model_validate({**rules, "name": scope, "version": version})


def problems_of_deployed(rules: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the functions would ignore these rules of `cdk.json`, a line for each."""
    try:
        layer = read_layer(DEPLOYED, rules)
    except InvalidRules as error:
        return str(error).splitlines()
    found: dict[str, str] = {}
    for platform in ("", *layer.platform_overrides):
        for skipped in resolve_rules([layer], platform).skipped:
            for problem in skipped.reason.splitlines():
                found.setdefault(problem, f"on {platform}, {problem}" if platform else problem)
    return list(found.values())


def _merge(layers: tuple[RuleLayer, ...], platform: str) -> ResolvedRules:
    merged: dict[str, RuleValue] = {}
    origins: dict[str, Origin] = {}
    for layer in layers:
        for via, values in layer.steps_on(platform):
            merged.update(values)
            origins.update(dict.fromkeys(values, Origin(layer.name, via, layer.version)))
    return ResolvedRules(Rules.model_validate(merged), origins)
