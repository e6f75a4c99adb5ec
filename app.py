"""The CDK app: it synthesizes the stacks of the stage that `-c stage=` names."""

import sys
from pathlib import Path

import aws_cdk as cdk

from infra.composition import compose, enforce_cdk_nag
from infra.config import ConfigError, load_stage
from infra.layer import LayerError, Platform, build_layer, link_to

ROOT = Path(__file__).parent
REQUIREMENTS = ROOT / "lambdas" / "requirements.txt"
LAYERS = ROOT / ".build" / "layers"


def main() -> None:
    app = cdk.App()
    try:
        config = load_stage(
            app.node.try_get_context("stages"),
            stage=app.node.try_get_context("stage"),
            valkey_url=app.node.try_get_context("valkeyUrl"),
            overrides=app.node.try_get_context("overrides"),
        )
        if config.is_local:
            layer = link_to(build_layer(REQUIREMENTS, platform=Platform.HOST, cache=LAYERS))
        else:
            layer = build_layer(REQUIREMENTS, platform=Platform.LAMBDA, cache=LAYERS)
    except (ConfigError, LayerError) as error:
        sys.exit(f"{error}")
    compose(app, config, source=ROOT, layer=layer)
    if not config.is_local:
        enforce_cdk_nag(app)
    app.synth()


if __name__ == "__main__":
    main()
