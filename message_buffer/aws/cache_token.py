"""Makes the tokens with which functions sign in to the cache."""

from typing import Protocol

from message_buffer.aws import clients as aws
from message_buffer.aws.signing import Scope, presign


class CacheUser(Protocol):
    """A user of a cache that accepts IAM tokens."""

    @property
    def user(self) -> str: ...
    @property
    def cache_name(self) -> str: ...
    @property
    def region(self) -> str: ...


def sign_cache_token(iam: CacheUser) -> str:
    """Return a token that is valid for 15 minutes: the pre-signed URL of a `connect` request, without `https://`."""
    query = {"Action": "connect", "User": iam.user, "ResourceType": "ServerlessCache"}
    scope = Scope(iam.region, "elasticache")
    with aws.errors_as_ours("sign cache token"):
        return presign(iam.cache_name, query, scope=scope, expires_seconds=900)
