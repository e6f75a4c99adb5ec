"""What a person may ask of the responder: to take a conversation over, to give it back, and what was said.

Each operation is invoked by `bufferctl`, never by the queue; IAM says who may.
"""

from typing import Any, Protocol

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, MessageBufferError
from message_buffer.messages.conversation_id import parse_conversation_id
from message_buffer.telemetry import Telemetry
from responder.conversations_table import ConversationsTable

Json = dict[str, Any]

MOST_OLDER_TURNS = 200
LONGEST_HAND_OFF_MS = 86_400_000


class Buffer(Protocol):
    def hold(self, conversation: str, hold_ms: int) -> None: ...


class OperatorCommands:
    def __init__(
        self, *, table: ConversationsTable, buffer: Buffer, telemetry: Telemetry, clock: Clock = system_clock
    ) -> None:
        self._table = table
        self._buffer = buffer
        self._telemetry = telemetry
        self._clock = clock

    def answer(self, event: Json) -> Json:
        """`{"ok": true, "result"}` or `{"ok": false, "error": {"code", "message"}}`, as the admin function does."""
        operations = {"handoff": self.hand_off, "handback": self.hand_back, "history": self.history}
        try:
            operation = operations.get(str(event.get("operation")))
            if operation is None:
                raise InvalidInput(f"There is no such operation; valid: {', '.join(operations)}.")
            name = str(parse_conversation_id(str(event.get("conversation"))))
            result = operation(name, event)
        except MessageBufferError as error:
            code = "invalid" if isinstance(error, InvalidInput) else "unavailable"
            return {"ok": False, "error": {"code": code, "message": str(error)}}
        by = str(event.get("by"))[:256]
        self._telemetry.info("operator", operation=str(event["operation"]), conversation=name, by=by)
        return {"ok": True, "result": result}

    def hand_off(self, name: str, event: Json) -> Json:
        """The flag first: if the buffer cannot be held, what it emits is withheld."""
        for_ms = event.get("forMs")
        if type(for_ms) is not int or not 1 <= for_ms <= LONGEST_HAND_OFF_MS:
            raise InvalidInput(f"forMs is a whole number from 1 to {LONGEST_HAND_OFF_MS}.")
        now_ms = self._clock()
        self._table.hand_off(name, until_ms=now_ms + for_ms, now_ms=now_ms)
        self._buffer.hold(name, for_ms)
        return {"handedOffUntil": now_ms + for_ms}

    def hand_back(self, name: str, _event: Json) -> Json:
        """The assistant answers again; what the buffer holds comes once that is resumed."""
        self._table.hand_back(name)
        return {"handedOffUntil": None}

    def history(self, name: str, event: Json) -> Json:
        record = self._table.read(name)
        if record is None:
            return {"status": None, "handedOffUntil": None, "turns": [], "older": 0}
        limit = event.get("limit", 0)
        if type(limit) is not int or not 0 <= limit <= MOST_OLDER_TURNS:
            raise InvalidInput(f"limit is a whole number from 0 to {MOST_OLDER_TURNS}.")
        older = self._table.older_turns(name, limit=limit) if limit else []
        until_ms = record.hand_off_until_ms
        return {
            "status": record.status,
            "handedOffUntil": until_ms if until_ms > self._clock() else None,
            "turns": [_shown(turn, texts=event.get("texts") is True) for turn in [*older, *record.turns]],
            "older": record.rolled,
        }


def _shown(turn: Json, *, texts: bool) -> Json:
    """People's words are shown only on request."""
    shown = {"at": turn["at_ms"], "role": turn["role"], "batchId": turn["batch_id"]}
    return shown | {"text": turn["text"]} if texts else shown
