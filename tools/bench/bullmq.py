"""Runs BullMQ. Its version is pinned in package-lock.json, and it is installed when it is first needed."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from infra.cli import node, npm

HERE = Path(__file__).parent


def install() -> None:
    """Install BullMQ into tools/bench/node_modules, from the lock file."""
    installed = HERE / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < (HERE / "package-lock.json").stat().st_mtime:
        # Do not use `npm ci`, because it refuses a lock file that lacks the native packages of other platforms.
        install = [*npm(), "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(install, cwd=HERE, check=True)


def command(role: str, **options: Any) -> list[str]:
    return [str(node()), str(HERE / "bullmq.mjs"), role, json.dumps(options)]


def ask(role: str, messages: Iterable[dict[str, Any]], **options: Any) -> list[Any]:
    """Run `bullmq.mjs` in this role, with the messages as its input. Return the values that it printed."""
    given = "".join(json.dumps(message) + "\n" for message in messages)
    done = subprocess.run(command(role, **options), input=given, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
