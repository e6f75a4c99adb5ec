"""Checks whether AWS accepts a template: with all rules of cfn-lint, and against the limits of size."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from cfnlint.config import ConfigMixIn, ManualArgs
from cfnlint.decode.decode import decode_str
from cfnlint.runner import Runner

Template = dict[str, Any]

# One region of each continent in which we expect stages. cfn-lint knows what each region offers.
REGIONS = ("us-east-1", "eu-central-1", "ap-southeast-2")
# The rules that our templates break on purpose, each with the reason.
ACCEPTED = {
    "W3010": "A stage that names its account names its zones, because CDK would otherwise look them up in the account.",
    "I1022": "CDK joins strings with Fn::Join; Fn::Sub would mean the same.",
    "I4010": "It wants a description of the architecture in each template; docs/design.md describes ours.",
}
# From the pages "CloudFormation quotas" and "IAM and AWS STS quotas". CDK uploads the templates, so that the limit of
# 51,200 bytes for a template inside a request does not apply. The app itself refuses too many bytes of variables.
LIMITS = {"bytes": 1_000_000, "Resources": 500, "Outputs": 200, "Parameters": 200, "characters of a role": 10_240}


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


def exceeded(template: Template) -> list[str]:
    """Return the limits that the template exceeds."""
    # CDK writes templates with this indentation.
    used = {"bytes": len(json.dumps(template, indent=1).encode())}
    used |= {section: len(template.get(section, {})) for section in ("Resources", "Outputs", "Parameters")}
    used["characters of a role"] = max(_policies(template).values(), default=0)
    return [f"{used[limit]:,} {limit}, at most {most:,}" for limit, most in LIMITS.items() if used[limit] > most]


def _policies(template: Template) -> Counter[str]:
    """Return the characters of each role's policies. An intrinsic function counts with its own length."""
    sizes: Counter[str] = Counter()
    for name, resource in template["Resources"].items():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::IAM::Role":
            sizes[name] += sum(_length(policy["PolicyDocument"]) for policy in properties.get("Policies", []))
        if resource["Type"] == "AWS::IAM::Policy":
            for role in properties.get("Roles", []):
                sizes[str(role.get("Ref"))] += _length(properties["PolicyDocument"])
    return sizes


def _length(document: Any) -> int:
    # IAM does not count white space.
    return len(json.dumps(document, separators=(",", ":")))
