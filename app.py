"""The CDK app: it synthesizes the stacks of the stage that `-c stage=` names."""

import os
import sys
from pathlib import Path

from infra import cli

# jsii looks for Node when aws_cdk is first imported. Only our own CDK CLI sets these variables, which name its Node.
os.environ.update(cli.environment())

import aws_cdk as cdk

from bufferctl import checkout
from infra.composition import compose, enforce_cdk_nag
from infra.layer import LayerError, LayerPlatform, build_layer, lambda_interpreter, link_to
from infra.settings_and_defaults import ConfigError, load_stage

ROOT = Path(__file__).parent
REQUIREMENTS = ROOT / "lambdas" / "requirements.txt"
LAYERS = ROOT / ".build" / "layers"


def main() -> None:
    app = cdk.App()
    # The buffer stack reads this value, and writes it into an output that shows which commit is deployed.
    app.node.set_context("commit", checkout.commit())
    stages = app.node.try_get_context("stages")
    try:
        config = load_stage(
            stages,
            stage=app.node.try_get_context("stage"),
            valkey_url=app.node.try_get_context("valkeyUrl"),
            overrides=app.node.try_get_context("overrides"),
        )
        if config.is_local:
            layer = link_to(build_layer(REQUIREMENTS, platform=LayerPlatform.HOST, cache=LAYERS))
        else:
            if lambda_interpreter() is None:
                sys.stderr.write(f"{cli.WITHOUT_PYTHON}\n")
            layer = build_layer(REQUIREMENTS, platform=LayerPlatform.LAMBDA, cache=LAYERS)
        compose(app, config, source=ROOT, layer=layer)
    except (ConfigError, LayerError) as error:
        sys.exit(f"{error}")
    if not config.is_local:
        enforce_cdk_nag(app)
    let_lambda_read(Path(app.synth().directory))


def let_lambda_read(synthesized: Path) -> None:
    """Make the files that will be deployed readable for all users, because Lambda's user does not own the files.

    A clone made with umask 077 has files that only their owner can read. After a deployment it would be too late to
    change only the mode, because CDK deploys a file again only if its content changes.
    """
    for folder in synthesized.glob("asset.*/"):
        for path in (folder, *folder.rglob("*")):
            mode = path.stat().st_mode
            wanted = mode | 0o444 | (0o111 if path.is_dir() or mode & 0o100 else 0)
            if wanted != mode:
                path.chmod(wanted)


if __name__ == "__main__":
    main()
