"""Time-outs, rates, retention and the other numbers of the infrastructure that only developers change.

Operators change `infra/settings_and_defaults.py`, which also has the memory of each function. The thresholds of the
alarms are in `infra/alarms.py`. Numbers that AWS prescribes, such as ports and versions, are beside their use.

Nothing here imports the CDK: `infra/settings_and_defaults.py` and `cost/` use these numbers without it.
"""

from message_buffer.limits import DAY_MS, REMEMBERED_MS

# -- Time-outs of functions. Those of the processor, the conversation processor and the responder are settings. --

# Less than 29 s, after which API Gateway would answer the platform instead of ingest.
INGEST_TIMEOUT_SECONDS = 15
# Longer than the others, because one command of an operator may read many dead letters.
ADMIN_TIMEOUT_SECONDS = 60
# Less than the time between two passes, so that passes rarely overlap.
WATCHDOG_TIMEOUT_SECONDS = 25
DYNAMODB_PROCESSOR_TIMEOUT_SECONDS = 30

# -- Asynchronous invocations --

# Lambda's first retry comes after a minute. By then the watchdog has repaired what a crash left behind.
MAX_ASYNC_RETRIES = 0
# The shortest age that Lambda accepts. An older start would only start a processor that already runs.
MAX_ASYNC_AGE_SECONDS = 60

# -- The watchdog and the sweep --

# The time between two passes of the watchdog. The watchdog's function counts its passes by the same number, in
# `lambdas/`, which may not import this module; tests/infra/test_environment_table.py compares them.
WATCHDOG_PASS_SECONDS = 30
# A rule of EventBridge runs once a minute at most.
RULE_SECONDS = 60
# So a rule starts every other pass, and a queue delays a second message for the pass in between.
WATCHDOG_SECOND_PASS_DELAY_SECONDS = RULE_SECONDS - WATCHDOG_PASS_SECONDS
# A late second pass is superfluous, because the rule starts the next pass within the minute.
SECOND_PASS_RETENTION_SECONDS = 300
# The sweep of the DynamoDB lane finds windows whose trigger was lost.
SWEEP_SECONDS = RULE_SECONDS

# -- Queues --

# The longest time that SQS keeps a message.
DEAD_LETTER_RETENTION_DAYS = 14
# The large content of a dead letter is in the bucket, and must outlive the dead letter.
OVERSIZE_DEAD_LETTER_RETENTION_DAYS = DEAD_LETTER_RETENTION_DAYS + 1
# AWS recommends hiding a message for six time-outs of the function that consumes it, since Lambda may have to hold the
# message back while the function is throttled.
VISIBILITY_TIMEOUTS = 6
# One trigger at a time: a slow conversation must not delay others, which would become visible again.
MAX_TRIGGERS_IN_A_BATCH = 1
# Each reply may take as long as the assistant does.
MAX_DELIVERIES_IN_A_BATCH = 1
MAX_WATCHDOG_PASSES_IN_A_BATCH = 1
# A delivery that waits for its turn is received many times. The count is so high that only a delivery that keeps
# crashing its function reaches it and becomes a dead letter.
MAX_DELIVERY_RECEIVES = 100

# -- What remains of a forgotten conversation --

# A message id is remembered for a day, as a hash.
REMEMBERED_DAYS = REMEMBERED_MS // DAY_MS
# DynamoDB keeps a table's continuous backup for this long.
TABLE_BACKUP_DAYS = 35

# -- The responder --

# Added to the assistant's time for the function's time-out: calls to the channel and the table, and returning the
# delivery to its queue.
RESPONDER_MARGIN_SECONDS = 45
# A lock lasts longer than the function that holds it, even if two hosts' clocks differ by this much.
LOCK_MARGIN_SECONDS = 5
# How long a delivery stays hidden while the responder works on it; the responder extends it.
HIDDEN_SECONDS = 30

# -- Bounds of the settings --

# Availability zones: ElastiCache Serverless needs two, and each further zone costs more interface endpoints.
ZONES = 2
# ElastiCache's names have at most 40 characters, and ours begin with "message-buffer-".
MAX_STAGE_NAME_LENGTH = 20
# In less time than this, a conversation processor could not wait for two slow AWS calls and still call Valkey.
MIN_CONVERSATION_PROCESSOR_TIMEOUT_MS = 20_000
# A processor renews its lease after a third of its length. The other two thirds leave time for one search for due
# conversations, one failed call to Valkey, and a second attempt to renew.
MIN_LEASE_MS = 3_000

# -- The firewall --

RATE_WINDOW_SECONDS = 300
# Platforms send from few addresses. One address may take this share of what the stage admits.
MAX_SHARE_OF_AN_ADDRESS = 0.5

# -- Preflight --

# Preflight makes many calls, and a person waits for all of them.
MAX_PREFLIGHT_CONNECT_SECONDS = 5
MAX_PREFLIGHT_READ_SECONDS = 10
MAX_PREFLIGHT_ATTEMPTS = 2
MAX_NODE_START_SECONDS = 30
