"""Makes boto3 sessions for AWS, and for the emulator of a local stage, which has the same APIs."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3

# The admin function has a time-out of a minute, and may need a cold start first.
MAX_ADMIN_ANSWER_SECONDS = 70
# Tests and benchmarks share one client of the emulator between many threads.
MAX_EMULATOR_CONNECTIONS = 50
# The credentials of the emulator's root user.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


def _at_most(attempts: int) -> dict[str, Any]:
    return {"read_timeout": MAX_ADMIN_ANSWER_SECONDS, "retries": {"total_max_attempts": attempts}}


# Calls of the admin function: the SDK makes one attempt, because only the operator may decide to repeat a command.
ONCE = _at_most(1)
# Sessions with the emulator ignore the developer's profiles and files, because these are for real accounts.
NOTHING_PERSONAL = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
_MAKING = threading.Lock()


@functools.cache
def emulator_client(service: str, *, endpoint_url: str, region: str, attempts: int | None = None) -> Any:
    """Return a client that makes at most `attempts` attempts of each call. None leaves the number to the SDK."""
    from botocore.config import Config  # noqa: PLC0415 - the SDK would make --help slow

    config = Config(
        region_name=region,
        proxies={},
        max_pool_connections=MAX_EMULATOR_CONNECTIONS,
        **({} if attempts is None else _at_most(attempts)),
    )
    # Threads may share a client, but not the session that makes it.
    with _MAKING:
        session = emulator_session(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
        return session.client(service, endpoint_url=endpoint_url, config=config)


@functools.cache
def emulator_session(access_key_id: str, secret_access_key: str) -> boto3.Session:
    """Return a session that has these credentials and ignores the profiles of this machine."""
    import boto3  # noqa: PLC0415 - the SDK would make --help slow
    import botocore.session  # noqa: PLC0415

    return boto3.Session(
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        botocore_session=botocore.session.Session(session_vars=NOTHING_PERSONAL),
    )
