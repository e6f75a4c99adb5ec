"""Lets the admin function erase a conversation, call by call, until everything is erased."""

import sys
import time
from collections import Counter

from bufferctl.stage import StageClient
from message_buffer.json_object import Json

# `conversation forget` calls the function again until everything is erased, each time from where the last call stopped.
# A few calls are enough, unless a queue is full of dead letters.
MAX_FORGET_CALLS = 20


def erase(stage: StageClient, conversation: str) -> Json:
    """Return the first call's response, updated with the last call's fields, and with the sum of all calls' counts.

    If the response's `againInMs` is not null, something is left, because batches were being emitted during the calls.
    """
    first = result = stage.ask("conversation.forget", conversation=conversation)
    counts: Counter[str] = Counter(result["counts"])
    for _ in range(MAX_FORGET_CALLS):
        if result["againInMs"] is None:
            break
        print(f"Not everything is erased yet; trying again in {result['againInMs'] / 1_000:.0f} s.", file=sys.stderr)
        time.sleep(result["againInMs"] / 1_000)
        result = stage.ask("conversation.forget", conversation=conversation, at=result["at"])
        counts.update(result["counts"])
    return first | result | {"counts": counts}
