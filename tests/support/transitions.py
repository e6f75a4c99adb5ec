"""Simulates deployments over each other, and reports what CloudFormation would refuse, replace, delete or leave.

The rules below are from CloudFormation's documentation. cfn-lint's resource schemas list the properties whose change
replaces a resource.
"""

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

Template = dict[str, Any]
Resource = dict[str, Any]

# Their names need not be unique in an account and region.
NOT_UNIQUE = {"AWS::ApiGateway::RestApi", "AWS::ApiGatewayV2::Api", "AWS::Lambda::Alias"}
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
PSEUDO = {
    "AWS::AccountId": "111122223333",
    "AWS::Region": "us-east-1",
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}


@dataclass
class Stage:
    """The stacks that exist in an account, and what retained resources occupy there."""

    stacks: dict[str, Template] = field(default_factory=dict)
    retained: set[tuple[str, str]] = field(default_factory=set)
    """The kinds and names of retained resources, which cannot be used again."""

    def deploy(self, app: Mapping[str, Template]) -> list[str]:
        """Deploy the stacks of `app` in its order. Return what CloudFormation would refuse, and what would be lost.

        As with CDK, stacks that are not in `app` remain.
        """
        found = []
        for name, template in app.items():
            new, old = resolved(template), self.stacks.get(name, {})
            # CloudFormation creates all new resources before it deletes old ones, so they must not collide.
            found += [f"{name}: {problem}" for problem in self._problems(name, old, new)]
            self._keep(old, new)
            self.stacks[name] = new
        return found

    def fail(self, app: Mapping[str, Template], at: str) -> list[str]:
        """Deploy `app` up to the stack `at`, and roll that one back. Return what would be refused or is missing."""
        found = self.deploy({name: app[name] for name in list(app)[: list(app).index(at)]})
        return found + [f"{at}: {problem}" for problem in self._outputs_read(at, self.stacks.get(at, {}))]

    def delete(self, name: str) -> list[str]:
        """Delete a stack. Return what CloudFormation would refuse, and what would be lost."""
        old = self.stacks[name]
        found = [*self._exports(name, old, {})]
        self._keep(self.stacks.pop(name), {})
        return [f"{name}: {problem}" for problem in found]

    def left_over(self, app: Mapping[str, Template]) -> list[str]:
        """Return the stacks that exist although `app` no longer has them."""
        return [name for name in self.stacks if name not in app]

    def _problems(self, name: str, old: Template, new: Template) -> Iterator[str]:
        yield from self._exports(name, old, new)
        yield from self._outputs_read(name, new)
        replaced = set(_replaced(old, new))
        for logical_id in sorted(replaced):
            kind = resources(new)[logical_id]["Type"]
            if "DeletionPolicy" in resources(old)[logical_id]:
                yield f"{kind} {logical_id} is replaced"
            name_before, name_after = (_name(resources(each)[logical_id]) for each in (old, new))
            if name_after and name_after == name_before:
                yield f"{kind} {logical_id} is replaced and has a fixed name"
        yield from self._collisions(name, old, new)
        yield from self._stale_readers(name, old, new, replaced)

    def _exports(self, name: str, old: Template, new: Template) -> Iterator[str]:
        """Yield the exports that would change or vanish although another stack imports them."""
        before, after = exports(old), exports(new)
        gone = {export for export, value in before.items() if after.get(export) != value}
        for other, template in self.stacks.items():
            if other != name:
                yield from (f"export {export} is in use by {other}" for export in sorted(gone & imports(template)))

    def _outputs_read(self, name: str, new: Template) -> Iterator[str]:
        """Yield the missing outputs of other stacks that this stack would read."""
        for stack, output in sorted(weak_references(new)):
            if stack != name and output not in self.stacks.get(stack, {}).get("Outputs", {}):
                yield f"output {output} of {stack} does not exist"

    def _collisions(self, name: str, old: Template, new: Template) -> Iterator[str]:
        taken = {
            (resource["Type"], _name(resource)): stack
            for stack, template in self.stacks.items()
            for logical_id, resource in resources(template).items()
            if stack != name or resources(new).get(logical_id, {}).get("Type") != resource["Type"]
        }
        for logical_id, resource in resources(new).items():
            key = (resource["Type"], _name(resource))
            if not key[1] or resources(old).get(logical_id, {}).get("Type") == key[0]:
                continue
            if key in taken:
                yield f"{key[0]} {logical_id} has the name {key[1]} of a resource of {taken[key]}"
            if key in self.retained:
                yield f"{key[0]} {logical_id} has the name {key[1]} of a retained resource"

    def _stale_readers(self, name: str, old: Template, new: Template, replaced: set[str]) -> Iterator[str]:
        """Yield the stacks that would keep a replaced resource's old id, because CDK skips an unchanged template."""
        changed = {
            output
            for output, value in new.get("Outputs", {}).items()
            if output in old.get("Outputs", {}) and references(value) & replaced
        }
        for other, template in self.stacks.items():
            for output in sorted(changed):
                if other != name and (name, output) in weak_references(template):
                    yield f"{other} would not notice that output {output} has another value"

    def _keep(self, old: Template, new: Template) -> None:
        """Record the retained resources that the new template no longer has."""
        for resource in _gone(old, new).values():
            if _is_kept(resource) and (name := _name(resource)):
                self.retained.add((resource["Type"], name))


