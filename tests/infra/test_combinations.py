"""Every two documented settings work together: the nightly run examines a stage for each pair of their values."""

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import aws_cdk as cdk
import pytest

from infra.composition import enforce_cdk_nag
from infra.settings_and_defaults import ConfigError, load_stage
from tests.conftest import PROFILE
from tests.infra.conftest import ROOT
from tests.infra.test_nag_and_lint import VARIANTS, violations
from tests.infra.test_transitions import CHANGES
from tests.support.combinations import Row, every_pair, pairs_of
from tests.support.template_rules import REGIONS, exceeded, findings_of_lint, unaccepted

pytestmark = [pytest.mark.xdist_group("synth"), pytest.mark.timeout(300)]

STAGES: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]["stages"]


def _settings() -> dict[str, list[Any]]:
    """Return the values of each setting: those between which docs/deploy.md describes changes, and a few more."""
    found: dict[str, list[Any]] = {"stage": sorted(STAGES.keys() - {"local"}), "region": list(REGIONS)}
    for change in CHANGES:
        values = found.setdefault(change.setting, [])
        values += [value for value in (change.before, change.after) if value not in values]
    more = VARIANTS["responder"].overrides
    found["responder"].append({"responder": more["responder"]})
    found["canary"] = [{}, {"canary": True}]
    return found


SETTINGS = _settings()


class Combination(NamedTuple):
    stage: str
    overrides: dict[str, Any]


def combined(row: Row) -> Combination:
    # Keep the order of the settings, because a later value also replaces what an earlier one sets.
    values = {setting: SETTINGS[setting][row[setting]] for setting in SETTINGS if setting in row}
    stage, region = values.pop("stage", "prod"), values.pop("region", REGIONS[0])
    overrides: dict[str, Any] = {"region": region}
    for value in values.values():
        overrides = _merged(overrides, value)
    # The values name certificates and zones of the first region.
    return Combination(stage, json.loads(json.dumps(overrides).replace(REGIONS[0], region)))


def _merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def is_valid(row: Row) -> bool:
    stage, overrides = combined(row)
    try:
        load_stage(STAGES, stage=stage, overrides=json.dumps(overrides))
    except ConfigError:
        return False
    return True


CHOSEN = every_pair({setting: len(values) for setting, values in SETTINGS.items()}, is_valid)
COMBINATIONS = [combined(row) for row in CHOSEN.rows]
nightly = pytest.mark.skipif(PROFILE != "nightly", reason="it synthesizes many stages, so only `make nightly` runs it")


@pytest.fixture(scope="session")
def examined(composed: Callable[..., cdk.App]) -> Callable[[Combination], tuple[list[str], list[dict[str, Any]]]]:
    """Return the findings of cdk-nag, and the templates, of a combination."""
    made: dict[str, tuple[list[str], list[dict[str, Any]]]] = {}

    def examine(combination: Combination) -> tuple[list[str], list[dict[str, Any]]]:
        key = str(combination)
        if key not in made:
            app = composed(combination.stage, **combination.overrides)
            enforce_cdk_nag(app)
            found = violations(app)
            stacks = (child for child in app.node.children if isinstance(child, cdk.Stack))
            made[key] = found, [_template(app, stack) for stack in stacks]
        return made[key]

    return examine


def _template(app: cdk.App, stack: cdk.Stack) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(app.outdir) / stack.template_file).read_text("utf-8"))
    return found


def test_only_kinds_of_address_exclude_each_other() -> None:
    """Allow one reason only: a function's own address cannot have a domain."""
    for pair in CHOSEN.impossible:
        stage, overrides = combined(dict(pair))
        with pytest.raises(ConfigError, match="domain"):
            load_stage(STAGES, stage=stage, overrides=json.dumps(overrides))


def test_every_two_values_that_do_not_exclude_each_other_are_in_a_combination() -> None:
    chosen = {pair for row in CHOSEN.rows for pair in pairs_of(row)}
    for one, other in combinations(SETTINGS, 2):
        for first in range(len(SETTINGS[one])):
            for second in range(len(SETTINGS[other])):
                pair = frozenset({(one, first), (other, second)})
                assert pair in chosen or pair in CHOSEN.impossible


@nightly
@pytest.mark.parametrize("number", range(len(COMBINATIONS)))
def test_a_combination_of_settings_breaks_no_rule_of_aws(number: int, examined: Callable[..., Any]) -> None:
    found, templates = examined(COMBINATIONS[number])
    assert found == [], COMBINATIONS[number]
    assert templates


@nightly
@pytest.mark.parametrize("number", range(len(COMBINATIONS)))
def test_cloudformation_would_take_a_combination_in_its_region(number: int, examined: Callable[..., Any]) -> None:
    combination = COMBINATIONS[number]
    _, templates = examined(combination)
    for template in templates:
        found = findings_of_lint(template, regions=[combination.overrides["region"]])
        assert unaccepted(found) == [], combination


@nightly
@pytest.mark.parametrize("number", range(len(COMBINATIONS)))
def test_a_combination_stays_within_the_limits(
    number: int, examined: Callable[..., Any], record_property: Callable[[str, object], None]
) -> None:
    _, templates = examined(COMBINATIONS[number])
    assert [problem for template in templates for problem in exceeded(template, record_property)] == []
