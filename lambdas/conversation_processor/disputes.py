"""Settles disputes by asking Valkey about stored messages that, according to the journal, the Valkey lane has taken.

The journal records which messages the Valkey lane was about to emit. Valkey may have lost them since then, so the
DynamoDB lane keeps its copies until Valkey has answered:

- If the message waits, or is in the frozen batch, ask again later.
- If Valkey remembers only the message's id, the message was emitted or dropped. Replace the copy with a tombstone.
- If Valkey does not know the message, it was lost. Remove its name from the journal. The DynamoDB lane emits its copy.
"""

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.lanes.dynamodb.table import Contents, MessageTable, StoredMessage
from message_buffer.lanes.dynamodb.triggers import Triggers
from message_buffer.lanes.outcomes import Absent
from message_buffer.lanes.valkey.store import Store
from message_buffer.limits import REMEMBERED_MS
from message_buffer.messages.wire_form import id_of
from message_buffer.rules.due_time import Due
from message_buffer.telemetry import Telemetry


class Disputes:
    def __init__(
        self,
        store: Store,
        table: MessageTable,
        triggers: Triggers,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._store = store
        self._table = table
        self._triggers = triggers
        self._telemetry = telemetry
        self._clock = clock

    def settle(self, conversation: str) -> None:
        """Settle the disputes about the conversation's messages. If the table fails, leave them to the next call."""
        try:
            self._settle(conversation)
        except SendFailed as error:
            self._telemetry.warn("disputes not settled", conversation=conversation, reason=str(error))

    def _settle(self, conversation: str) -> None:
        # Read the journal before asking Valkey, so that the records of batches that are taken later remain unchanged.
        contents = self._table.read(conversation)
        lost: set[str] = set()
        answered = 0
        for each in contents.disputed:
            found = self._find(conversation, each)
            if not isinstance(found, Absent):
                continue  # it waits in Valkey, or has left this lane meanwhile
            if found.known:
                expires_at_ms = self._clock() + REMEMBERED_MS
                self._table.leave_to_valkey_lane(conversation, each.name, expires_at_ms=expires_at_ms)
                answered += 1
            else:
                lost.add(each.name)
        if lost:
            self._give_to_dynamodb_lane(conversation, contents, lost)
        self._telemetry.info("disputes settled", conversation=conversation, answered=answered, lost=len(lost))

    def _find(self, conversation: str, message: StoredMessage) -> object:
        body = self._table.bodies(conversation, [message]).get(message.name)
        if body is None:
            return None
        message_id = id_of(body)
        if message_id is None:
            return Absent(known=False, batch_id=None)
        return self._store.find_message(conversation, message_id)

    def _give_to_dynamodb_lane(self, conversation: str, contents: Contents, lost: set[str]) -> None:
        for batch_id, names in contents.journals.items():
            if names & lost:
                self._table.rewrite_journal(conversation, batch_id, sorted(names - lost))
        self._telemetry.count("LostInValkey", len(lost))
        self._telemetry.warn("Valkey lost messages", conversation=conversation, count=len(lost))
        # If this run ends before it has sent the trigger, the window's own trigger arrives within a minute.
        now_ms, window = self._clock(), self._table.window(conversation)
        is_waiting = window.is_open and window.due.due_at_ms > now_ms >= window.held_until_ms
        if is_waiting and self._table.hasten(conversation, window=window, due=Due(now_ms, "silence")):
            self._triggers.send(conversation, delay_ms=0)
