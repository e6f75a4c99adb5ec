#!/usr/bin/env python3
"""Ask OSV's database which of the pinned packages have advisories. Exit with 1 if any has, or if there is no answer.

It needs nothing but Python.
"""

import http.client
import json
import os
import re
import sys
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
DATABASE = os.environ.get("ADVISORIES_URL", "https://api.osv.dev/v1/querybatch")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
# A row of the table of the page's libraries.
VENDORED = re.compile(r"^\| \S+ \| (\S+) ([0-9.]+), ", re.MULTILINE)
ANSWER_SECONDS = 30
# An advisory that does not concern us, and why.
ACCEPTED: dict[str, str] = {}


def pins(root: Path) -> list[tuple[str, str, str]]:
    """Return the ecosystem, the name and the version of each package in the lock files and of the console's page."""
    found = {
        ("npm", *pin) for pin in VENDORED.findall((root / "tools/console/page/vendor/README.md").read_text("utf-8"))
    }
    for folder in ("", "[a-z]*/", "tools/*/"):
        for lock in root.glob(f"{folder}requirements.txt"):
            found |= {("PyPI", *pin) for pin in PIN.findall(lock.read_text("utf-8"))}
    for lock in root.glob("[a-z]*/*/package-lock.json"):
        packages = json.loads(lock.read_text("utf-8"))["packages"]
        found |= {("npm", path.rpartition("node_modules/")[2], packages[path]["version"]) for path in packages if path}
    return sorted(found)


def advisories(packages: list[tuple[str, str, str]], database: str) -> list[str]:
    """Return one line for each package with advisories. Raises an error if there is no answer, or a strange one."""
    queries = [
        {"package": {"name": name, "ecosystem": ecosystem}, "version": version} for ecosystem, name, version in packages
    ]
    body = json.dumps({"queries": queries}).encode()
    request = Request(database, body, {"Content-Type": "application/json"})  # noqa: S310 - the operator names it
    with urlopen(request, timeout=ANSWER_SECONDS) as response:  # noqa: S310 - the same
        results = json.load(response)["results"]
    lines = []
    for (_, name, version), result in zip(packages, results, strict=True):
        ids = [each["id"] for each in result.get("vulns", []) if each["id"] not in ACCEPTED]
        if ids:
            lines.append(f"{name} {version}: {', '.join(ids)}")
    return lines


def main() -> int:
    packages = pins(ROOT)
    try:
        found = advisories(packages, DATABASE)
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        # GitHub shows a line that begins like this above the run.
        sys.stdout.write(f"::error::the advisory database gives no answer: {error}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in found) or f"{len(packages)} packages, no advisory\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
