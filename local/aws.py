"""Clients for the emulator: plain AWS APIs at another address."""

import functools
import os
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

# The emulator's root user.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
# A person's profiles, files and proxies are for real accounts.
NOTHING_PERSONAL = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}


@functools.cache
def client(service: str, *, endpoint_url: str, region: str) -> Any:
    return session(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]).client(
        service,
        endpoint_url=endpoint_url,
        config=Config(region_name=region, proxies={}, max_pool_connections=50),
    )


@functools.cache
def session(access_key_id: str, secret_access_key: str) -> boto3.Session:
    """Somebody's session, which knows nothing of this machine's profiles."""
    return boto3.Session(
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        botocore_session=botocore.session.Session(session_vars=NOTHING_PERSONAL),
    )
