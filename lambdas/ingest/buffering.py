"""Stores a webhook's messages in the lane, in their order; a control word acts on its buffer instead."""

from collections.abc import Iterable

from lambdas.ingest.control_words import ControlWordActions
from lambdas.ingest.preparation import PreparedMessage
from lambdas.ingest.report import Done
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.fallback import Lane
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter


class Buffering:
    def __init__(self, lane: Lane, starter: ProcessorStarter, control_words: ControlWordActions) -> None:
        self._lane = lane
        self._starter = starter
        self._control_words = control_words

    def buffer_all(self, messages: Iterable[PreparedMessage], done: Done) -> None:
        """Buffer the messages and count them in `done`. Raises StoreError or SendFailed at the first that fails."""
        shards_to_start: dict[int, None] = {}
        try:
            for message in messages:
                outcome = self._apply(message, done)
                if outcome is not None and outcome.start_processor:
                    shards_to_start[self._lane.shard_of(str(message.conversation))] = None
        finally:
            # Start them even if a later message failed: the lane reserved these starts for this request.
            for shard in shards_to_start:
                self._starter.start(shard)

    def _apply(self, message: PreparedMessage, done: Done) -> o.Buffered | o.Duplicate | o.Retimed | None:
        match message.control_word:
            case "stop":
                self._control_words.stop(message, done)
                return None
            case "flush":
                return self._control_words.flush(message, done)
            case None:
                return self._buffer(message, done)

    def _buffer(self, message: PreparedMessage, done: Done) -> o.Buffered | o.Duplicate:
        outcome = self._lane.buffer_message(
            str(message.conversation), message.id, payload=message.payload, timing=message.timing
        )
        done.accepted += isinstance(outcome, o.Buffered)
        done.duplicates += isinstance(outcome, o.Duplicate)
        done.note_wait(message.conversation, outcome)
        return outcome
