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
    """All stacks of a stage. The DynamoDB lane needs neither network nor cache; the local stage has Valkey beside
    it.
    """
    env = cdk.Environment(account=config.account, region=config.region)
    prefix = f"MessageBuffer-{config.name}"
    cdk.Tags.of(scope).add("product", "message-buffer")
    cdk.Tags.of(scope).add("stage", config.name)

    network = cache = None
    if config.has_valkey_lane and not config.is_local:
        network = NetworkStack(scope, f"{prefix}-Network", config=config, env=env)
        cache = CacheStack(
            scope,
            f"{prefix}-Cache",
            config=config,
            env=env,
            subnets=network.cache_subnets,
            security_group=network.cache_security_group,
        )
        network.termination_protection = cache.termination_protection = config.termination_protection
    buffer = BufferStack(
        scope,
        f"{prefix}-Buffer",
        config=config,
        env=env,
        source=source,
        layer=layer,
        valkey=cache.access if cache else _valkey_beside(config),
        placement=network.placement if network else None,
    )
    buffer.termination_protection = config.termination_protection
    if cache:
        for function in buffer.functions.values():
            cache.grant_connect(function)
    responder = None
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
        metrics = Metrics(
            config=config,
            functions=buffer.functions | ({"responder": responder.function} if responder else {}),
            api=buffer.api,
            cache_name=cache.name if cache else None,
            dead_letters=buffer.dead_letters,
            undelivered=buffer.undelivered,
            reply_dead_letters=responder.dead_letters if responder else None,
        )
        OperabilityStack(scope, f"{prefix}-Operability", metrics=metrics, env=env)
    return buffer


def _valkey_beside(config: StageConfig) -> ValkeyAccess | None:
    return ValkeyAccess(config.valkey_url) if config.valkey_url else None


def enforce_cdk_nag(app: cdk.App) -> None:
    """Synthesis fails on whatever AWS's rules find and no construct has acknowledged."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
