"""The table of variables in infra/function_variables.py says what the templates say, and the watchdog's times agree."""

from collections.abc import Callable, Mapping

import pytest
from aws_cdk.assertions import Template

from infra import function_variables as infra_environment
from infra.limits import WATCHDOG_PASS_SECONDS
from tests.infra.test_environment_contract import READERS, VARIANTS, WITHOUT_VALKEY

pytestmark = pytest.mark.xdist_group("synth")


def documented_variables() -> set[tuple[str, str, str]]:
    """Return each row of the table in infra/function_variables.py, split by function: variable, role, kind of stage."""
    assert infra_environment.__doc__
    rows = [line for line in infra_environment.__doc__.splitlines() if line.startswith("|")][2:]
    found: set[tuple[str, str, str]] = set()
    for row in rows:
        name, functions, stages, _ = (cell.strip() for cell in row.strip("|").split("|"))
        groups = {
            "all": {*READERS, "responder", "canary"},
            "callers of Valkey": READERS.keys() - {"dynamodb_processor"},
        }
        for role in groups.get(functions) or functions.split(", "):
            assert (name, role, stages) not in found
            found.add((name, role, stages))
    return found


@pytest.mark.parametrize("variant", [*VARIANTS, *WITHOUT_VALKEY])
def test_the_table_of_variables_says_what_each_function_gets(
    variant: str, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    stage, overrides = {**VARIANTS, **WITHOUT_VALKEY}[variant]
    stacks = synthesize(stage, **overrides)
    given = {
        (name, function["Properties"]["Handler"].split(".")[-3])
        for stack in ("Buffer", "Responder")
        if stack in stacks
        for function in stacks[stack].find_resources("AWS::Lambda::Function").values()
        for name in function["Properties"]["Environment"]["Variables"]
    }
    kinds = {
        "": True,
        "Valkey": variant in VARIANTS,
        "Valkey in AWS": variant in VARIANTS and stage != "local",
        "hashed ids": overrides.get("log_ids") == "hashed",
        "sampled lines": "log_share" in overrides,
        "WhatsApp by SNS": "end_user_messaging" in overrides,
        "DynamoDB": variant != "without a fallback",
    }
    roles = {role for _, role in given}
    documented = {(name, role) for name, role, stages in documented_variables() if role in roles and kinds[stages]}
    assert given == documented


def test_the_variants_have_every_function_that_the_table_of_variables_names(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    stacks = synthesize("local", canary=True)
    handlers = [
        function["Properties"]["Handler"].split(".")[-3]
        for stack in ("Buffer", "Responder")
        for function in stacks[stack].find_resources("AWS::Lambda::Function").values()
    ]
    assert {role for _, role, _ in documented_variables()} == set(handlers)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_watchdogs_second_pass_comes_half_way_between_two_runs_of_its_rule(
    variant: str, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    stage, overrides = VARIANTS[variant]
    queue = synthesize(stage, **overrides)["Buffer"].to_json()["Resources"]["WatchdogEcho"]["Properties"]
    assert queue["DelaySeconds"] == WATCHDOG_PASS_SECONDS == 60 - WATCHDOG_PASS_SECONDS
