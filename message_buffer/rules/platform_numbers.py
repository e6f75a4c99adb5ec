"""The layer `platform`: waits that follow from how a channel delivers messages. They are assumed, not measured.

docs/rules.md#platforms has further sources, and says why the other channels have no numbers.
"""

from collections.abc import Mapping
from typing import NamedTuple

from message_buffer.rules.rules_and_defaults import RuleValue

PLATFORM_LAYER = "platform"


class PlatformNumbers(NamedTuple):
    values: Mapping[str, RuleValue]
    source: str


_OF_CHANNELS: Mapping[str, PlatformNumbers] = {
    # A carrier may deliver the parts of a long text as messages of their own, seconds apart.
    "sms": PlatformNumbers({"silence_ms": 5_000}, "assumed: https://github.com/zabsalahid/serialport-gsm/issues/111"),
    # Each photo of an album is a message without the album's id. At 400 kbit/s, the upload of 200 KB takes 4 s.
    "whatsapp": PlatformNumbers({"media_silence_ms": 4_000}, "assumed: https://github.com/tulir/whatsmeow/issues/1103"),
}


def numbers_of(platform: str, account: str) -> PlatformNumbers | None:
    """Return the numbers of the account's channel. An account of Twilio begins with its channel, except for SMS."""
    channel, colon, _ = account.partition(":")
    return _OF_CHANNELS.get((channel if colon else "sms") if platform == "twilio" else platform)
