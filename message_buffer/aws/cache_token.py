"""Signs the sign-in tokens of the cache."""

from typing import Protocol

from message_buffer.aws import clients as aws
from message_buffer.limits import SIGN_IN_TOKEN_SECONDS


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
    import boto3  # noqa: PLC0415 - imported when first used
    from botocore.model import ServiceId  # noqa: PLC0415
    from botocore.signers import RequestSigner  # noqa: PLC0415

    with aws.errors_as_ours("sign cache token"):
        session = boto3.Session()
        signer = RequestSigner(
            ServiceId("elasticache"), iam.region, "elasticache", "v4", session.get_credentials(), session.events
        )
        request = {
            "method": "GET",
            "url": f"https://{iam.cache_name}/?Action=connect&User={iam.user}&ResourceType=ServerlessCache",
            "body": {},
            "headers": {},
            "context": {},
        }
        url: str = signer.generate_presigned_url(
            request, operation_name="connect", expires_in=SIGN_IN_TOKEN_SECONDS, region_name=iam.region
        )
    return url.removeprefix("https://")
