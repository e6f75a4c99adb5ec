"""Reads the environment variables that AWS's SDKs also read: credentials, region, endpoint and trace id."""

import os
from typing import NamedTuple


class Keys(NamedTuple):
    access: str
    secret: str
    token: str | None


def read_keys() -> Keys | None:
    """Return the credentials of the function's role, or None if the environment has none."""
    access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    return Keys(access, secret, os.environ.get("AWS_SESSION_TOKEN")) if access and secret else None


def read_region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def read_endpoint_url() -> str | None:
    """Return the one address of all services, as on the local stage, or None if each has its usual address."""
    return os.environ.get("AWS_ENDPOINT_URL")


def is_provisioned() -> bool:
    """Return whether Lambda starts this instance before an event needs it (provisioned concurrency).

    Such an instance can do slow work in advance, because no event waits. Later, it has only a small part of a CPU.
    """
    return os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "provisioned-concurrency"


def read_trace_id() -> str | None:
    """Return the id of the invocation's trace. Lambda uses it to detect functions that invoke each other in a loop."""
    return os.environ.get("_X_AMZN_TRACE_ID")
