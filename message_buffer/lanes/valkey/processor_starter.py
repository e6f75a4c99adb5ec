"""Starts a shard's processor, once the store has reserved the start."""

from collections.abc import Mapping
from typing import Protocol

from message_buffer.errors import SendFailed
from message_buffer.telemetry import Telemetry


class StartsFunctions(Protocol):
    def start(self, function: str, payload: Mapping[str, object]) -> None: ...


class ProcessorStarter:
    def __init__(self, functions: StartsFunctions, processor_function: str, telemetry: Telemetry) -> None:
        self._functions = functions
        self._processor_function = processor_function
        self._telemetry = telemetry

    def start(self, shard: int) -> None:
        """Start the shard's processor. Log and count a failure, but do not raise it.

        A failure does no harm, because the messages are stored, and the watchdog starts a missing processor.
        """
        try:
            self._functions.start(self._processor_function, {"shard": shard})
        except SendFailed as error:
            self._telemetry.count("StartFailures")
            self._telemetry.warn("processor could not be started", shard=shard, reason=str(error))
            return
        self._telemetry.count("ProcessorStarts")
        self._telemetry.info("processor started", shard=shard)
