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


# The quota of an account for which the rules set none.
ACCOUNT_QUOTA = Quota(messages_per_minute=30_000, conversations_per_minute=3_000)


class Charge(NamedTuple):
    """The quotas that a message is charged to: to all of them, or, if one is used up, to none."""

    quotas: tuple[tuple[str, Quota], ...]
    """Each quota with its name: an account's or door's is `platform/account`, a tenant's has no slash. Each part is
    escaped."""
    is_of_one_shard: bool = False
    """True if the Valkey lane charges all of it in one shard, which so has the whole quota instead of a share."""
    is_exact: bool = False
    """True if a rule sets one of the quotas. If so, each message is charged alone; otherwise several messages are
    charged at once."""

    def under(self, kind: str) -> "Charge":
        """Return the charge to quotas of the same sizes that count only this kind of item, one by one."""
        return self._replace(quotas=tuple((f"{kind}:{name}", quota) for name, quota in self.quotas), is_exact=True)
