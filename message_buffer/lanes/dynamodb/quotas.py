"""The quotas of the DynamoDB lane. For each minute, an item counts the messages of an account or of a tenant.

conversation     item        attributes
quota:<name>     <minute>    used, expires_at
"""

from math import ceil
from random import randrange

from message_buffer.aws.dynamodb import Table, Values
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.items import key_of, seconds
from message_buffer.limits import MINUTE_MS
from message_buffer.rules.quota import Charge, Quota

# An item takes a thousand writes a second. A higher quota is divided into several items, each with an equal share.
MAX_QUOTA_OF_AN_ITEM = 30_000


class Quotas(Table):
    def charge(self, charge: Charge, *, items: int, now_ms: int) -> o.Charged | o.MessageRefused:
        """Count the items of a webhook, or refuse them if a quota is used up. If anything is left of the quotas, admit
        all items."""
        wait_ms = MINUTE_MS - now_ms % MINUTE_MS
        if not self._add(charge.account, charge.account_quota, items, now_ms):
            return o.MessageRefused("account_messages", wait_ms)
        if charge.tenant_quota and not self._add(charge.tenant, charge.tenant_quota, items, now_ms):
            return o.MessageRefused("tenant_messages", wait_ms)
        return o.Charged()

    def _add(self, name: str, quota: Quota, items: int, now_ms: int) -> bool:
        shares = ceil(quota.messages_per_minute / MAX_QUOTA_OF_AN_ITEM)
        key = key_of(f"quota:{name}", f"{now_ms // MINUTE_MS}.{randrange(shares)}")  # noqa: S311 - no secret
        values: Values = {
            "items": items,
            "most": ceil(quota.messages_per_minute / shares),
            "expires": seconds(now_ms + 2 * MINUTE_MS),
        }
        only_if = "attribute_not_exists(#used) OR #used < :most"
        do = "SET #expires_at = :expires ADD #used :items"
        return self._update("charge quota", key, do, values, only_if=only_if).done
