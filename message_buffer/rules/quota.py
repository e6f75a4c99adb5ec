"""Quotas as the lanes take them, in a module without pydantic, which the rules need."""

from typing import NamedTuple


class Quota(NamedTuple):
    """How much an account or a tenant may send in a minute, and at once after a minute of silence."""

    messages_per_minute: int
    conversations_per_minute: int
    """The number of buffers that may be opened."""


class Charge(NamedTuple):
    """The quotas that a message is charged to."""

    account: str
    """`platform/account`, with each part escaped."""
    account_quota: Quota
    tenant: str = ""
    """The tenant with its name escaped, or nothing if no rule sets the tenant's quota."""
    tenant_quota: Quota | None = None
    is_exact: bool = False
    """A rule sets one of the quotas, so each message is charged. Otherwise a few are charged at once."""
