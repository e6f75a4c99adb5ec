"""The numbers that several modules of the responder share, and those of its gate. Others are beside their use.

Operators change those of `ResponderConfig` in `infra/settings_and_defaults.py`.
"""

# A batch that only waits for the owner of its conversation is tried again sooner than a batch that failed.
MAX_RETRY_SECONDS_WHILE_OWNED = 32
# A batch that waits behind a queued reply checks this many times within `gate_wait_seconds` whether that reply was
# sent.
MIN_CHECKS_IN_A_GATE_WAIT = 4
# This bounds only the connection. Responses of the AI and the channels take longer, and have limits of their own.
MAX_CONNECT_SECONDS = 2.0
# A channel needs little time, because it only accepts a part, and delivers the part later.
MAX_SEND_SECONDS = 8.0
# The function `gate` may need a cold start, and then calls Valkey or DynamoDB.
MAX_GATE_ANSWER_SECONDS = 6.0
# If this many batches are parked, the next batch is answered at once, so that customers who never stop writing get a
# reply, too.
MAX_PARKED_BATCHES = 5
