"""Lambda entry of the watchdog: a rule starts a pass every minute, and a queue starts another one 30 seconds later."""

from functools import cache
from typing import Any

from lambdas import environment as config
from lambdas.limits import MAX_PROCESSOR_START_MS
from lambdas.watchdog.service import Watchdog
from message_buffer.lanes.opening import open_valkey_lane
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[Watchdog, Telemetry]:
    settings, telemetry = config.read_watchdog(), Telemetry(config.log_id_key())
    max_step_ms = settings.valkey.connection.max_call_ms + MAX_PROCESSOR_START_MS
    return Watchdog(open_valkey_lane(settings.valkey, telemetry), telemetry, max_step_ms=max_step_ms), telemetry


def handler(_event: dict[str, Any], context: Any) -> None:
    watchdog, telemetry = _parts()
    try:
        watchdog.run_pass(context.get_remaining_time_in_millis)
    except Exception as error:
        # Raise again, because the alarm counts failed invocations. The next pass comes in half a minute.
        telemetry.crash("pass failed", error)
        raise
    finally:
        telemetry.flush()
