"""The layer `platform`: waits that follow from how a channel delivers messages. They are assumed, not measured.

docs/rules.md#platforms has further sources, and says why the other channels have no numbers.
"""

from collections.abc import Mapping
from functools import cache

from message_buffer.rules.rules_and_defaults import RuleLayer


@cache
def _of_channels() -> Mapping[str, RuleLayer]:
    # Not made by the import, because a cold start without messages needs no rules.
    return {
        # A carrier may deliver the parts of a long text as messages of their own, seconds apart.
        "sms": RuleLayer(
            name="platform, assumed: https://github.com/zabsalahid/serialport-gsm/issues/111", silence_ms=5_000
        ),
        # Each photo of an album is a message without the album's id. At 400 kbit/s, the upload of 200 KB takes 4 s.
        "whatsapp": RuleLayer(
            name="platform, assumed: https://github.com/tulir/whatsmeow/issues/1103", media_silence_ms=4_000
        ),
        # A series of mails comes within one or two minutes.
        "email": RuleLayer(
            name="platform, assumed: https://github.com/uzyn/aimx/issues/16", silence_ms=120_000, max_wait_ms=600_000
        ),
    }


def numbers_of(platform: str, account: str) -> RuleLayer | None:
    """Return the layer of the account's channel. An account of Twilio begins with its channel, except for SMS, and that
    of a door with the door's name, which may be that of a channel."""
    channel, colon, _ = account.partition(":")
    if platform == "twilio" and not colon:
        channel = "sms"
    return _of_channels().get(channel if platform in ("twilio", "custom") else platform)
