"""Lambda entry of the watchdog: a rule starts a pass every minute, and a queue starts another half a minute later."""

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
        watchdog.run_pass(context.get_remaining_time_in_millis)
    except Exception as error:
        # Raise again, because the alarm counts failed invocations. The next pass comes in half a minute.
        telemetry.crash("pass failed", error)
        raise
    finally:
        telemetry.flush()
