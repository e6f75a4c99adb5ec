"""The composition root: it creates the stacks of a stage and passes resources from one stack to another."""

from pathlib import Path

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks
from constructs import Construct

from .buffer import BufferStack
from .cache import CacheStack
from .metrics import BufferMetrics, Metrics
from .network import NetworkStack
from .operability import BufferOperability, ResponderOperability
from .permissions import grant_cache
from .responder import ResponderStack
from .settings_and_defaults import StageConfig
from .valkey_lane import valkey_settings


class EmptyStack(cdk.Stack):
    """The stack of a part that the stage does not have.

    CDK does not delete a deployed stack that the app no longer contains, so its functions would continue to run. This
    stack replaces it, so that CloudFormation removes the functions.
    """

    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig, env: cdk.Environment) -> None:
        synthesizer = cdk.CliCredentialsStackSynthesizer() if config.is_local else None
        super().__init__(scope, construct_id, env=env, synthesizer=synthesizer)
        # CloudFormation refuses a template without resources. This resource does nothing and costs nothing.
        cdk.CfnWaitConditionHandle(self, "Nothing")


def compose(scope: Construct, config: StageConfig, *, source: Path, layer: Path) -> BufferStack:
    """Create all stacks of a stage, and return the buffer stack.

    A stage with the DynamoDB lane alone has neither network nor cache. The local stage has none either, because its
    Valkey is a process on the same machine. A stage whose cache has a public endpoint has no network.
    """
    env = cdk.Environment(account=config.account, region=config.region)
    prefix = f"MessageBuffer-{config.name}"
    cdk.Tags.of(scope).add("product", "message-buffer")
    cdk.Tags.of(scope).add("stage", config.name)

    network = cache = None
    if config.has_network:
        network = NetworkStack(scope, f"{prefix}-Network", config=config, env=env)
        network.termination_protection = config.termination_protection
    if config.has_cache:
        cache = CacheStack(
            scope,
            f"{prefix}-Cache" if network else f"{prefix}-PublicCache",
            config=config,
            env=env,
            placement=network.cache_placement if network else None,
        )
        cache.termination_protection = config.termination_protection
    buffer = BufferStack(
        scope,
        f"{prefix}-Buffer",
        config=config,
        env=env,
        source=source,
        layer=layer,
        valkey=valkey_settings(config, cache) if config.has_valkey_lane else None,
        placement=network.placement if network else None,
    )
    buffer.termination_protection = config.termination_protection
    if cache:
        grant_cache(cache, buffer)
    if not config.is_local:
        BufferOperability(
            buffer,
            BufferMetrics(
                config=config,
                functions=buffer.functions,
                dead_letters=buffer.dead_letters,
                api=buffer.webhooks.api,
                cache_name=cache.name if cache else None,
                whatsapp_queues=buffer.whatsapp_queues,
            ),
        )
    if config.responder:
        responder = ResponderStack(
            scope,
            f"{prefix}-Responder",
            config=config,
            responder=config.responder,
            env=env,
            source=source,
            layer=layer,
            buffer=buffer,
        )
        responder.termination_protection = config.termination_protection
        if not config.is_local:
            functions = {"responder": responder.function}
            ResponderOperability(
                responder, Metrics(config=config, functions=functions, dead_letters=responder.dead_letters)
            )
    else:
        # Deploy the empty stack first. So CloudFormation removes the responder before it changes the functions that the
        # responder invokes.
        buffer.add_stack_dependency(EmptyStack(scope, f"{prefix}-Responder", config=config, env=env))
    return buffer


def enforce_cdk_nag(app: cdk.App) -> None:
    """Let synthesis fail if cdk-nag, which checks AWS's rules, has a finding that no construct suppresses."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
