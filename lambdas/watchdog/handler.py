"""Lambda entry of the watchdog: every minute by rule, and half a minute later by queue; both mean the same."""

from functools import cache
from typing import Any

from lambdas import environment as config
from lambdas.watchdog.service import Watchdog
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.aws.functions import Functions
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.sign_in import Opener, open_store
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[Watchdog, Telemetry]:
    settings, telemetry = config.read_watchdog(), Telemetry()
    opener = Opener(settings.valkey, sign_cache_token, count_swallowed=lambda: telemetry.count("StoreRetries"))
    store = open_store(settings.valkey, opener)
    return Watchdog(store, ProcessorStarter(Functions(), settings.processor_function, telemetry), telemetry), telemetry


def handler(_event: dict[str, Any], context: Any) -> None:
    watchdog, telemetry = _parts()
    try:
        watchdog.sweep(context.get_remaining_time_in_millis)
    except Exception as error:
        # Raised again: a failed invocation is what the alarm looks at. The next pass comes in half a minute.
        telemetry.crash("sweep failed", error)
        raise
    finally:
        telemetry.flush()
