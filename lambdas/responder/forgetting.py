"""Forgets a conversation, ends an episode, and runs operators' commands, for which `bufferctl` invokes the function."""

from collections.abc import Callable
from functools import partial
from uuid import uuid4

from lambdas.operations import Operation, Operations
from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.history import ASSISTANT, Turn
from lambdas.responder.tenant_settings import operations_of
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.telemetry import Telemetry

# A run that erases a conversation stops when it has only this much time left. The next run erases the rest.
MIN_TIME_TO_ERASE_MS = 10_000
# A host of the buffer whose clock is ahead may send a time that is this far in the future.
MAX_CLOCK_AHEAD_MS = 60_000
# Lambda's response has at most 6 MB, and the JSON of a turn up to twice `MAX_TURN_BYTES`.
MAX_OLDER_TURNS_IN_AN_ANSWER = 80
TimeLeft = Callable[[], int]


class OperatorCommands:
    def __init__(
        self,
        table: ConversationsTable,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
        new_owner: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._table = table
        self._telemetry = telemetry
        self._clock = clock
        self._new_owner = new_owner

    def run(self, event: Json, *, request_id: str, time_left_ms: TimeLeft) -> Json:
        operations: dict[str, Operation] = {"history": self._history, "forget": partial(self._forget, time_left_ms)}
        operations |= operations_of(self._table)
        return Operations(operations, self._telemetry).answer(event, request_id=request_id)

    def forget(self, conversation: str, *, at_ms: int, time_left: TimeLeft) -> Json:
        """Erase the record, turns and marks, and drop the batches that arrived at or before `at_ms`.

        Return what was erased. If `finished` is False, the caller must call again.
        """
        owner, counts = self._new_owner(), self._table.count(conversation)
        if not self._table.begin_to_forget(conversation, owner, at_ms=at_ms, now_ms=self._clock()):
            return {"counts": dict.fromkeys(counts, 0), "finished": True}
        is_erased = self._table.erase(conversation, has_time=lambda: time_left() > MIN_TIME_TO_ERASE_MS)
        if is_erased:
            self._table.end_forget(conversation, owner)
        return {"counts": counts, "finished": is_erased}

    def end_episode(self, conversation: str, *, at_ms: int) -> None:
        self._table.end_episode(conversation, at_ms=at_ms, now_ms=self._clock())
        self._telemetry.info("episode ended", conversation=conversation)

    def _history(self, event: Json) -> Json:
        """Return the record's turns, preceded by up to `limit` older ones, with texts only if `texts` is true."""
        conversation = _conversation(event)
        record = self._table.read(conversation)
        if record is None:
            return {"status": None, "lastReplyId": None, "turns": [], "older": 0, "episodeFrom": None}
        limit = event.get("limit", 0)
        if type(limit) is not int or not 0 <= limit <= MAX_OLDER_TURNS_IN_AN_ANSWER:
            raise InvalidInput(f"limit must be a whole number from 0 to {MAX_OLDER_TURNS_IN_AN_ANSWER}.")
        older = self._table.older_turns(conversation, limit=limit, now_ms=self._clock()) if limit else []
        return {
            "status": record.status,
            "lastReplyId": record.last_reply_id or None,
            "turns": [_shown(turn, texts=event.get("texts") is True) for turn in [*older, *record.turns]],
            "older": record.older_turn_count,
            "episodeFrom": record.episode_from_ms or None,
        }

    def _forget(self, time_left_ms: TimeLeft, event: Json) -> Json:
        """Erase what arrived at or before `at`, or only count it if `dryRun` is true."""
        dry_run, at_ms = event.get("dryRun") is True, event.get("at", self._clock())
        # With a time in the future, batches that arrive before it would be dropped unanswered.
        if type(at_ms) is not int or not 0 <= at_ms <= self._clock() + MAX_CLOCK_AHEAD_MS:
            raise InvalidInput("at must be a time in milliseconds that has passed.")
        conversation = _conversation(event)
        if dry_run:
            return {"counts": self._table.count(conversation), "finished": True}
        return self.forget(conversation, at_ms=at_ms, time_left=time_left_ms)


def _conversation(event: Json) -> str:
    return str(parse_conversation_id(str(event.get("conversation"))))


def _shown(turn: Turn, *, texts: bool) -> Json:
    shown: Json = {"at": turn.at_ms, "role": turn.role, "batchId": turn.batch_id, "messageIds": turn.message_ids}
    if turn.role == ASSISTANT:
        shown |= {
            "model": turn.model or None,
            "inputTokens": turn.input_tokens,
            "outputTokens": turn.output_tokens,
            "totalTokens": turn.input_tokens + turn.output_tokens,
            "processingMs": turn.processing_ms,
        }
    return shown | {"text": turn.text} if texts else shown
