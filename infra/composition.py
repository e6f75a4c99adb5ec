"""The composition root: which stacks a stage has, and what they hand to each other."""

from pathlib import Path

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks
from constructs import Construct

from infra.buffer import BufferStack
from infra.cache import CacheStack
from infra.config import StageConfig
from infra.environment import ValkeyAccess
from infra.metrics import Metrics
from infra.network import NetworkStack
from infra.operability import OperabilityStack
from infra.responder import ResponderStack


def compose(scope: Construct, config: StageConfig, *, source: Path, layer: Path) -> BufferStack:
    """All stacks of a stage. The local one has neither network nor cache: Valkey runs beside it."""
    env = cdk.Environment(account=config.account, region=config.region)
    prefix = f"MessageBuffer-{config.name}"
    cdk.Tags.of(scope).add("product", "message-buffer")
    cdk.Tags.of(scope).add("stage", config.name)

    def respond_to(buffer: BufferStack) -> ResponderStack | None:
        if config.responder is None:
            return None
        return ResponderStack(
            scope,
            f"{prefix}-Responder",
            config=config,
            responder=config.responder,
            env=env,
            source=source,
            layer=layer,
            buffer=buffer,
        )

    if config.valkey_url is not None:
        buffer = BufferStack(
            scope,
            f"{prefix}-Buffer",
            config=config,
            env=env,
            source=source,
            layer=layer,
            valkey=ValkeyAccess(config.valkey_url),
            placement=None,
        )
        respond_to(buffer)
        return buffer
    network = NetworkStack(scope, f"{prefix}-Network", config=config, env=env)
    cache = CacheStack(
        scope,
        f"{prefix}-Cache",
        config=config,
        env=env,
        subnets=network.cache_subnets,
        security_group=network.cache_security_group,
    )
    buffer = BufferStack(
        scope,
        f"{prefix}-Buffer",
        config=config,
        env=env,
        source=source,
        layer=layer,
        valkey=cache.access,
        placement=network.placement,
    )
    responder = respond_to(buffer)
    for stack in (network, cache, buffer, responder):
        if stack:
            stack.termination_protection = config.termination_protection
    for function in buffer.functions.values():
        cache.grant_connect(function)
    metrics = Metrics(
        config=config,
        functions=buffer.functions | ({"responder": responder.function} if responder else {}),
        api=buffer.api,
        cache_name=cache.name,
        dead_letters=buffer.dead_letters,
        undelivered=buffer.undelivered,
        reply_dead_letters=responder.dead_letters if responder else None,
    )
    OperabilityStack(scope, f"{prefix}-Operability", metrics=metrics, env=env)
    return buffer


def hold_to_rules(app: cdk.App) -> None:
    """Synthesis fails on whatever AWS's rules find and no construct has acknowledged."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
