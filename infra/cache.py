"""Cache stack: ElastiCache Serverless for Valkey, reached over TLS by one IAM user.

The cache is in the stage's network, or has a public endpoint. ElastiCache cannot change this later, so each kind has a
stack of its own. A stage that changes from one kind to the other has both until an operator removes the old stack.
"""

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_elasticache as elasticache
from aws_cdk import aws_kms as kms
from constructs import Construct

from message_buffer.settings import IamAccess

from .function import keep_identity, removal_policy, suppress_finding
from .settings_and_defaults import StageConfig
from .stack import StageStack

MAJOR_VERSION = "8"
# ElastiCache offers public endpoints from this version on.
PUBLIC_MAJOR_VERSION = "9"
# The commands that the functions may send: those of the scripts, and `blpop`, in which the processor sleeps. Each is
# named, because a category would allow many more commands, and new ones with each version of Valkey.
ACCESS = " ".join(
    [
        "on resetchannels ~{b*}:* -@all",
        "+eval +evalsha +blpop",
        "+del +persist +pexpire +rename +unlink",
        "+hdel +hexists +hget +hincrby +hmget +hscan +hset",
        "+llen +lpush +lrange +lrem +lset +ltrim +rpush",
        "+zadd +zcard +zcount +zrange +zrem +zremrangebyrank +zremrangebyscore +zscan +zscore",
    ]
)


@dataclass(frozen=True)
class CachePlacement:
    """The subnets and the security group of a cache in a network."""

    subnets: ec2.SelectedSubnets
    security_group: ec2.ISecurityGroup


def cache_name(config: StageConfig) -> str:
    """Return the name of the stage's cache, which is also the name of its user and its user group.

    A public cache has another name than the cache in a network, because both exist while a stage changes its network.
    """
    return f"message-buffer-{config.name}" if config.has_network else f"public-buffer-{config.name}"


class CacheStack(StageStack):
    """The cache, its user and its key."""

    def __init__(self, scope: Construct, config: StageConfig, placement: CachePlacement | None) -> None:
        """Create the cache in the network of `placement`, or with a public endpoint if there is none."""
        super().__init__(scope, "Cache" if placement else "PublicCache", config=config)
        # A sign-in token contains the names of the cache and the user. Both names must be in lower case.
        self.name = name = cache_name(config)
        self._user = elasticache.CfnUser(
            self,
            "User",
            engine="valkey",
            user_id=name,
            user_name=name,
            access_string=ACCESS,
            authentication_mode={"Type": "iam"},
        )
        # In a group of the engine `valkey`, every user must authenticate. So nobody can sign in as an open user
        # `default`.
        group = elasticache.CfnUserGroup(self, "Users", engine="valkey", user_group_id=name, user_ids=[self._user.ref])
        limits = elasticache.CfnServerlessCache
        # The default key policy is enough: it lets IAM allow the role that creates the cache to grant ElastiCache the
        # use of the key. In GovCloud there is no key, because ElastiCache accepts none of ours there.
        key = None
        if not config.region.startswith("us-gov-"):
            key = kms.Key(
                self,
                "Key",
                description=f"Cache {name}",
                enable_key_rotation=True,
                removal_policy=removal_policy(config),
            )
            keep_identity(key, "Key")
        self._cache = elasticache.CfnServerlessCache(
            self,
            "Cache",
            engine="valkey",
            major_engine_version=MAJOR_VERSION if placement else PUBLIC_MAJOR_VERSION,
            connection_type=None if placement else "public",
            serverless_cache_name=name,
            cache_usage_limits=limits.CacheUsageLimitsProperty(
                data_storage=limits.DataStorageProperty(unit="GB", maximum=config.cache.max_storage_gb),
                ecpu_per_second=limits.ECPUPerSecondProperty(maximum=config.cache.max_ecpu_per_second),
            ),
            kms_key_id=key.key_arn if key else None,
            security_group_ids=[placement.security_group.security_group_id] if placement else None,
            subnet_ids=placement.subnets.subnet_ids if placement else None,
            user_group_id=group.ref,
        )
        if placement is None:
            self._accept_public_endpoint()
        for resource in (self._user, group, self._cache):
            # A retained cache needs its user and group, because otherwise no function could sign in.
            resource.apply_removal_policy(removal_policy(config))
        for construct in (self._user, group, self._cache):
            keep_identity(construct, construct.node.id)
        endpoint = f"{self._cache.attr_endpoint_address}:{self._cache.attr_endpoint_port}"
        # The output is `host:port`. Clients must use TLS. A cache in a network accepts connections only from that
        # network.
        cdk.CfnOutput(self, "CacheEndpoint", value=endpoint)
        self.url = f"valkeys://{endpoint}"
        self.arns = (self._cache.attr_arn, self._user.attr_arn)
        self.iam = IamAccess(user=name, cache_name=name, region=config.region)

    def _accept_public_endpoint(self) -> None:
        """Let CDK and cfn-lint accept the property `ConnectionType`, which their copies of AWS's schema lack."""
        suppress_finding(
            self._cache,
            "CloudFormation-Validate::F3002",
            "ElastiCache has public endpoints since 2026; the schema that CDK and cfn-lint contain is older.",
        )
        self._cache.add_metadata("cfn-lint", {"config": {"ignore_checks": ["E3002"]}})
