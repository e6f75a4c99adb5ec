"""The responder's numbers that only developers change.

Operators change those of `Responder` in `infra/settings_and_defaults.py`.
"""

from message_buffer.limits import MAX_CALL_MS

DAY_SECONDS = 86_400
HOUR_MS = 3_600_000

# -- deliveries of the queue -----------------------------------------------------------------------

# This is many times what models accept, and still fits into the function's memory.
MAX_BATCH_BYTES = 8_388_608
# The reason is an attribute of the dead letter, and operators read it in a list.
MAX_DEAD_LETTER_REASON_CHARACTERS = 200
# The pause before the next attempt doubles from the minimum to the maximum.
MIN_RETRY_SECONDS = 4
MAX_RETRY_SECONDS = 300
# A batch that only waits for the owner of its conversation is tried again sooner than a batch that failed.
MAX_RETRY_SECONDS_WHILE_OWNED = 32
# A batch that waits behind a queued reply checks this many times within `gate_wait_seconds` whether that reply was
# sent.
MIN_CHECKS_IN_A_GATE_WAIT = 4
# The heartbeat hides a delivery again this many times within one hiding period, so one slow call does not expose it.
MIN_HEARTBEATS_WHILE_HIDDEN = 3

# -- calls -----------------------------------------------------------------------------------------

# This bounds only the connection. Responses of the AI and the channels take longer, and have limits of their own.
MAX_CONNECT_SECONDS = 2.0
# A channel needs little time, because it only accepts a part, and delivers the part later.
MAX_SEND_SECONDS = 8.0
# The function `gate` may need a cold start, and then calls Valkey or DynamoDB.
MAX_GATE_ANSWER_SECONDS = 6.0
# A response has a few kilobytes. A response above this size is an error, and must not fill the memory.
MAX_HTTP_ANSWER_BYTES = 4_194_304
MAX_HTTP_CHUNK_BYTES = 65_536
# An AI's service may return any text as the status; a log line contains at most this much of it.
MAX_LOGGED_STATUS_CHARACTERS = 20

# -- time left of the function's run ---------------------------------------------------------------

# Enough time for the last write of a batch, or for the release of its conversation after a failure.
MIN_TIME_TO_FINISH_MS = 5_000
# A part whose run ends after `sending` is recorded is never sent again, so there must also be time for the write to the
# table.
MIN_TIME_TO_SEND_MS = int(MAX_SEND_SECONDS * 1_000) + MAX_CALL_MS

# -- a conversation's record -----------------------------------------------------------------------

# An item of DynamoDB has at most 400 KB. The record holds turns and parked batches, both as JSON, and settings.
MAX_RECORDED_TURNS_BYTES = 98_304
# A transaction of DynamoDB has at most 100 writes, and the one that ends a batch may move all turns out of the record.
MAX_RECORDED_TURNS = 60
MAX_TURN_BYTES = 32_768
# If this many batches are parked, the next batch is answered at once, so that customers who never stop writing get a
# reply, too.
MAX_PARKED_BATCHES = 5
# Bounds the customer's text, and the parts of the reply that were sent before the gate closed.
MAX_PARKED_TEXT_BYTES = 12_288
# A token of English has about four bytes, one of other scripts fewer. The estimate errs on the high side.
MIN_BYTES_IN_A_TOKEN = 3

# -- forgetting ------------------------------------------------------------------------------------

# A host of the buffer whose clock is ahead may send a time that is this far in the future.
MAX_CLOCK_AHEAD_MS = 60_000
# A run that erases a conversation stops when it has only this much time left. The next run erases the rest.
MIN_TIME_TO_ERASE_MS = 10_000
# Longer than the function may run, so that a run does not receive the same dead letter twice.
DEAD_LETTER_HIDDEN_SECONDS = 720
# One call to SQS returns at most this many messages.
MAX_LETTERS_IN_A_PAGE = 10

# -- operators -------------------------------------------------------------------------------------

MAX_OLDER_TURNS_IN_AN_ANSWER = 200
# The caller names the operator, so the log line needs a bound.
MAX_OPERATOR_NAME_CHARACTERS = 256
