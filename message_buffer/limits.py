"""The numbers that several folders, or unrelated modules of the library, share. Every other number is defined where it
is used.

Operators change the numbers in `infra/settings_and_defaults.py` and in the rules.
"""

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# -- messages and conversations ------------------------------------------------------------------------------

# The longest known ids are those of e-mail, where a header line has at most 998 bytes.
MAX_MESSAGE_ID_BYTES = 1_024
# The last millisecond of the year 9999, which is the last that Python's datetime can show.
MAX_TIME_MS = 253_402_300_799_999

# A webhook has at most this many messages, changes and human replies, on every platform. None is known to send more.
MAX_ITEMS_IN_A_WEBHOOK = 1_000

# -- batches -------------------------------------------------------------------------------------------------

# At most this many messages are taken, read and emitted together; further messages form the next batch.
# lua/take_batch.lua has the same bound for every caller, and one item of the DynamoDB lane's table has no room for more
# message names.
MAX_MESSAGES_IN_A_BATCH = 1_000
# The payloads of a batch together have at most this many bytes, because a processor holds several copies of them.
MAX_BYTES_IN_A_BATCH = 4 * 1024 * 1024
# A platform redelivers a message for hours, so a lane remembers a message's id for this long after emitting its batch.
REMEMBERED_MS = DAY_MS
# The pause after the first attempt to emit a batch. It doubles with each attempt, up to MAX_RETRY_MS. With the default
# `limits.max_attempts` the pauses take more than ten minutes together, which leaves time to undo a bad deployment.
MIN_RETRY_MS = 1 * SECOND_MS
MAX_RETRY_MS = 60 * SECOND_MS
# A batch that is emitted later than this after its due time is late.
LATE_MS = 1 * SECOND_MS
# A batch waits for its claim, its run, its earlier attempts and its emission. `bufferctl why` names those of these four
# parts that took at least a quarter of the delay.
LATE_PARTS = 4

# -- rules ---------------------------------------------------------------------------------------------------

# No `silenceMs` is longer, because the DynamoDB lane could not keep it: SQS delays a trigger for 15 minutes at most.
MAX_TRIGGER_DELAY_MS = 15 * MINUTE_MS
# No hold is longer. A hold that a person has forgotten then blocks a customer for a day at most.
MAX_HOLD_MS = DAY_MS
# No quota is higher. A message uses up its share of a minute, which scripts round to whole microseconds. The shares of
# a higher quota would be too small for that.
MAX_QUOTA = 10_000_000
# An instance waits this long between two checks for changed rules.
MIN_MS_BETWEEN_RULES_CHECKS = 5 * SECOND_MS

# -- connections and calls to AWS ----------------------------------------------------------------------------

# The shortest time-out of a socket. With a time-out of 0, a socket does not wait, and fails with an error other than
# TimeoutError.
MIN_SOCKET_SECONDS = 0.001
# A connection that was idle for longer is not used again. Lambda purges the idle connections of an instance that it
# suspends, and a NAT gateway forgets a connection after 350 seconds.
MAX_IDLE_MS = 30 * SECOND_MS

# -- operators, canary, metrics ------------------------------------------------------------------------------
# A response of the admin function lists at most this many conversations or dead letters.
MAX_LISTED = 500
# Each run of the canary begins this long after the previous one.
CANARY_RUN_MS = 5 * MINUTE_MS
# The canary sends this many messages in a run.
CANARY_FRAGMENTS = 3
# A call takes at most this long, including a second try and a pause of up to a second before it.
MAX_CALL_MS = 10 * SECOND_MS
# The longest time that SQS keeps a message.
DEAD_LETTER_RETENTION_DAYS = 14
# An instance reads a secret again when its copy is this old.
SECRET_LIFE_MS = MINUTE_MS

# -- the Valkey lane -----------------------------------------------------------------------------------------

# The defaults of the settings `timings.connect_ms` and `timings.answer_ms`. A healthy server answers within a few
# milliseconds, but the first connection from a private network may take seconds.
VALKEY_CONNECT_MS = 5 * SECOND_MS
VALKEY_ANSWER_MS = 800
VALKEY_ATTEMPTS = 2
# The time between two passes of the watchdog.
WATCHDOG_PASS_MS = 30 * SECOND_MS
# If a batch of the Valkey lane is later than this, an alarm pages operators, and the doctor reports it. In most cases
# the watchdog has repaired the conversation before that.
MAX_OVERDUE_MS = MINUTE_MS
# A lease lasts for this many times the pause between two renewals, but the pause is five seconds at most. A renewal
# that fails on an open connection takes up to 1.6 seconds, so the processor can try again before the lease ends.
LEASE_RENEWALS = 3
# A processor publishes its metrics this often, because its run may last 15 minutes.
METRICS_EVERY_MS = 30 * SECOND_MS
# The processor checks its shard for due conversations at least this often.
PROCESSOR_LOOK_MS = 500

# -- the DynamoDB lane ---------------------------------------------------------------------------------------

# A window that is overdue by this much must have lost its trigger. The next message, or the sweep, sends a new trigger.
WINDOW_GRACE_MS = 20 * SECOND_MS
# A larger message is stored in two items, so that a query for the waiting messages does not read its body. A
# conversation's large messages are limited in number and in bytes, smaller messages only in number.
LARGE_MESSAGE_BYTES = 4 * 1024
# A window or a message may change between a request's read and its write. The request then reads and writes again, at
# most this many times in all.
MAX_WINDOW_TRIES = 3
# A hidden trigger counts as in flight, and a queue that has 120,000 messages in flight delivers no more. So a trigger
# is hidden for this long at most. If the window is due later, the DynamoDB processor replaces the trigger with a new
# one, its successor.
MAX_TRIGGER_HIDDEN_MS = MINUTE_MS

# -- the stage's resources ------------------------------------------------------------------------------------

# API Gateway waits 29 s for ingest, and then answers the platform itself.
INGEST_TIMEOUT_SECONDS = 15
# EventBridge can start a function once a minute at most, and starts the watchdog and the sweep that often.
RULE_SECONDS = 60
# A queue hides a message for this many time-outs of the function that consumes it, as AWS recommends. While the
# function is throttled, Lambda has to hold the message back.
VISIBILITY_TIMEOUTS = 6
# How long a processor may run: Lambda's longest time-out.
PROCESSOR_LIFE_SECONDS = 900
