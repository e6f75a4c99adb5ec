"""Decides how long people answer a conversation.

A takeover begins with a human agent's first reply, or when an operator or a consumer hands the conversation off. After
each further reply, the rule's time begins again. The latest end that replies can reach depends on the beginning alone.
A hand-back ends the takeover. All times are those of the replies, not of their deliveries, so a reply that is delivered
twice, late or in another order does no harm.
"""

from collections.abc import Sequence
from hashlib import blake2s
from typing import NamedTuple

# However many replies follow, they prolong a takeover to at most this many lengths of a hold after its beginning.
MAX_HOLDS_IN_A_TAKEOVER = 2
# A takeover remembers the ids of this many of the agent's latest messages, to recognise a redelivery.
MAX_REPLIES_REMEMBERED = 50
DIGEST_BYTES = 12


class Takeover(NamedTuple):
    """The state of a conversation's takeover. If there has been no takeover, its times are 0."""

    version: int = 0
    began_at_ms: int = 0
    until_ms: int = 0
    resumed_at_ms: int = 0
    """When the conversation was last handed back. Replies from before that time have no effect."""
    reply_ids: Sequence[str] = ()
    """Digests of the ids of the latest replies."""
    is_published: bool = False
    """True if the takeover was published."""

    def is_on(self, now_ms: int) -> bool:
        return self.until_ms > now_ms

    def after_reply(self, reply_id: str, *, at_ms: int, hold_ms: int, now_ms: int) -> "Takeover":
        """Return the state after a human agent's reply. If the reply changes nothing, return this state."""
        at_ms, digest = min(at_ms, now_ms), _digest_of(reply_id)
        if at_ms <= self.resumed_at_ms or digest in self.reply_ids:
            return self
        continues = self.until_ms > at_ms
        began_at_ms = self.began_at_ms if continues else at_ms
        wanted_ms = min(at_ms + hold_ms, began_at_ms + MAX_HOLDS_IN_A_TAKEOVER * hold_ms)
        until_ms = max(wanted_ms, self.until_ms if continues else 0)
        if until_ms <= now_ms:
            return self
        begun = self._begun(began_at_ms, until_ms, continues=continues)
        return begun._replace(reply_ids=(*self.reply_ids, digest)[-MAX_REPLIES_REMEMBERED:])

    def after_hand_off(self, *, until_ms: int, now_ms: int) -> "Takeover":
        """Return the state after an operator or a consumer has handed the conversation to people until `until_ms`."""
        continues = self.is_on(now_ms)
        began_at_ms = self.began_at_ms if continues else now_ms
        return self._begun(began_at_ms, max(until_ms, self.until_ms), continues=continues)

    def after_hand_back(self, now_ms: int) -> "Takeover":
        """Return the state after the takeover has ended, from which replies from before `now_ms` have no effect."""
        return self._replace(version=self.version + 1, until_ms=0, resumed_at_ms=now_ms)

    def _begun(self, began_at_ms: int, until_ms: int, *, continues: bool) -> "Takeover":
        return self._replace(
            version=self.version + 1,
            began_at_ms=began_at_ms,
            until_ms=until_ms,
            is_published=self.is_published and continues,
        )


def _digest_of(message_id: str) -> str:
    return blake2s(message_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).hexdigest()
