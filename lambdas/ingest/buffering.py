"""Stores a webhook's messages in the lane, in their order. A control word is carried out instead of stored."""

from collections.abc import Iterable

from lambdas.ingest.control_word_actions import ControlWordActions
from lambdas.ingest.preparation import PreparedMessage
from lambdas.ingest.report import Done
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane


class Buffering:
    def __init__(self, lane: Lane, control_words: ControlWordActions) -> None:
        self._lane = lane
        self._control_words = control_words

    def buffer_all(self, messages: Iterable[PreparedMessage], done: Done) -> None:
        """Buffer the messages and count them in `done`. Raises StoreError or SendFailed at the first failure."""
        for message in messages:
            match message.control_word:
                case "stop":
                    self._control_words.stop(message, done)
                case "flush":
                    self._control_words.flush(message, done)
                case None:
                    self._buffer(message, done)

    def _buffer(self, message: PreparedMessage, done: Done) -> None:
        outcome = self._lane.buffer_message(
            str(message.conversation), message.id, payload=message.payload, timing=message.timing
        )
        done.accepted += isinstance(outcome, o.Buffered)
        done.duplicates += isinstance(outcome, o.Duplicate)
        done.note_wait(message.conversation, outcome)
