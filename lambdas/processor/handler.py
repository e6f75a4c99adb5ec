"""Lambda entry of the processor, which is invoked asynchronously with `{"shard": n}`."""

from contextlib import suppress
from functools import cache
from threading import Thread
from typing import Any, NamedTuple

from lambdas.processor.service import MAX_STARTS_AT_ONCE, ConversationProcessors, Exit, Processor, Timings
from message_buffer.aws.environment import is_provisioned
from message_buffer.aws.functions import Functions
from message_buffer.errors import MessageBufferError, SendFailed
from message_buffer.lanes.opening import open_valkey
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.sign_in import Opener
from message_buffer.lanes.valkey.store import Store
from message_buffer.lanes.valkey.wake import Wake
from message_buffer.settings import ProcessorSettings, read_settings
from message_buffer.telemetry import Telemetry


class _ProcessorParts(NamedTuple):
    """The parts that an instance keeps from one run to the next."""

    settings: ProcessorSettings
    opener: Opener
    store: Store
    functions: Functions
    telemetry: Telemetry


@cache
def _parts() -> _ProcessorParts:
    settings = read_settings(ProcessorSettings)
    telemetry = Telemetry(settings.log)
    opener = open_valkey(settings.valkey, telemetry)
    store = Store(opener.connection(), settings.valkey.store)
    return _ProcessorParts(settings, opener, store, Functions(connections=MAX_STARTS_AT_ONCE), telemetry)


@cache
def _warm_up_conversation_processor() -> Thread:
    """Start an instance of the conversation processor, so that it can connect while the first conversation waits.

    This instance is new, so the stage was probably idle, and the other function has no warm instance either. If the
    start fails, the first batch waits for a cold start.
    """
    parts = _parts()

    def start() -> None:
        with suppress(SendFailed):
            parts.functions.start(parts.settings.conversation_processor_function, {"warm": True})

    thread = Thread(target=start, daemon=True)
    thread.start()
    return thread


def handler(event: dict[str, Any], context: Any) -> dict[str, str]:
    parts = _parts()
    _warm_up_conversation_processor()
    shard = int(event["shard"])
    parts.telemetry.info("processor began", shard=shard)
    processor = Processor(
        store=parts.store,
        wake=Wake(parts.opener.open, shard, swallowed=parts.opener.swallowed),
        conversation_processors=ConversationProcessors(parts.functions, parts.settings.conversation_processor_function),
        starter=ProcessorStarter(parts.functions, parts.settings.valkey.processor_function, parts.telemetry),
        telemetry=parts.telemetry,
        timings=Timings(
            parts.settings.idle_ms, parts.settings.handover_ms, parts.settings.valkey.connection.max_call_ms
        ),
        shard=shard,
    )
    reason = "error"
    try:
        ended: Exit = processor.run(context.get_remaining_time_in_millis)
        reason = ended.value
    except Exception as error:
        # Raise again, because an alarm counts failed invocations, and Lambda's record of them starts the watchdog.
        parts.telemetry.crash("processor failed", error, shard=shard)
        raise
    finally:
        parts.telemetry.count_by("ProcessorExits", reason=reason)
        parts.telemetry.info("processor stopped", shard=shard, reason=reason)
        parts.telemetry.flush()
    return {"reason": reason}


if is_provisioned():
    with suppress(MessageBufferError):
        _parts().functions.prepare()
        _parts().store.warm_up("acquire_lease", "claim_due", "renew_lease")
