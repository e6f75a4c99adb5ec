"""The composition root: it creates the stacks of a stage and passes resources from one stack to another."""

from pathlib import Path

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks
from constructs import Construct

from .buffer import BufferStack
from .cache import CacheStack
from .metrics import Metrics
from .network import NetworkStack
from .operability import BufferOperability, ResponderOperability
from .permissions import grant_cache
from .responder import ResponderStack
from .settings_and_defaults import StageConfig
from .stack import StageStack
from .valkey_lane import valkey_settings


def compose(scope: Construct, config: StageConfig, *, source: Path, layer: Path) -> BufferStack:
    """Create all stacks of a stage, and return the buffer stack.

    A stage with the DynamoDB lane alone has neither network nor cache. The local stage has none either, because its
    Valkey is a process on the same machine. A stage whose cache has a public endpoint has no network.
    """
    network = NetworkStack(scope, config) if config.has_network else None
    cache = CacheStack(scope, config, network.cache_placement if network else None) if config.has_cache else None
    buffer = BufferStack(
        scope,
        config,
        source=source,
        layer=layer,
        valkey=valkey_settings(config, cache) if config.has_valkey_lane else None,
        placement=network.placement if network else None,
    )
    if cache:
        grant_cache(cache, buffer)
    if not config.is_local:
        queues = buffer.whatsapp_queues
        whatsapp = {"queued webhooks": queues.webhooks, "unreadable webhooks": queues.unreadable} if queues else {}
        batches = {f"queue {name}": each.queue for name, each in buffer.queues.items()}
        batches |= {f"dead letters of {name}": each.dead_letters for name, each in buffer.queues.items()}
        BufferOperability(
            buffer,
            Metrics(
                config=config,
                functions=buffer.functions,
                queues={"dead letters": buffer.dead_letters, **whatsapp, **batches},
                api=buffer.webhooks.api,
                cache_name=cache.name if cache else None,
            ),
        )
    if config.responder:
        responder = ResponderStack(scope, config, config.responder, source=source, layer=layer, buffer=buffer)
        if not config.is_local:
            own = {"responder": responder.function}
            ResponderOperability(responder, Metrics(config=config, functions=own, queues={}))
    else:
        # CDK does not delete a deployed stack that the app no longer contains, so the responder would continue to run.
        # An empty stack replaces it. Deploy it first, so that CloudFormation removes the responder before it changes
        # the functions that the responder invokes.
        empty = StageStack(scope, "Responder", config=config)
        empty.termination_protection = False
        # CloudFormation refuses a template without resources. This resource does nothing and costs nothing.
        cdk.CfnWaitConditionHandle(empty, "Nothing")
        buffer.add_stack_dependency(empty)
    return buffer


def enforce_cdk_nag(app: cdk.App) -> None:
    """Let synthesis fail if cdk-nag, which checks AWS's rules, has a finding that no construct suppresses."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
