"""The table of takeovers. It has an item for each conversation that was handed to people, or that was handed back.
The item expires. It contains times and digests, but nothing that people wrote.
"""

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, number, texts
from message_buffer.limits import DAY_MS, HOUR_MS, SECOND_MS
from message_buffer.takeovers.takeover import Takeover

# Keep a takeover longer than a week after its end, because platforms try to deliver a webhook for up to a week.
TAKEOVER_KEPT_MS = 8 * DAY_MS
# Consumers together begin at most this many hand-offs in an hour of the clock, because they may invent conversations.
MAX_CONSUMERS_HAND_OFFS_IN_AN_HOUR = 10_000


class TakeoversTable(Table):
    def __init__(self, name: str, *, patience: aws.Patience = aws.HURRIED) -> None:
        super().__init__(name, patience=patience)

    def read(self, conversation: str) -> Takeover:
        return _to_takeover(self._get("read takeover", key_of(conversation)))

    def save(self, conversation: str, takeover: Takeover, *, now_ms: int) -> bool:
        """Store a changed takeover. Return False if another request has changed it since it was read."""
        before = takeover.version - 1
        values: Values = {
            "before": before, "version": takeover.version, "began": takeover.began_at_ms, "until": takeover.until_ms,
            "resumed": takeover.resumed_at_ms, "replies": list(takeover.reply_ids),
            "published": int(takeover.is_published),
            "expires": (max(now_ms, takeover.until_ms) + TAKEOVER_KEPT_MS) // SECOND_MS,
        }  # fmt: skip
        return self._update(
            "save takeover",
            key_of(conversation),
            "SET #version = :version, #began_at = :began, #until = :until, #resumed_at = :resumed, "
            "#replies = :replies, #published = :published, #expires_at = :expires",
            values,
            only_if="#version = :before" if before else "(attribute_not_exists(#version) OR #version = :before)",
        ).done

    def mark_published(self, conversation: str, *, began_at_ms: int) -> bool:
        """Record that the takeover was published. Return False if the takeover has ended since, or a new one has
        begun."""
        do, only_if = "SET #published = :true", "#began_at = :began AND #until > :zero"
        values: Values = {"true": 1, "began": began_at_ms, "zero": 0}
        return self._update("mark takeover", key_of(conversation), do, values, only_if=only_if).done

    def count_hand_off(self, now_ms: int) -> bool:
        """Count a hand-off by a consumer. Return False instead if this hour already has as many as it may."""
        return self._update(
            "count hand-off",
            key_of(f"hand-offs/{now_ms // HOUR_MS}"),
            "SET #expires_at = :expires ADD #begun :one",
            {"one": 1, "most": MAX_CONSUMERS_HAND_OFFS_IN_AN_HOUR, "expires": (now_ms + DAY_MS) // SECOND_MS},
            only_if="attribute_not_exists(#begun) OR #begun < :most",
        ).done

    def count(self, conversation: str) -> int:
        """Return the number of items that `forget` would delete: 0 or 1."""
        return int(bool(self._get("read takeover", key_of(conversation))))

    def forget(self, conversation: str) -> int:
        """Delete the conversation's item. Return 1, or 0 if there was none."""
        found = self.count(conversation)
        self._transact("forget takeover", [self._delete(key_of(conversation))])
        return found


def key_of(conversation: str) -> dict[str, str]:
    return {"conversation": conversation}


def _to_takeover(item: Item) -> Takeover:
    return Takeover(
        version=number(item, "version"),
        began_at_ms=number(item, "began_at"),
        until_ms=number(item, "until"),
        resumed_at_ms=number(item, "resumed_at"),
        reply_ids=tuple(texts(item, "replies")),
        is_published=number(item, "published") == 1,
    )
