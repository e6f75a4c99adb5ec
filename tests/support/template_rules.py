"""Checks whether AWS accepts a template: with all rules of cfn-lint, and against the limits of size."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from cfnlint.config import ConfigMixIn, ManualArgs
from cfnlint.decode.decode import decode_str
from cfnlint.runner import Runner

from infra.function import MAX_VARIABLES_BYTES
from infra.settings_and_defaults import MAX_STAGE_NAME_LENGTH, STACKS

Template = dict[str, Any]

# One region of each continent in which we expect stages. cfn-lint knows what each region offers.
REGIONS = ("us-east-1", "eu-central-1", "ap-southeast-2")
# The rules that our templates break on purpose, each with the reason.
ACCEPTED = {
    "W3010": "A stage that names its account names its zones, because CDK would otherwise look them up in the account.",
    "I1022": "CDK joins strings with Fn::Join; Fn::Sub would mean the same.",
    "I4010": "It wants a description of the architecture in each template; docs/design.md describes ours.",
}
# From the pages "CloudFormation quotas", "Lambda quotas" and "IAM and AWS STS quotas". CDK uploads the templates, so
# that the limit of 51,200 bytes for a template inside a request does not apply.
LIMITS = {
    "bytes of a template": 1_000_000,
    "resources of a stack": 500,
    "outputs of a stack": 200,
    "parameters of a stack": 200,
    "bytes of a function's variables": MAX_VARIABLES_BYTES,
    "characters of a role's own policies": 10_240,
}

# What precedes the name in the value of a reference, in a region whose name has 14 characters, and how long the name of
# such a resource may be.
NAMED = {
    "AWS::DynamoDB::Table": ("", 255),
    "AWS::Lambda::Function": ("", 64),
    "AWS::S3::Bucket": ("", 63),
    "AWS::SQS::Queue": ("https://sqs.ap-southeast-2.amazonaws.com/111122223333/", 80),
    "AWS::SecretsManager::Secret": ("arn:aws:secretsmanager:ap-southeast-2:111122223333:secret:", 512),
}
# CloudFormation makes a name of the stack's name, the resource's logical id, and this much that is random. Secrets
# Manager appends as much to a secret's ARN.
LONGEST_STACK = f"MessageBuffer-{'x' * MAX_STAGE_NAME_LENGTH}-{max(STACKS, key=len)}"
RANDOM = "-abcdefghijkl"
# Of an event bus, which has the longest of the other names, and of an exported value.
MAX_BYTES_OF_A_NAME = 256


def findings_of_lint(template: Template, *, regions: Sequence[str]) -> list[str]:
    """Return the findings of all rules of cfn-lint, also of informational and experimental rules."""
    return list(_findings(json.dumps(template), tuple(regions)))


# Stages differ in a few of their templates only, so most templates are asked for again.
@cache
def _findings(template: str, regions: tuple[str, ...]) -> tuple[str, ...]:
    decoded, unreadable = decode_str(template)
    return tuple(
        f"{match.rule.id} {match.message} at {'/'.join(map(str, match.path or ()))}"
        for match in unreadable or _linter(regions).validate_template(decoded)
    )


@cache
def _linter(regions: tuple[str, ...]) -> Runner:
    # Loading the rules takes as long as applying them to a template.
    return Runner(ConfigMixIn(**ManualArgs(include_checks=["I"], include_experimental=True, regions=list(regions))))


def unaccepted(findings: Sequence[str]) -> list[str]:
    """Return the findings of rules that are not in ACCEPTED."""
    return [finding for finding in findings if finding.partition(" ")[0] not in ACCEPTED]


def covering(templates: Mapping[str, Template]) -> set[str]:
    """Return the names of some of the templates, which together have every property and every action of all."""
    seen: set[tuple[str, ...]] = set()
    chosen = set()
    # A large template covers most of the smaller ones.
    for name in sorted(templates, key=lambda name: (-len(json.dumps(templates[name])), name)):
        features = set(_features(templates[name], ()))
        if not features <= seen:
            seen |= features
            chosen.add(name)
    return chosen


def _features(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each property, which begins with the type of its resource, and each action of a policy."""
    if isinstance(value, dict):
        for key, each in value.items():
            if path == ("Resources",):
                # Without the resource's name, which alone would make every template special.
                yield from _features(each, (each["Type"],))
            else:
                yield from _features(each, (*path, key))
    elif isinstance(value, list):
        for each in value:
            yield from _features(each, path)
    elif path[-1] == "Action":
        yield (*path, str(value))
    else:
        yield path


def usage(template: Template) -> Counter[str]:
    """Return how much of each limit in LIMITS the template uses."""
    used: Counter[str] = Counter()
    # CDK writes templates with this indentation.
    used["bytes of a template"] = len(json.dumps(template, indent=1).encode())
    for section in ("resources", "outputs", "parameters"):
        used[f"{section} of a stack"] = len(template.get(section.capitalize(), {}))
    used["bytes of a function's variables"] = max(_environments(template), default=0)
    used["characters of a role's own policies"] = max(_policies(template).values(), default=0)
    return used


def exceeded(template: Template, note: Callable[[str, object], None]) -> list[str]:
    """Return the limits that the template exceeds. Call `note` with each limit and how much of it is used."""
    used = usage(template)
    for limit, amount in used.items():
        note(limit, amount)
    return [f"{used[limit]:,} {limit}, at most {most:,}" for limit, most in LIMITS.items() if used[limit] > most]


def _environments(template: Template) -> Iterator[int]:
    for function in _of_kind(template, "AWS::Lambda::Function").values():
        variables = function.get("Environment", {}).get("Variables", {})
        yield sum(len(name) + _longest(value, template["Resources"]) for name, value in variables.items())


def _longest(value: Any, resources: Template) -> int:
    """Return the bytes of a value after the deployment, if AWS gives each resource the longest name."""
    match value:
        case str():
            return len(value.encode())
        case {"Fn::Join": [_, parts]}:
            return sum(_longest(part, resources) for part in parts)
        case {"Ref": str(name)} if (kind := resources.get(name, {}).get("Type")) in NAMED:
            before, longest = NAMED[kind]
            return len(before) + min(longest, len(f"{LONGEST_STACK}-{name}{RANDOM}{RANDOM}"))
    return MAX_BYTES_OF_A_NAME


def _policies(template: Template) -> Counter[str]:
    """Return the characters of each role's policies. An intrinsic function counts with its own length."""
    sizes: Counter[str] = Counter()
    for name, role in _of_kind(template, "AWS::IAM::Role").items():
        sizes[name] += sum(_length(policy["PolicyDocument"]) for policy in role.get("Policies", []))
    for policy in _of_kind(template, "AWS::IAM::Policy").values():
        for role in policy.get("Roles", []):
            sizes[str(role.get("Ref"))] += _length(policy["PolicyDocument"])
    return sizes


def _length(document: Any) -> int:
    # IAM does not count white space.
    return len(json.dumps(document, separators=(",", ":")))


def _of_kind(template: Template, kind: str) -> dict[str, Any]:
    return {
        name: resource.get("Properties", {})
        for name, resource in template.get("Resources", {}).items()
        if resource["Type"] == kind
    }
