"""The quotas of the DynamoDB lane. For each minute, an item counts the messages of an account or of a tenant.

conversation     item        attributes
quota:<name>     <minute>    used, expires_at
"""

from math import ceil
from random import randrange

from message_buffer.aws.dynamodb import Table, Values
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.items import key_of, seconds
from message_buffer.limits import MAX_QUOTA, MINUTE_MS
from message_buffer.rules.quota import Charge

# An item takes a thousand writes a second. A higher quota is divided into several items, each with an equal share.
MAX_QUOTA_OF_AN_ITEM = 30_000


class Quotas(Table):
    def charge(self, charge: Charge, *, items: int, now_ms: int) -> o.Charged | o.MessageRefused:
        """Count the items of a webhook, or refuse them if a quota is used up. If anything is left of the quotas, admit
        all items."""
        charged: list[Values] = []
        for name, quota in charge.quotas:
            shares = ceil(quota.messages_per_minute / MAX_QUOTA_OF_AN_ITEM)
            key = key_of(f"quota:{name}", f"{now_ms // MINUTE_MS}.{randrange(shares)}")  # noqa: S311 - no secret
            if not self._add(key, items, most=ceil(quota.messages_per_minute / shares), now_ms=now_ms):
                for each in charged:
                    self._add(each, -items, most=MAX_QUOTA, now_ms=now_ms)
                wait_ms = MINUTE_MS - now_ms % MINUTE_MS
                return o.MessageRefused("account_messages" if "/" in name else "tenant_messages", wait_ms)
            charged.append(key)
        return o.Charged()

    def _add(self, key: Values, items: int, *, most: int, now_ms: int) -> bool:
        values: Values = {"items": items, "most": most, "expires": seconds(now_ms + 2 * MINUTE_MS)}
        only_if = "attribute_not_exists(#used) OR #used < :most"
        do = "SET #expires_at = :expires ADD #used :items"
        return self._update("charge quota", key, do, values, only_if=only_if).done
