"""Makes AWS clients on first use, and turns their errors into SendFailed.

Services that speak JSON have a client of our own (`json_client`), because importing the SDK takes most of a cold start.
The SDK is imported when a client of another service is first made.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.client import HTTPException
from threading import Lock
from typing import Any, NamedTuple

from message_buffer.aws.json_client import ADDRESS_SECONDS, PROTOCOLS, AwsRefused, JsonClient
from message_buffer.errors import SendFailed

# The time limit of our own client for DNS, TCP and TLS together. The SDK's clients limit the time for each address
# instead.
AWS_CONNECT_SECONDS = 2.0
AWS_ANSWER_SECONDS = 2.5
AWS_ATTEMPTS = 2
# A shorter time-out for a response, for callers that can go on without it while somebody waits for them.
AWS_HURRIED_ANSWER_SECONDS = 1.0


class Patience(NamedTuple):
    connect_seconds: float
    response_seconds: float
    attempts: int = AWS_ATTEMPTS


# The time-outs for a caller that cannot go on without the service.
PATIENT = Patience(AWS_CONNECT_SECONDS, AWS_ANSWER_SECONDS)
# The time-outs for a caller that can go on without the service.
HURRIED = Patience(AWS_CONNECT_SECONDS, AWS_HURRIED_ANSWER_SECONDS, attempts=1)

# The services that are called without the SDK.
OURS = frozenset(PROTOCOLS)

_making = Lock()


def client(service: str, *, connections: int = 10, patience: Patience = PATIENT) -> Any:
    # Threads may share a client, but must not make clients at the same time.
    with _making:
        return _made(service, connections, patience)


@cache
def _made(service: str, connections: int, patience: Patience) -> Any:
    if service in OURS:
        return JsonClient(
            service,
            connect_seconds=patience.connect_seconds,
            response_seconds=patience.response_seconds,
            attempts=patience.attempts,
            kept=connections,
        )
    import boto3  # noqa: PLC0415 - imported when first used
    from botocore.config import Config  # noqa: PLC0415

    return boto3.client(
        service,
        config=Config(
            connect_timeout=min(patience.connect_seconds, ADDRESS_SECONDS),
            read_timeout=patience.response_seconds,
            retries={"mode": "standard", "total_max_attempts": patience.attempts},
            max_pool_connections=connections,
        ),
    )


@contextmanager
def errors_as_ours(doing: str) -> Iterator[None]:
    """Raise SendFailed instead of a client's error. Its text begins with `doing`, the step that failed."""
    try:
        yield
    except AwsRefused as error:
        # Keep only the error's code, because the service's text may quote the request.
        raise SendFailed(f"{doing}: {error.code}") from error
    except (OSError, HTTPException) as error:
        raise SendFailed(f"{doing}: {type(error).__name__}") from error
    except Exception as error:
        # Do not import the SDK here: if no code has imported it yet, the error cannot be one of the SDK's.
        sdk = sys.modules.get("botocore.exceptions")
        if sdk is not None and isinstance(error, sdk.ClientError):
            raise SendFailed(f"{doing}: {error.response.get('Error', {}).get('Code', 'refused')}") from error
        if sdk is not None and isinstance(error, sdk.BotoCoreError):
            raise SendFailed(f"{doing}: {type(error).__name__}") from error
        raise
