"""Lambda entry of the conversation processor.

Events:

- `{"conversation": id, "claimedAt": ms, "waitedForSlot": bool}` from the processor, asynchronously: emit the
  conversation's batch.
- `{"redrive": <body of a dead letter>}` from the admin function: emit the batch; return `{"redriven": id}` or fail.
- `{"warm": true}` from the processor: only open connections. If that fails, the first batch opens them.
"""

from contextlib import suppress
from functools import cache
from typing import Any

from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.aws.environment import is_provisioned
from message_buffer.errors import MessageBufferError, StoreError
from message_buffer.events.emission import Emission, TimeLeft, open_emission
from message_buffer.lanes.opening import open_valkey_lane
from message_buffer.settings import ConversationProcessorSettings, read_settings
from message_buffer.telemetry import Telemetry


@cache
def _parts() -> tuple[ConversationProcessor, Emission, Telemetry]:
    settings = read_settings(ConversationProcessorSettings)
    telemetry = Telemetry(settings.log)
    emission, lane = open_emission(settings.emission, telemetry), open_valkey_lane(settings.valkey, telemetry)
    processor = ConversationProcessor(lane=lane, emission=emission, telemetry=telemetry)
    return processor, emission, telemetry


def _warm_up(processor: ConversationProcessor) -> None:
    with suppress(MessageBufferError):
        processor.warm_up()


def handler(event: dict[str, Any], context: Any) -> dict[str, str] | None:
    processor, emission, telemetry = _parts()
    time = TimeLeft(context.get_remaining_time_in_millis)
    try:
        if "redrive" in event:
            return {"redriven": emission.redrive(event["redrive"], time)}
        if "warm" in event:
            _warm_up(processor)
        else:
            processor.process(event["conversation"], time, claim=event)
    except StoreError as error:
        # Do not raise a temporary failure. When the claim or the token has expired, the processor puts the conversation
        # back, and another run emits the same batch under the same id.
        telemetry.count("StoreFailures")
        telemetry.warn("store failed", conversation=event.get("conversation"), reason=str(error))
        if not error.retryable:
            raise
    finally:
        telemetry.flush()
    return None


if is_provisioned():
    _warm_up(_parts()[0])
