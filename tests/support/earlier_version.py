"""The files of an earlier commit, from which a test deploys an earlier version onto a running local stage."""

import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from local.stage import ROOT

# On a busy machine the new functions may not answer in time. Nothing is wrong if the next deployment succeeds.
MAX_DEPLOYMENTS = 3


class NoEarlierVersion(Exception):
    """Raised if this clone has no earlier commit. The exception's text says why."""


def earlier_commit() -> str:
    """Return the latest release before this commit. Before the first, return where it left main, or its parent."""
    here = _git("rev-parse", "HEAD")
    candidates = (
        ("describe", "--tags", "--abbrev=0", "HEAD^"),
        ("merge-base", "HEAD", "origin/main"),
        ("merge-base", "HEAD", "main"),
        ("rev-parse", "--verify", "HEAD^"),
    )
    found = (_git(*words) for words in candidates)
    earlier = next((_git("rev-parse", f"{each}^{{commit}}") for each in found if each and each != here), "")
    if not earlier:
        raise NoEarlierVersion("this clone has no earlier commit: it is shallow, or no clone at all")
    return earlier


class Version:
    """A version of this project in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def unpack(cls, commit: str, folder: Path) -> "Version":
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        # The versions share the caches, which name what they contain.
        (ROOT / ".build").mkdir(exist_ok=True)
        (folder / ".build").symlink_to(ROOT / ".build")
        return cls(folder)

    def deploy(self, home: Path, *, overrides: Mapping[str, Any]) -> None:
        """Deploy this version onto the stage that runs in `home`."""
        command = [sys.executable, "-m", "local", "--home", str(home), "up", "--overrides", json.dumps(overrides)]
        said = ""
        for _ in range(MAX_DEPLOYMENTS):
            run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                return
            said = run.stdout + run.stderr
        raise AssertionError(said)


def _git(*words: str) -> str:
    try:
        run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""
