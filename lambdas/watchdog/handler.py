"""Lambda entry of the watchdog, which makes a pass for every event, whatever the event contains.

A rule starts a pass every minute, and a queue starts another pass 30 seconds later. A second queue delivers Lambda's
records of failed runs of the processor, each at the time when the dead processor's lease has expired.
"""

from functools import cache
from typing import Any

from lambdas.watchdog.service import Watchdog
from message_buffer.lanes.opening import open_valkey_lane
from message_buffer.limits import MAX_CALL_MS
from message_buffer.settings import WatchdogSettings, read_settings
from message_buffer.telemetry import Telemetry

# The maximum time of a processor's start. A pass ends when the time left is not enough for a call to Valkey and such a
# start.
MAX_PROCESSOR_START_MS = MAX_CALL_MS


@cache
def _parts() -> tuple[Watchdog, Telemetry]:
    settings = read_settings(WatchdogSettings)
    telemetry = Telemetry(settings.log)
    lane = open_valkey_lane(settings.valkey, telemetry)
    max_step_ms = settings.valkey.connection.max_call_ms + MAX_PROCESSOR_START_MS
    return Watchdog(lane, telemetry, max_step_ms=max_step_ms), telemetry


def handler(event: dict[str, Any], context: Any) -> None:
    watchdog, telemetry = _parts()
    try:
        watchdog.run_pass(context.get_remaining_time_in_millis)
    except Exception as error:
        telemetry.crash("pass failed", error)
        # Let only a pass of the rule fail, because the alarm counts failed invocations. If a pass of a queue failed,
        # Lambda would poll the queue more slowly and repeat the pass, although the next one starts in half a minute.
        if not event.get("Records"):
            raise
    finally:
        telemetry.flush()
