"""Stores a webhook's messages in the lane, in their order. A control word is carried out instead of stored."""

from collections.abc import Iterable

from lambdas.ingest.control_word_actions import ControlWordActions
from lambdas.ingest.preparation import PreparedMessage
from lambdas.ingest.refusals import Refusals
from lambdas.ingest.report import Done
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane


class Buffering:
    def __init__(self, lane: Lane, control_words: ControlWordActions) -> None:
        self._lane = lane
        self._control_words = control_words

    def buffer_all(self, messages: Iterable[PreparedMessage], done: Done, *, comes_again: bool) -> Refusals:
        """Buffer the messages and count them in `done`. Raise StoreError or SendFailed at the first failure.

        Return the messages that were refused because of a quota or a full conversation. If the platform does not send
        refused messages again (`comes_again` is False), no message is refused because of a quota.
        """
        refusals = Refusals()
        for message in messages:
            check = refusals.in_conversation if message.control_word else refusals.around
            if reason := check(message.conversation):
                done.refused[reason] += 1
                done.note_limited(message.conversation)
                refusals.add_unasked(message.conversation, reason)
                continue
            match message.control_word:
                case "stop":
                    self._control_words.stop(message, done)
                case "flush":
                    self._control_words.flush(message, done)
                case None:
                    self._buffer(message, done, refusals, comes_again=comes_again)
        return refusals

    def _buffer(self, message: PreparedMessage, done: Done, refusals: Refusals, *, comes_again: bool) -> None:
        outcome = self._store(message, charged=True)
        if isinstance(outcome, o.MessageRefused):
            done.note_limited(message.conversation)
        if isinstance(outcome, o.MessageRefused) and outcome.reason != "waiting" and not comes_again:
            outcome = self._store(message, charged=False)
            done.over_quota += isinstance(outcome, o.MessageBuffered)
        if isinstance(outcome, o.MessageRefused):
            done.refused[outcome.reason] += 1
            refusals.add(message.conversation, outcome)
            return
        done.accepted += isinstance(outcome, o.MessageBuffered)
        done.duplicates += isinstance(outcome, o.MessageDuplicate)
        done.note_wait(message.conversation, outcome)

    def _store(
        self, message: PreparedMessage, *, charged: bool
    ) -> o.MessageBuffered | o.MessageDuplicate | o.MessageRefused:
        return self._lane.buffer_message(
            str(message.conversation),
            message.id,
            payload=message.payload,
            timing=message.timing,
            charge=message.charge if charged else None,
        )
