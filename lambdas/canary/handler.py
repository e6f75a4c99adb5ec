"""Lambda entry of the canary, which a rule invokes every five minutes."""

from functools import cache
from typing import Any

from lambdas.canary.listening import Subscription
from lambdas.canary.service import Canary
from lambdas.canary.webhook import GenericWebhook, generic_secret
from message_buffer.aws import clients as aws
from message_buffer.aws.secrets import Secrets
from message_buffer.errors import InvalidSettings
from message_buffer.settings import CanarySettings, read_settings
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[CanarySettings, Telemetry]:
    settings = read_settings(CanarySettings)
    return settings, Telemetry(settings.log)


def handler(event: dict[str, Any], context: Any) -> None:
    """Try the stage once. An unexpected error fails the invocation, and the alarm counts failed invocations."""
    settings, telemetry = _parts()
    try:
        # Read the secret in each run, because it may have been replaced.
        secret = generic_secret(Secrets().read(settings.webhook_secret_id))
        if secret is None:
            raise InvalidSettings("The stage has no secret for the generic webhook, with which the canary signs.")
        canary = Canary(
            GenericWebhook(settings.api_endpoint, secret),
            Subscription(aws.client("sqs"), settings.queue_url),
            telemetry,
        )
        canary.run(str(event["id"]), context.get_remaining_time_in_millis)
    except Exception as error:
        telemetry.crash("canary crashed", error)
        raise
    finally:
        telemetry.flush()
