"""The one stack construct, from which every stack of this product is made."""

import aws_cdk as cdk
from constructs import Construct

from .settings_and_defaults import StageConfig, stage_tags


class StageStack(cdk.Stack):
    """A stack of the stage. Its name ends with `word`, which is one of `STACKS`."""

    def __init__(self, scope: Construct, word: str, *, config: StageConfig) -> None:
        super().__init__(
            scope,
            config.name_of_stack(word),
            env=cdk.Environment(account=config.account, region=config.region),
            # The emulator has no TLS. CDK's roles could not write to the bootstrap's bucket, whose policy requires TLS.
            # So deploy there with the caller's own credentials.
            synthesizer=cdk.CliCredentialsStackSynthesizer() if config.is_local else None,
            termination_protection=config.termination_protection,
        )
        for key, value in stage_tags(config).items():
            cdk.Tags.of(self).add(key, value)
