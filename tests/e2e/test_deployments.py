"""The first hour of docs/deploy.md, on the local stage: deploy, verify, change, remove; and a change under traffic."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.cli import LOCAL, context
from infra.removal import Removal
from infra.settings_and_defaults import load_stage
from tests.e2e.test_local_stage import ROOT, Home
from tests.support.judge import Talk, judge, traffic
from tests.support.local_stage import LocalStage, share_emulator
from tools.local.events import collect
from tools.local.stage import Stage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("local-stage"),
    pytest.mark.nightly,
]

# Changes of settings, each with the doctor's findings after it, apart from advice. The first change removes resources,
# among them the only rule that takes batches. The second change adds resources.
CHANGES = {
    '{"responder": null, "rules": {"silenceMs": 500}}': [
        "No rule with a target takes batches from the bus, so nobody receives them."
    ],
    '{"canary": true, "shards": 2}': [],
}


def bufferctl(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bufferctl", "--outputs", str(home.outputs_file), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def verify(home: Home) -> None:
    ended = bufferctl(home, "verify")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def diagnosed(home: Home) -> list[str]:
    """Return what the doctor finds besides advice."""
    ended = bufferctl(home, "doctor", "--json")
    found = [each["what"] for each in json.loads(ended.stdout)["findings"] if each["severity"] != "advice"]
    assert bool(ended.returncode) == bool(found), ended.stderr
    return found


def up(home: Home, *arguments: str) -> None:
    ended = home.run("up", *arguments)
    assert ended.returncode == 0, ended.stderr


def remove(home: Home) -> None:
    """Remove the stage's stacks as `make destroy` does."""
    outputs, said = home.outputs(), list[str]()
    lane = "valkey" if outputs.ValkeyUrl else "dynamodb"
    config = load_stage(
        context()["stages"], stage=LOCAL, valkey_url=outputs.ValkeyUrl, overrides=f'{{"lane": "{lane}"}}'
    )
    removal = Removal(config, client=outputs.client, say=said.append)
    assert removal.left_over() == []
    stacks = removal.existing()
    removal.explain(stacks)
    explained = "\n".join(said)
    assert stacks
    assert [stack.name for stack in stacks if stack.name not in explained] == []
    removal.delete(stacks)
    assert removal.existing() == []


@pytest.mark.parametrize("lane", ["valkey", "dynamodb"])
def test_a_stage_is_deployed_verified_changed_and_removed_twice(lane: str, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    share_emulator(home.folder)
    try:
        for change, faults in CHANGES.items():
            up(home, "--lane", lane)
            verify(home)
            assert diagnosed(home) == []
            # The stage keeps its lane.
            up(home, "--overrides", change)
            verify(home)
            assert diagnosed(home) == faults
            remove(home)
            assert home.run("down").returncode == 0
            assert home.processes() == []
            assert not home.outputs_file.exists()
    finally:
        home.run("down")


# On a busy machine a deployment takes a minute, and a watchdog's pass another.
SETTLED_SECONDS = 240.0


@pytest.mark.promise("P1", "P2", "P3")
def test_a_change_under_traffic_and_its_roll_back_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    share_emulator(home.folder)
    try:
        up(home)
        with collect(home.outputs()) as inbox:
            running = LocalStage(Stage(home.folder), home.outputs(), inbox)
            talks = [Talk(running) for _ in range(6)]
            for change in ({"log_level": "WARNING", "memory": {"ingest": 1024}}, {}):
                with traffic(talks):
                    up(home, "--overrides", json.dumps({"rules": {"silenceMs": 1_000}, "responder": None} | change))
                    time.sleep(10)
            judge(talks, within_ms=round(SETTLED_SECONDS * 1_000), timeout_seconds=SETTLED_SECONDS)
    finally:
        home.run("down")
