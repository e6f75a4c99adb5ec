"""The platforms that can send us messages, by the name in the webhook's path."""

from collections.abc import Mapping

from lambdas.ingest.platforms.base import Platform
from lambdas.ingest.platforms.generic import Generic
from lambdas.ingest.platforms.messenger import Instagram, Messenger
from lambdas.ingest.platforms.telegram import Telegram
from lambdas.ingest.platforms.twilio import Twilio
from lambdas.ingest.platforms.whatsapp import WhatsApp

PLATFORMS: Mapping[str, Platform] = {
    platform.name: platform for platform in (Generic(), WhatsApp(), Messenger(), Instagram(), Twilio(), Telegram())
}
