"""Operators' commands: show a conversation's history, forget it.

`bufferctl` invokes the function with these commands; IAM decides who may do so. The queue never delivers them.
"""

from collections.abc import Callable

from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.forgetting import ResponderForgetting
from lambdas.responder.history import Turn
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, MessageBufferError
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.telemetry import Telemetry

# A host of the buffer whose clock is ahead may send a time that is this far in the future.
MAX_CLOCK_AHEAD_MS = 60_000
MAX_OLDER_TURNS_IN_AN_ANSWER = 200
# The caller names the operator, so the log line needs a bound.
MAX_OPERATOR_NAME_CHARACTERS = 256


class OperatorCommands:
    def __init__(
        self,
        *,
        table: ConversationsTable,
        forgetting: ResponderForgetting,
        telemetry: Telemetry,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._forgetting = forgetting
        self._telemetry = telemetry
        self._clock = clock

    def run(self, event: Json, *, request_id: str, time_left_ms: Callable[[], int]) -> Json:
        """Run the command. Return `{"ok": true, "result"}` or `{"ok": false, "error"}`, as the admin function does."""
        commands: dict[str, Callable[[str, Json], Json]] = {
            "history": self.history,
            "forget": lambda conversation, event: self.forget(conversation, event, time_left_ms),
        }
        try:
            command = commands.get(str(event.get("operation")))
            if command is None:
                raise InvalidInput(f"There is no such operation; valid: {', '.join(commands)}.")
            conversation = str(parse_conversation_id(str(event.get("conversation"))))
            result = command(conversation, event)
        except MessageBufferError as error:
            code = "invalid" if isinstance(error, InvalidInput) else "unavailable"
            return {"ok": False, "error": {"code": code, "message": str(error)}}
        self._telemetry.info(
            "operator",
            operation=str(event["operation"]),
            conversation=conversation,
            # Lambda does not say who invoked the function. CloudTrail records the caller with the request's id.
            claimedBy=str(event.get("by"))[:MAX_OPERATOR_NAME_CHARACTERS],
            requestId=request_id,
        )
        return {"ok": True, "result": result}

    def history(self, conversation: str, event: Json) -> Json:
        """Return the record's turns, preceded by up to `limit` older ones, with texts only if `texts` is true."""
        record = self._table.read(conversation)
        if record is None:
            return {"status": None, "turns": [], "older": 0}
        limit = event.get("limit", 0)
        if type(limit) is not int or not 0 <= limit <= MAX_OLDER_TURNS_IN_AN_ANSWER:
            raise InvalidInput(f"limit must be a whole number from 0 to {MAX_OLDER_TURNS_IN_AN_ANSWER}.")
        older = self._table.older_turns(conversation, limit=limit, now_ms=self._clock()) if limit else []
        return {
            "status": record.status,
            "turns": [_shown(turn, texts=event.get("texts") is True) for turn in [*older, *record.turns]],
            "older": record.older_turn_count,
        }

    def forget(self, conversation: str, event: Json, time_left_ms: Callable[[], int]) -> Json:
        """Erase all that arrived at or before `at`, or only count it if `dryRun` is true.

        If the result is not `finished`, the caller must call again.
        """
        dry_run, at_ms = event.get("dryRun") is True, event.get("at", self._clock())
        # With a time in the future, batches that arrive before it would be dropped unanswered.
        if type(at_ms) is not int or not 0 <= at_ms <= self._clock() + MAX_CLOCK_AHEAD_MS:
            raise InvalidInput("at must be a time in milliseconds that has passed.")
        act = self._forgetting.count if dry_run else self._forgetting.forget
        done = act(conversation, at_ms=at_ms, time_left=time_left_ms)
        counts = {"turns": done.turns, "outboxes": done.outboxes, "replyDeadLetters": done.dead_letters}
        return {"counts": counts, "finished": done.finished}


def _shown(turn: Turn, *, texts: bool) -> Json:
    shown = {"at": turn.at_ms, "role": turn.role, "batchId": turn.batch_id}
    return shown | {"text": turn.text} if texts else shown
