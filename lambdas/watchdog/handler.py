"""Lambda entry of the watchdog: every minute by rule, and half a minute later by queue; both mean the same."""

from functools import cache
from typing import Any

from lambdas import environment as config
from lambdas.watchdog.service import Watchdog
from message_buffer.lanes.opening import open_valkey_lane
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[Watchdog, Telemetry]:
    settings, telemetry = config.read_watchdog(), Telemetry()
    return Watchdog(open_valkey_lane(settings.valkey, telemetry), telemetry), telemetry


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
