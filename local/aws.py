"""Clients for the emulator: plain AWS APIs at another address."""

import functools
import os
from typing import Any

import boto3
import botocore.session
from botocore.config import Config

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
# A person's profiles, files and proxies are for real accounts.
NOTHING_PERSONAL = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}


@functools.cache
def client(service: str, *, endpoint_url: str, region: str) -> Any:
    return _session().client(
        service,
        endpoint_url=endpoint_url,
        config=Config(region_name=region, proxies={}, max_pool_connections=50),
    )


@functools.cache
def _session() -> boto3.Session:
    return boto3.Session(
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        botocore_session=botocore.session.Session(session_vars=NOTHING_PERSONAL),
    )
