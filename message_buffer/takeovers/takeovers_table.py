"""The table of takeovers. Its partition key is `id`, a conversation; its sort key is `part`.

| part | item |
|---|---|
| `!` | the takeover, the last resume, and the send of our responder that is under way |
| `s#<digest of a message id>` | a message that our responder sent |

The table contains times and digests, but no words. All items expire.
"""

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, expressions, number, text, texts
from message_buffer.limits import SECOND_MS, TAKEOVER_KEPT_MS, UNCONFIRMED_SENDS_ARE_ONE_WITHIN_MS
from message_buffer.takeovers.takeover import Interval, Takeover, digest_of

STATE = "!"

# If this holds, the next unconfirmed send prolongs the stored interval instead of replacing it.
_HAS_RECENT_DOUBT = "#unsure_until > :recent"


class TakeoversTable(Table):
    def __init__(self, name: str, *, patience: aws.Patience = aws.HURRIED) -> None:
        super().__init__(name, patience=patience)

    # -- replies of a person -----------------------------------------------------------------------

    def read(self, conversation: str) -> Takeover:
        return _to_takeover(self._get("read takeover", _key(conversation, STATE)))

    def save(self, conversation: str, takeover: Takeover, *, now_ms: int) -> bool:
        """Store a takeover after a reply. Return False if another request has changed it since it was read."""
        before = takeover.version - 1
        values: Values = {
            "before": before, "version": takeover.version, "began": takeover.began_at_ms, "until": takeover.until_ms,
            "replies": list(takeover.reply_ids), "published": int(takeover.is_published),
            "expires": _expires_at(now_ms),
        }  # fmt: skip
        unchanged = "#version = :before" if before else "(attribute_not_exists(#version) OR #version = :before)"
        return self._update(
            "save takeover",
            _key(conversation, STATE),
            "SET #version = :version, #began_at = :began, #until = :until, #replies = :replies, "
            "#published = :published, #expires_at = :expires",
            values,
            only_if=unchanged,
        ).done

    def mark_published(self, conversation: str, *, began_at_ms: int) -> bool:
        """Record that the takeover was published. Return False if it was resumed or replaced since."""
        do, only_if = "SET #published = :true", "#began_at = :began AND #until > :zero"
        values: Values = {"true": 1, "began": began_at_ms, "zero": 0}
        return self._update("mark takeover", _key(conversation, STATE), do, values, only_if=only_if).done

    def resume(self, conversation: str, *, now_ms: int) -> None:
        """End a takeover, and ignore every reply from before this time."""
        values: Values = {"now": now_ms, "zero": 0, "one": 1, "expires": _expires_at(now_ms)}
        do = "SET #resumed_at = :now, #until = :zero, #expires_at = :expires ADD #version :one"
        self._update("resume takeover", _key(conversation, STATE), do, values)

    # -- messages of our responder -----------------------------------------------------------------

    def begin_sending(self, conversation: str, *, now_ms: int, until_ms: int) -> None:
        """Record that the responder is sending a message. It must end the send by `until_ms`.

        If the end of the previous send was not recorded, that message may have been accepted.
        """
        key = _key(conversation, STATE)
        values: Values = {"from": now_ms, "until": until_ms, "expires": _expires_at(now_ms)}
        do = "SET #sending_from = :from, #sending_until = :until, #expires_at = :expires"
        ended = "attribute_not_exists(#sending_from)"
        if self._update("begin sending", key, do, values, only_if=ended).done:
            return
        doubt, doubt_first = ", #unsure_until = #sending_until", ", #unsure_from = #sending_from"
        recent = {**values, "recent": _recent(now_ms)}
        if not self._update("begin sending", key, do + doubt, recent, only_if=_HAS_RECENT_DOUBT).done:
            self._update("begin sending", key, do + doubt + doubt_first, values)

    def end_sending(self, conversation: str, message_id: str | None, *, now_ms: int) -> None:
        """Record the id of the message, or None if the platform certainly did not accept it."""
        ended = self._change(_key(conversation, STATE), "REMOVE #sending_from, #sending_until")
        sent = [self._new({**_sent(conversation, message_id), "expires_at": _expires_at(now_ms)})] if message_id else []
        self._transact("end sending", [*sent, ended])

    def doubt_sending(self, conversation: str, *, now_ms: int, until_ms: int) -> None:
        """Record that, by `until_ms`, the platform may have accepted a message whose id will never be known."""
        key, end = _key(conversation, STATE), " REMOVE #sending_from, #sending_until"
        values: Values = {"until": until_ms, "expires": _expires_at(now_ms)}
        do = "SET #unsure_until = :until, #expires_at = :expires"
        recent = {**values, "recent": _recent(now_ms)}
        if not self._update("doubt sending", key, do + end, recent, only_if=_HAS_RECENT_DOUBT).done:
            first = ", #unsure_from = if_not_exists(#sending_from, :now)"
            self._update("doubt sending", key, do + first + end, {**values, "now": now_ms})

    def was_sent_by_us(self, conversation: str, message_id: str) -> bool:
        return bool(self._get("read sent message", _sent(conversation, message_id)))

    # -- forgetting --------------------------------------------------------------------------------

    def count(self, conversation: str) -> int:
        """Return the number of items about the conversation."""
        return len(self._parts(conversation))

    def forget(self, conversation: str) -> int:
        """Delete all items about the conversation. Return their number."""
        parts = self._parts(conversation)
        for part in parts:
            with aws.errors_as_ours("forget takeover"):
                self._client.delete_item(TableName=self.name, Key=_wire_key(conversation, part))
        return len(parts)

    def _parts(self, conversation: str) -> list[str]:
        query = expressions({"id": conversation}, KeyConditionExpression="#id = :id", ProjectionExpression="#part")
        return [text(item, "part") for item in self._pages("read takeover", "query", query)]


def _key(conversation: str, part: str) -> dict[str, str]:
    return {"id": conversation, "part": part}


def _wire_key(conversation: str, part: str) -> Item:
    return {"id": {"S": conversation}, "part": {"S": part}}


def _sent(conversation: str, message_id: str) -> dict[str, str]:
    return _key(conversation, f"s#{digest_of(message_id)}")


def _recent(now_ms: int) -> int:
    return now_ms - UNCONFIRMED_SENDS_ARE_ONE_WITHIN_MS


def _expires_at(now_ms: int) -> int:
    return (now_ms + TAKEOVER_KEPT_MS) // SECOND_MS


def _to_takeover(item: Item) -> Takeover:
    return Takeover(
        version=number(item, "version"),
        began_at_ms=number(item, "began_at"),
        until_ms=number(item, "until"),
        resumed_at_ms=number(item, "resumed_at"),
        reply_ids=tuple(texts(item, "replies")),
        is_published=number(item, "published") == 1,
        sending=Interval(number(item, "sending_from"), number(item, "sending_until")),
        unsure=Interval(number(item, "unsure_from"), number(item, "unsure_until")),
    )
