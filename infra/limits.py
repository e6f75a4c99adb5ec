"""Time-outs, rates, retention and the other numbers of the infrastructure that only developers change.

Operators change `infra/settings_and_defaults.py`, which also has the memory of each function. The thresholds of the
alarms are in `infra/alarms.py`. Numbers that AWS prescribes, such as ports and versions, are beside their use.

Nothing here imports the CDK: `infra/settings_and_defaults.py` and `cost/` use these numbers without it.
"""

from message_buffer.limits import SECOND_MS, WATCHDOG_PASS_MS

# -- Time-outs of functions. Those of the processor, the conversation processor and the responder are settings. --

# Less than 29 s, after which API Gateway would answer the platform instead of ingest.
INGEST_TIMEOUT_SECONDS = 15
# Longer than other functions' time-outs, because one command of an operator may read many dead letters.
ADMIN_TIMEOUT_SECONDS = 60
# This time is longer than the responder waits for a response, and than the longest call to Valkey.
GATE_TIMEOUT_SECONDS = 15
# This time is longer than the longest default wait of a buffer plus the repair of any single crash.
CANARY_TIMEOUT_SECONDS = 120
# Less than the time between two passes, so that passes rarely overlap.
WATCHDOG_TIMEOUT_SECONDS = 25
DYNAMODB_PROCESSOR_TIMEOUT_SECONDS = 30

# -- Asynchronous invocations --

# Lambda's first retry comes after a minute. By then the watchdog's pass has started another run. Without retries Lambda
# sends its record of a failed run at once.
MAX_ASYNC_RETRIES = 0
# The shortest age that Lambda accepts. If a start is older, the watchdog has already repeated it.
MAX_ASYNC_AGE_SECONDS = 60

# How many conversations may be in flight at once if the stage reserves no concurrency for the conversation processor.
# Lambda's quota for a new account may be lower. Starts that Lambda has accepted then wait in Lambda.
DEFAULT_SLOTS = 200

# -- The watchdog and the sweep --

# The time between two passes of the watchdog.
WATCHDOG_PASS_SECONDS = WATCHDOG_PASS_MS // SECOND_MS
# A rule of EventBridge runs once a minute at most.
RULE_SECONDS = 60
# The rule starts only every second pass, so a queue delays a message that starts the pass in between.
WATCHDOG_SECOND_PASS_DELAY_SECONDS = RULE_SECONDS - WATCHDOG_PASS_SECONDS
# A message that starts a pass is superfluous when it is late, because the rule starts the next pass within the minute.
PASS_RETENTION_SECONDS = 300
# The sweep of the DynamoDB lane finds windows whose trigger was lost.
SWEEP_SECONDS = RULE_SECONDS

# -- The canary --

CANARY_RUN_SECONDS = 300
# If an event comes after its run has ended, it is of no use to a later run.
CANARY_RETENTION_SECONDS = CANARY_RUN_SECONDS

# -- Queues --

# The longest time that SQS keeps a message.
DEAD_LETTER_RETENTION_DAYS = 14
# The bucket has the content of a large dead letter, and must keep it for longer than the queue keeps the dead letter.
OVERSIZE_DEAD_LETTER_RETENTION_DAYS = DEAD_LETTER_RETENTION_DAYS + 1
# AWS recommends hiding a message for six time-outs of the function that consumes it, since Lambda may have to hold the
# message back while the function is throttled.
VISIBILITY_TIMEOUTS = 6
# A batch of triggers would let a slow conversation delay the others, whose triggers would become visible again.
MAX_TRIGGERS_IN_A_BATCH = 1
# A reply takes as long as the assistant, so several deliveries in one run would wait for each other.
MAX_DELIVERIES_IN_A_BATCH = 1
# One pass repairs all shards, however many of Lambda's records of failed processors have started it.
MAX_RECORDS_FOR_A_PASS = 10
# Lambda accepts no smaller number.
MAX_WATCHDOGS_OF_A_QUEUE = 2
# A delivery that waits for its turn is received many times. Only a delivery that keeps crashing its function reaches
# this number, and becomes a dead letter.
MAX_DELIVERY_RECEIVES = 100

# Webhooks of a batch are taken one after the other, each in milliseconds, so a batch fits into ingest's time-out.
MAX_QUEUED_WEBHOOKS_IN_A_BATCH = 10
# The queue's webhooks can wait, so the other instances of ingest remain for the platforms that call the API.
MAX_INGESTS_WITH_QUEUED_WEBHOOKS = 20

# -- What remains of a forgotten conversation --

# DynamoDB keeps a table's continuous backups for this long.
TABLE_BACKUP_DAYS = 35

# -- The responder --

# The function's time-out is the assistant's time and this margin, in which the function calls the channel and the
# table, and returns the delivery to its queue.
RESPONDER_MARGIN_SECONDS = 45
# A lock lasts longer than the function that holds it, even if two hosts' clocks differ by this much.
LOCK_MARGIN_SECONDS = 5
# How long a delivery stays hidden. While the responder works on the delivery, it extends this time.
HIDDEN_SECONDS = 30

# -- Bounds of the settings --

# The number of availability zones. ElastiCache Serverless needs two; each further zone would need more interface
# endpoints.
ZONES = 2
# The ids of followed conversations are in the environment of every function, whose size is limited.
MAX_FOLLOWED = 10
# ElastiCache's names have at most 40 characters, and ours begin with "message-buffer-".
MAX_STAGE_NAME_LENGTH = 20
# With a shorter time-out a conversation processor could not wait for two slow AWS calls and still call Valkey.
MIN_CONVERSATION_PROCESSOR_TIMEOUT_MS = 20_000
# A processor renews its lease after a third of the lease's length. The other two thirds leave time for one search for
# due conversations, one failed call to Valkey, and a second attempt to renew.
MIN_LEASE_MS = 3_000
# A conversation processor renews its token after a quarter of the token's length. The rest leaves time for one failed
# call to Valkey, another quarter, and a second attempt to renew.
MIN_TOKEN_MS = 3_000

# -- The firewall --

RATE_WINDOW_SECONDS = 300
# Platforms send from few addresses, so one address may send this share of the requests that the stage admits.
MAX_SHARE_OF_AN_ADDRESS = 0.5

# -- Preflight --

# Preflight makes many calls while a person waits, so each call must fail quickly.
MAX_PREFLIGHT_CONNECT_SECONDS = 5
MAX_PREFLIGHT_READ_SECONDS = 10
MAX_PREFLIGHT_ATTEMPTS = 2
MAX_NODE_START_SECONDS = 30

# -- The removal of a stage --

DELETION_POLL_SECONDS = 5
# A function may write another object while its stack is being deleted, so the bucket is emptied again.
MAX_DELETION_ATTEMPTS = 3
# Lambda deletes its network interfaces up to 40 minutes after the last function has left the network.
MAX_INTERFACE_SECONDS = 45 * 60
INTERFACE_POLL_SECONDS = 30
# S3 deletes at most this many objects in a request.
MAX_OBJECTS_IN_A_DELETION = 1_000
