"""Sends simulated customers' webhooks: those of two platforms to the local stage, only generic ones to other stages."""

import json
from typing import NamedTuple

import urllib3

from bufferctl.errors import Unreachable
from bufferctl.stage import StageClient
from lambdas.canary.webhook import GenericWebhook, WebhookUnreachable
from message_buffer.json_object import Json
from tools.console.customers import KINDS, PostedWebhook
from tools.local.outputs import Outputs
from tools.local.webhooks import Webhooks

NO_ANSWER = "The webhook does not answer. If the local stage has ended, start it again with `make up`."


class SenderResponse(NamedTuple):
    status: int
    body: Json
    """Empty if the platform expects no JSON."""


class LocalSender:
    """Posts webhooks as their platforms would. `kinds` are those that can be sent, by platform."""

    def __init__(self, outputs: Outputs) -> None:
        self._webhooks = Webhooks(outputs)
        self.kinds = {name: kinds for name, kinds in KINDS.items() if name in outputs.WebhookSecrets}

    def send(self, platform: str, posted: PostedWebhook) -> SenderResponse:
        """Post a webhook. Raise Unreachable if the stage does not answer."""
        try:
            response = self._webhooks.post(platform, posted.body, route=posted.route)
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(NO_ANSWER) from error
        return SenderResponse(response.status, _object(response.body))


class GenericSender:
    """Sends webhooks that are signed with the stage's secret, as `bufferctl send` does."""

    def __init__(self, stage: StageClient) -> None:
        self._stage = stage
        # Leave out typing, because `GenericWebhook` cannot post to the address of the typing route.
        self.kinds = {"generic": tuple(kind for kind in KINDS["generic"] if kind != "typing")}

    def send(self, _platform: str, posted: PostedWebhook) -> SenderResponse:
        try:
            response = GenericWebhook(self._stage.api_endpoint, self._stage.webhook_secret()).post(posted.body)
        except WebhookUnreachable as error:
            raise Unreachable(str(error)) from error
        return SenderResponse(response.status, _object(response.body))


Sender = LocalSender | GenericSender


def _object(body: str | bytes) -> Json:
    try:
        parsed = json.loads(body)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
