"""The Valkey lane: a store that starts a processor whenever a script has reserved the start."""

from message_buffer.lanes import outcomes as o
from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import Timing
from message_buffer.settings import StoreSettings


class ValkeyLane(Store):
    def __init__(self, connection: Connection, settings: StoreSettings, starter: ProcessorStarter) -> None:
        super().__init__(connection, settings)
        self._starter = starter

    def _reserved(self, shard: int, start_id: str) -> None:
        del start_id
        self._starter.start(shard)

    def charge(self, conversation: str, charge: Charge, *, messages: int, others: int) -> o.Charged | o.MessageRefused:
        del messages  # buffer_message charges them
        return self.charge_changes(conversation, charge, items=others) if others else o.Charged()

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.Edited:
        edited = super().edit_message(conversation, message_id, payload=payload)
        # Retime only if this message is the newest. A later message may wait for its own transcript, and a retime would
        # cut that wait short.
        if timing is not None and isinstance(edited, o.MessageEdited) and edited.is_newest:
            self.retime_buffer(conversation, timing=timing)
        return edited

    def generation_and_holds(self, conversation: str) -> o.GenerationAndHolds:
        seen = self.peek_conversation(conversation)
        return o.GenerationAndHolds(seen.generation, seen.holds)
