"""`make` keeps a .venv that works, and replaces it only by one that is complete."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Clone:
    """A clone in a folder with a space in its name, with the Makefile and requirements of its own."""

    def __init__(self, folder: Path, *, requirements: str) -> None:
        self.folder = folder
        (folder / "infra").mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", folder)
        shutil.copy(ROOT / "infra" / "cdk.sh", folder / "infra")
        (folder / "requirements.txt").write_text(requirements)

    def make(self, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if name not in {"PYTHON", "VIRTUAL_ENV"}}
        environment = {**inherited, "PATH": path or os.environ["PATH"]}
        return subprocess.run(
            ["make", "UV=", *arguments], cwd=self.folder, capture_output=True, text=True, check=False, env=environment
        )

    def set_up(self, requirements: str) -> Path:
        """Set up an environment and return it: the one behind .venv, and the only one that `make` keeps."""
        (self.folder / "requirements.txt").write_text(requirements)
        ended = self.make("setup", f"PYTHON={sys.executable}")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.endswith(".venv is ready.\n")
        (kept,) = (self.folder / ".venvs").iterdir()
        assert (self.folder / ".venv").resolve() == kept
        return kept

    def has_a_venv(self, *, python: str = sys.executable) -> None:
        """Make a .venv that looks set up by this Python, without the minute that a set-up takes."""
        planned = self.make("--dry-run", "setup", f"PYTHON={python}").stdout
        (stamp,) = re.findall(r"set-up-from-\w+", planned)
        binaries = self.folder / ".venv" / "bin"
        binaries.mkdir(parents=True)
        (binaries / "python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
        (binaries / "python").chmod(0o755)
        (self.folder / ".venv" / stamp).touch()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "a clone", requirements="")


@pytest.mark.parametrize("target", ["status", "logs", "down"])
def test_a_target_that_only_looks_or_stops_makes_no_venv(clone: Clone, target: str) -> None:
    ended = clone.make(target)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[0] == "There is no .venv that works here: run `make setup` first."
    assert not (clone.folder / ".venv").exists()


@pytest.mark.parametrize("target", ["status", "logs", "down"])
def test_a_target_that_only_looks_or_stops_takes_a_venv_that_is_out_of_date(clone: Clone, target: str) -> None:
    clone.has_a_venv()
    (clone.folder / "requirements.txt").write_text("changed")
    planned = clone.make("--dry-run", target).stdout
    assert "Setting up" in clone.make("--dry-run", "up").stdout
    assert "Setting up" not in planned
    assert f"-m tools.local {target}" in planned


def test_a_set_up_that_fails_leaves_the_old_venv_as_it_was(clone: Clone) -> None:
    clone.has_a_venv()
    (clone.folder / "requirements.txt").write_text("./there-is-no-such-wheel.whl")
    before = sorted((clone.folder / ".venv").rglob("*"))
    # Whether pip or uv installs, it takes only files whose hashes are locked.
    assert clone.make("--dry-run", "setup").stdout.count("--require-hashes") == 2
    ended = clone.make("setup", f"PYTHON={sys.executable}")
    assert ended.returncode == 2, ended.stdout
    assert sorted((clone.folder / ".venv").rglob("*")) == before
    assert list((clone.folder / ".venvs").iterdir()) == []


def test_a_set_up_replaces_the_old_venv_and_keeps_only_the_new_one(clone: Clone) -> None:
    clone.has_a_venv()
    old = clone.folder / ".venv" / "old"
    old.touch()
    first = clone.set_up("# another lock")
    assert "is ready" not in clone.make("setup", f"PYTHON={sys.executable}").stdout
    assert not old.exists()
    kept = clone.set_up("# and one more")
    assert not first.exists()
    python = clone.folder / ".venv" / "bin" / "python"
    where = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert Path(where.stdout.strip()).resolve() == kept
    for program, script in (("cdk", "infra/cdk.sh"), ("bufferctl", "bufferctl/bufferctl.sh")):
        assert (kept / "bin" / program).resolve() == clone.folder / script
    assert "Setting up" not in clone.make("--dry-run", "setup").stdout


def test_a_set_up_leaves_the_venv_of_another_folder_alone(clone: Clone, tmp_path: Path) -> None:
    """Reproduce a defect: `make` deleted the folder that .venv linked to, wherever it was."""
    others = tmp_path / "another clone" / ".venv"
    others.mkdir(parents=True)
    (clone.folder / ".venv").symlink_to(others)
    clone.set_up("# a lock")
    assert others.exists()


def test_clean_refuses_while_a_stage_runs_out_of_the_venv_and_forgets_what_it_keeps(clone: Clone) -> None:
    clone.has_a_venv()
    kept = clone.folder / ".local" / "kept.json"
    kept.parent.mkdir()
    kept.touch()
    (clone.folder / "tools").mkdir()
    (clone.folder / "tools" / "local.py").write_text("import sys; sys.exit(0 if sys.argv[1:] == ['running'] else 1)")
    ended = clone.make("clean")
    assert ended.returncode == 2
    assert "run `make down` first" in ended.stderr
    assert (clone.folder / ".venv").exists()
    assert kept.exists()
    (clone.folder / "tools" / "local.py").write_text("raise SystemExit(1)")
    assert clone.make("clean").returncode == 0
    assert not (clone.folder / ".venv").exists()
    assert not kept.exists()
