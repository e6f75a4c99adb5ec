"""AWS clients, made on first use, and the one place where the SDK's errors become ours.

The SDK is imported with the first client, so that an invocation that sends nothing does not pay for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

from message_buffer import limits
from message_buffer.errors import SendFailed


class Patience(NamedTuple):
    connect_seconds: float
    answer_seconds: float
    attempts: int = limits.AWS_ATTEMPTS


# The time-outs for a caller that cannot go on without the service.
PATIENT = Patience(limits.AWS_CONNECT_SECONDS, limits.AWS_ANSWER_SECONDS)
# The time-outs for a caller that has an alternative if the service is slow.
HURRIED = Patience(limits.AWS_CONNECT_SECONDS, limits.AWS_HURRIED_ANSWER_SECONDS, attempts=1)

_making = Lock()


def client(service: str, *, connections: int = 10, patience: Patience = PATIENT) -> Any:
    # Threads may share a client, but must not make clients at the same time.
    with _making:
        return _made(service, connections, patience)


@cache
def _made(service: str, connections: int, patience: Patience) -> Any:
    import boto3  # noqa: PLC0415 - imported when first used
    from botocore.config import Config  # noqa: PLC0415

    return boto3.client(
        service,
        config=Config(
            connect_timeout=patience.connect_seconds,
            read_timeout=patience.answer_seconds,
            retries={"mode": "standard", "total_max_attempts": patience.attempts},
            max_pool_connections=connections,
        ),
    )


@contextmanager
def errors_as_ours(doing: str) -> Iterator[None]:
    """Raise SendFailed, which names what the caller was `doing`, for each error of the SDK."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - imported when first used

    try:
        yield
    except ClientError as error:
        # Keep only the error's code, because the service's text may quote the request.
        raise SendFailed(f"{doing}: {error.response.get('Error', {}).get('Code', 'refused')}") from error
    except BotoCoreError as error:
        raise SendFailed(f"{doing}: {type(error).__name__}") from error
