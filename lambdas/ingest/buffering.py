"""Stores a webhook's messages in the lane, in their order. A control word is carried out instead of stored."""

from collections.abc import Iterable

from lambdas.ingest.control_word_actions import ControlWordActions
from lambdas.ingest.outbox import Outbox
from lambdas.ingest.preparation import PreparedMessage
from lambdas.ingest.refusals import Refusals
from lambdas.ingest.report import Done
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane


class Buffering:
    def __init__(self, lane: Lane, control_words: ControlWordActions) -> None:
        self._lane = lane
        self._control_words = control_words

    def buffer_all(
        self, messages: Iterable[PreparedMessage], done: Done, refusals: Refusals, *, comes_again: bool
    ) -> None:
        """Buffer the messages and count them in `done`. Raise StoreError or SendFailed at the first failure.

        Add each message that a quota or a full conversation refuses to `refusals`. If the platform does not send
        refused messages again (`comes_again` is False), buffer messages over a quota too.
        """
        outbox = self._control_words.outbox()
        try:
            with outbox:
                for message in messages:
                    self._take(message, done, refusals, outbox, comes_again=comes_again)
        finally:
            done.stopped += outbox.published

    def _take(
        self, message: PreparedMessage, done: Done, refusals: Refusals, outbox: Outbox, *, comes_again: bool
    ) -> None:
        check = refusals.in_conversation if message.control_word else refusals.around
        if message.learn_author and not message.control_word:
            check = refusals.of_new_author
        if reason := check(message.conversation):
            done.note_refused(message.conversation, reason)
            refusals.add_unasked(message.conversation, reason)
            if message.control_word:
                refusals.has_others = True
            else:
                refusals.messages.append((message, reason))
            return
        match message.control_word:
            case "stop":
                self._control_words.stop(message, done, outbox)
            case "flush":
                self._control_words.flush(message, done)
            case None:
                self._buffer(message, done, refusals, comes_again=comes_again)

    def _buffer(self, message: PreparedMessage, done: Done, refusals: Refusals, *, comes_again: bool) -> None:
        if message.learn_author:
            # Another instance may have stored this author's aliases after our look-up. So use the conversation that is
            # stored now.
            message = message._replace(conversation=message.learn_author().conversation)
        outcome = self._store(message, charged=True)
        if isinstance(outcome, o.MessageRefused):
            done.note_limited(message.conversation)
        if isinstance(outcome, o.MessageRefused) and outcome.reason != "waiting" and not comes_again:
            outcome = self._store(message, charged=False)
            done.over_quota += isinstance(outcome, o.MessageBuffered)
        if isinstance(outcome, o.MessageRefused):
            done.refused[outcome.reason] += 1
            refusals.add(message.conversation, outcome)
            refusals.messages.append((message, outcome.reason))
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
