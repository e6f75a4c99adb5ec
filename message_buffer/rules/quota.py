"""Quotas in the form that the lanes use.

The module is separate from the rules, so that the lanes need not import pydantic.
"""

from typing import NamedTuple


class Quota(NamedTuple):
    """How much an account or a tenant may send in a minute. After a minute without messages, it may send the quota of a
    whole minute at once."""

    messages_per_minute: int
    conversations_per_minute: int
    """How many buffers its messages may open in a minute."""


class Charge(NamedTuple):
    """The quotas that a message is charged to."""

    account: str
    """`platform/account`, with each part escaped."""
    account_quota: Quota
    tenant: str = ""
    """The tenant's escaped name, or empty if no rule sets the tenant's quota."""
    tenant_quota: Quota | None = None
    is_exact: bool = False
    """True if a rule sets one of the quotas. If so, each message is charged alone; otherwise several messages are
    charged at once."""
