"""Makes the tokens with which functions sign in to the cache."""

from message_buffer.aws import clients as aws
from message_buffer.aws.signing import Scope, presign
from message_buffer.settings import IamAccess


def sign_cache_token(iam: IamAccess) -> str:
    """Return a token that is valid for 15 minutes: the pre-signed URL of a `connect` request, without `https://`."""
    query = {"Action": "connect", "User": iam.user, "ResourceType": "ServerlessCache"}
    scope = Scope(iam.region, "elasticache")
    with aws.errors_as_ours("sign cache token"):
        return presign(iam.cache_name, query, scope=scope, expires_seconds=900)