def removed(old: Mapping[str, Template], new: Mapping[str, Template]) -> set[str]:
    """Return the resources with data that their stacks no longer have, each with `kept` or `deleted`.

    The templates give a deletion policy to these, and to no others.
    """
    return {
        f"{logical_id} {'kept' if _is_kept(resource) else 'deleted'}"
        for name in old.keys() & new.keys()
        for logical_id, resource in _gone(old[name], new[name]).items()
        if "DeletionPolicy" in resource
    }


def _gone(old: Template, new: Template) -> dict[str, Resource]:
    return {logical_id: each for logical_id, each in resources(old).items() if logical_id not in resources(new)}


def _is_kept(resource: Resource) -> bool:
    return str(resource.get("DeletionPolicy", "Delete")).startswith("Retain")


def resources(template: Template) -> dict[str, Resource]:
    found: dict[str, Resource] = template.get("Resources", {})
    return found


def exports(template: Template) -> dict[str, str]:
    """Return the exports with their values."""
    outputs = template.get("Outputs", {}).values()
    return {str(each["Export"]["Name"]): json.dumps(each["Value"]) for each in outputs if "Export" in each}


def imports(template: Any) -> set[str]:
    return {str(value) for key, value in intrinsics(template) if key == "Fn::ImportValue"}


def weak_references(template: Template) -> set[tuple[str, str]]:
    """Return the stack and the output of each reference by `Fn::GetStackOutput`."""
    return {
        (value["StackName"], value["OutputName"]) for key, value in intrinsics(template) if key == "Fn::GetStackOutput"
    }


def references(value: Any) -> set[str]:
    """Return the logical ids that a value refers to."""
    found = set()
    for key, argument in intrinsics(value):
        if key == "Ref":
            found.add(argument)
        elif key == "Fn::GetAtt":
            found.add(argument[0] if isinstance(argument, list) else argument.partition(".")[0])
        elif key == "Fn::Sub":
            text = argument[0] if isinstance(argument, list) else argument
            found |= {name.partition(".")[0] for name in re.findall(r"\$\{([\w.:]+)\}", text)}
    return found


def resolved(template: Template) -> Template:
    """Return the template, with account, region, zones and joined strings filled in."""
    found: Template = _resolve(copy.deepcopy(template))
    return found


def _resolve(value: Any) -> Any:
    if isinstance(value, list):
        return [_resolve(each) for each in value]
    if isinstance(value, dict):
        return _resolve_intrinsic({key: _resolve(each) for key, each in value.items()})
    return value


def _resolve_intrinsic(value: dict[str, Any]) -> Any:
    match value:
        case {"Ref": str(name)} if name in PSEUDO:
            return PSEUDO[name]
        case {"Fn::GetAZs": _}:
            return list(ZONES)
        case {"Fn::Select": [index, list(items)]}:
            return items[int(index)]
        case {"Fn::Join": [str(separator), list(parts)]} if all(isinstance(part, str) for part in parts):
            return separator.join(parts)
    return value


def intrinsics(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, argument in value.items():
            if key == "Ref" or key.startswith("Fn::"):
                yield key, argument
            yield from intrinsics(argument)
    elif isinstance(value, list):
        for each in value:
            yield from intrinsics(each)


def _name(resource: Resource) -> str | None:
    """Return the resource's name if no other resource of its kind may have it, and the template chooses it."""
    kind = resource["Type"].rpartition(":")[2]
    names = (resource.get("Properties", {}).get(name) for name in (f"{kind}Name", f"{kind}Id", "AlarmName", "Name"))
    found = next((name for name in names if isinstance(name, str)), None)
    return None if resource["Type"] in NOT_UNIQUE else found


@functools.cache
def _replacing(kind: str) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the properties whose change replaces the resource."""
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema
    paths = [*schema.get("createOnlyProperties", []), *schema.get("conditionalCreateOnlyProperties", [])]
    return tuple(tuple(path.split("/")[2:]) for path in paths)


def _at(value: Any, path: Sequence[str]) -> list[Any]:
    """Return the values at a path, in which `*` is every item of a list."""
    for part in path:
        if part == "*":
            return [found for each in value or [] for found in _at(each, path[path.index(part) + 1 :])]
        value = value.get(part) if isinstance(value, dict) else None
    return [] if value is None else [value]


def _replaced(old: Template, new: Template) -> Iterator[str]:
    """Yield the logical ids of the resources that CloudFormation would replace, with those that depend on them."""
    found: set[str] = set()
    while True:
        more = {
            logical_id
            for logical_id, resource in resources(new).items()
            if logical_id in resources(old)
            and logical_id not in found
            and _must_replace(resources(old)[logical_id], resource, found)
        }
        if not more:
            yield from found
            return
        found |= more


def _must_replace(old: Resource, new: Resource, replaced: set[str]) -> bool:
    if old["Type"] != new["Type"]:
        return True
    for path in _replacing(new["Type"]):
        before, after = (_at(each.get("Properties", {}), path) for each in (old, new))
        if before != after or references(after) & replaced:
            return True
    return False
