"""Returns the commit of this checkout. A deployment writes it into an output of the stack."""

import subprocess

from bufferctl.stage import ROOT

CHANGED = "-changed"


def commit() -> str | None:
    """Return the commit, with a suffix if files have changed since, or None if this folder is not a git checkout."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    return head + (CHANGED if _git("status", "--porcelain") else "")


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()
