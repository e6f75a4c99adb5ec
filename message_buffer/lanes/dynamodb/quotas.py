"""The quotas of the DynamoDB lane. One item a minute counts the messages of an account or a tenant.

conversation     item                attributes
quota:<name>     <minute>.<share>    used, expires_at

A high quota has several such items, its shares. One item an hour counts the holds that consumers begin.
"""

from math import ceil
from random import randrange

from message_buffer.aws.dynamodb import Table, Values
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.items import key_of, seconds
from message_buffer.limits import HOUR_MS, MINUTE_MS
from message_buffer.rules.quota import Charge

# An item takes a thousand writes a second. A higher quota is divided into several items, each with an equal share.
MAX_QUOTA_OF_AN_ITEM = 30_000
# All consumers together begin at most this many holds in an hour, so that a faulty consumer cannot stop the stage.
MAX_CONSUMERS_HOLDS_IN_AN_HOUR = 10_000


class Quotas(Table):
    def charge(self, charge: Charge, *, items: int, now_ms: int) -> o.Charged | o.MessageRefused:
        """Count the items of a webhook, or refuse them if a quota is used up. If anything is left of the quotas, admit
        all items."""
        charged: list[Values] = []
        for name, quota in charge.quotas:
            counter = self._count(name, items, most=quota.messages_per_minute, now_ms=now_ms)
            if counter is None:
                for each in charged:
                    self._update("return charge", each, "ADD #used :less", {"less": -items})
                reason: o.RefusalReason = "account_messages" if "/" in name else "tenant_messages"
                return o.MessageRefused(reason, MINUTE_MS - now_ms % MINUTE_MS)
            charged.append(counter)
        return o.Charged()

    def count_hold(self, now_ms: int) -> bool:
        """Count a hold that a consumer begins. Return False if consumers have begun too many in this hour."""
        most = MAX_CONSUMERS_HOLDS_IN_AN_HOUR
        return self._count("holds/consumers", 1, most=most, now_ms=now_ms, period_ms=HOUR_MS) is not None

    def _count(self, name: str, items: int, *, most: int, now_ms: int, period_ms: int = MINUTE_MS) -> Values | None:
        """Return the key of the item that has counted these items, or None if as many as `most` were counted before."""
        shares = ceil(most / MAX_QUOTA_OF_AN_ITEM)
        key = key_of(f"quota:{name}", f"{now_ms // period_ms}.{randrange(shares)}")  # noqa: S311 - no secret
        values: Values = {"items": items, "most": ceil(most / shares), "expires": seconds(now_ms + 2 * period_ms)}
        only_if = "attribute_not_exists(#used) OR #used < :most"
        do = "SET #expires_at = :expires ADD #used :items"
        return key if self._update("charge quota", key, do, values, only_if=only_if).done else None
