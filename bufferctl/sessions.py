"""Sessions with AWS, or with the emulator of a local stage: plain AWS APIs at another address."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import boto3

# The emulator's root user.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
# For the admin function, whose time-out is a minute: whether to ask it again, a person decides.
ONCE = {"read_timeout": 70, "retries": {"total_max_attempts": 1}}
# A person's profiles, files and proxies are for real accounts.
NOTHING_PERSONAL = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}


@functools.cache
def emulator_client(service: str, *, endpoint_url: str, region: str, asked_once: bool = False) -> Any:
    from botocore.config import Config  # noqa: PLC0415 - the SDK would make --help slow

    return emulator_session(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]).client(
        service,
        endpoint_url=endpoint_url,
        config=Config(region_name=region, proxies={}, max_pool_connections=50, **(ONCE if asked_once else {})),
    )


@functools.cache
def emulator_session(access_key_id: str, secret_access_key: str) -> boto3.Session:
    """Somebody's session, which knows nothing of this machine's profiles."""
    import boto3  # noqa: PLC0415 - the SDK would make --help slow
    import botocore.session  # noqa: PLC0415

    return boto3.Session(
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        botocore_session=botocore.session.Session(session_vars=NOTHING_PERSONAL),
    )
