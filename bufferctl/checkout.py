"""Names the commit of this checkout, which a deployment writes into an output of the stack."""

import subprocess

from bufferctl.stage import ROOT

CHANGED = "-changed"


def commit() -> str | None:
    """Return the commit, with a suffix if files were changed since; None if this folder is no checkout of git."""
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
