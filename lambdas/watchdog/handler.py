"""Lambda entry of the watchdog.

A rule starts a pass every minute, and a queue starts the next pass 30 seconds later. The queue of notices invokes the
watchdog with some notices, and the watchdog returns those that the queue must deliver again.
"""

from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from lambdas.limits import MAX_PROCESSOR_START_MS
from lambdas.watchdog.notices import NoticeQueue, Notices
from lambdas.watchdog.service import Watchdog
from message_buffer.aws.functions import Functions
from message_buffer.errors import SendFailed
from message_buffer.lanes.opening import open_valkey_lane
from message_buffer.settings import WatchdogSettings
from message_buffer.telemetry import Telemetry
from message_buffer.variables import read_settings


class _Parts(NamedTuple):
    watchdog: Watchdog
    notices: Notices
    notice_queue: str
    """A colon and the name of the queue with the notices, which is the end of its ARN."""
    telemetry: Telemetry


@cache
def _parts() -> _Parts:
    settings = read_settings(WatchdogSettings)
    telemetry = Telemetry(settings.log)
    lane = open_valkey_lane(settings.valkey, telemetry)
    max_step_ms = settings.valkey.connection.max_call_ms + MAX_PROCESSOR_START_MS
    return _Parts(
        Watchdog(lane, telemetry, max_step_ms=max_step_ms),
        Notices(lane, NoticeQueue(settings.notice_queue_url), telemetry, max_step_ms=max_step_ms),
        f":{settings.notice_queue_url.rpartition('/')[2]}",
        telemetry,
    )


def handler(event: dict[str, Any], context: Any) -> dict[str, Any] | None:
    watchdog, notices, notice_queue, telemetry = _parts()
    records = event.get("Records") or []
    try:
        if records and records[0]["eventSourceARN"].endswith(notice_queue):
            again = notices.handle(records, context.get_remaining_time_in_millis)
            return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in again]}
        watchdog.run_pass(context.get_remaining_time_in_millis)
        # The passes keep this instance warm. With an open connection it can act on a notice at once.
        with suppress(SendFailed):
            Functions().prepare()
    except Exception as error:
        # Raise again, because the alarm counts failed invocations. The next pass comes in half a minute.
        telemetry.crash("pass failed", error)
        raise
    finally:
        telemetry.flush()
    return None
