"""The numbers about trials that only developers change."""

# -- webhooks ------------------------------------------------------------------------------------------

# This time is longer than a cold start of ingest and its slowest response together.
MAX_WEBHOOK_ANSWER_SECONDS = 20.0

# -- waiting for batches -------------------------------------------------------------------------------

# After any single crash a batch is emitted within a claim's time-out, a watchdog pass and a processor's start (P7).
MAX_LATE_SECONDS = 75.0
# A second event with the same messages would be an error, and would come within this time after the first one.
MAX_SECOND_EVENT_SECONDS = 3.0
LONG_POLL_SECONDS = 1
SHORT_POLL_SECONDS = 0.1
# One call to SQS returns at most this many messages.
MAX_EVENTS_IN_A_POLL = 10

# -- the canary function -------------------------------------------------------------------------------

CANARY_FRAGMENTS = 3
# Each run of a day uses another conversation, so that all shards are tried in turn. The next day uses the same ones.
CANARY_RUN_MS = 300_000
CANARY_CONVERSATIONS = 288
# The function stops waiting this long before its time-out, so that it can still say what is missing.
MIN_MS_LEFT_TO_REPORT = 5_000
