"""Unpack an earlier commit, so that a test can deploy that version onto a running local stage."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from tools.local.stage import ROOT

# On a busy machine the new functions may not answer in time, so a failed deployment is tried again.
MAX_DEPLOYMENTS = 3


class NoEarlierVersion(Exception):
    """Raised if no earlier version is known. The exception's text says why."""


def earlier_commit() -> str:
    """Return the commit that EARLIER_VERSION names, or the latest release before this commit."""
    if found := os.environ.get("EARLIER_VERSION") or _git("describe", "--tags", "--abbrev=0", "HEAD^"):
        return found
    raise NoEarlierVersion("nothing has been released; EARLIER_VERSION can name a commit")


class Version:
    """A version of this project in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def unpack(cls, commit: str, folder: Path) -> "Version":
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as files:
            files.extractall(folder, filter="data")
        # The versions can share the build cache, because it names each entry by its content.
        (ROOT / ".build").mkdir(exist_ok=True)
        (folder / ".build").symlink_to(ROOT / ".build")
        return cls(folder)

    def deploy(self, home: Path, *, overrides: Mapping[str, Any]) -> None:
        """Deploy this version onto the stage that runs in `home`."""
        command = [sys.executable, "-m", "tools.local", "--home", str(home), "up", "--overrides", json.dumps(overrides)]
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
