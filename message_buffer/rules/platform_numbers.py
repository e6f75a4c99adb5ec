"""The layer `platform`: waits that follow from how a channel delivers messages, not from how its customers write.

The numbers are assumed from reports of others. A channel has a number only if its mechanics differ from the defaults;
docs/rules.md says why the other channels have none.
"""

from collections.abc import Mapping
from typing import NamedTuple

from message_buffer.rules.rules_and_defaults import RuleValue

PLATFORM_LAYER = "platform"


class PlatformNumbers(NamedTuple):
    values: Mapping[str, RuleValue]
    source: str
    """Where the values come from, as `rules explain` shows it."""


_OF_CHANNELS: Mapping[str, PlatformNumbers] = {
    # A carrier may deliver the parts of a long text as messages of their own
    # (https://shuffle.zendesk.com/hc/en-us/articles/115001559206-Message-Segments-Sequence), seconds apart
    # (https://github.com/moezbhatti/qksms/issues/608). For some modems, 5 s are not enough (the source).
    "sms": PlatformNumbers({"silence_ms": 5_000}, "assumed: https://github.com/zabsalahid/serialport-gsm/issues/111"),
    # Each photo of an album is a message of its own, without the album's id (the source), and comes when its upload is
    # done. 200 KB (https://filecurve.com/blog/whatsapp-image-compression-how-to-send-original-quality) take 4 s at
    # 400 kbit/s.
    "whatsapp": PlatformNumbers({"media_silence_ms": 4_000}, "assumed: https://github.com/tulir/whatsmeow/issues/1103"),
}


def numbers_of(platform: str, account: str) -> PlatformNumbers | None:
    """Return the numbers of the account's channel, or None if the defaults suit the channel."""
    # An account of Twilio begins with the name of its channel, except for SMS.
    channel, colon, _ = account.partition(":")
    return _OF_CHANNELS.get((channel if colon else "sms") if platform == "twilio" else platform)
