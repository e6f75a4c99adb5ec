"""Every number of the library that only developers change, grouped by subject.

Operators change the numbers in `infra/settings_and_defaults.py` and in the rules. The functions' own numbers are in
`lambdas/limits.py`.
Numbers that a protocol or a service prescribes, and that nobody can tune, are beside their use.
"""

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

# -- messages and conversations ------------------------------------------------------------------------------

# A message in its wire form, with its attachments. An event on the bus has room for several messages of this size.
MAX_MESSAGE_BYTES = 64 * 1024
# The longest ids known are those of e-mail, where a line of a header has at most 998 bytes.
MAX_MESSAGE_ID_BYTES = 1_024
# An id has four parts of a few hundred bytes each, with escapes. Many keys in Valkey contain the id.
MAX_CONVERSATION_ID_BYTES = 1_024
# The last millisecond of the year 9999, which is the last that Python's datetime can show.
MAX_TIME_MS = 253_402_300_799_999
# Meta's platforms let a business answer freely for this time after the customer's last message.
REPLY_WINDOW_MS = DAY_MS

# -- batches -------------------------------------------------------------------------------------------------

# A batch is taken, read and emitted in one piece; further messages form the next batch. lua/take_batch.lua has the same
# bound for every caller, and one item of the DynamoDB lane's table has no room for more names of messages.
MAX_MESSAGES_IN_A_BATCH = 1_000
# The payloads of a batch together. A conversation processor holds them several times in its memory.
MAX_BYTES_IN_A_BATCH = 4 * 1024 * 1024
# A platform redelivers a message for hours, so a lane remembers a message's id for this long after emitting its batch.
REMEMBERED_MS = DAY_MS
# The pause after the first attempt to emit a batch. It doubles with each attempt, up to MAX_RETRY_MS. With the default
# `limits.max_attempts` the pauses take more than ten minutes together, which leaves time to undo a bad deployment.
MIN_RETRY_MS = 1 * SECOND_MS
MAX_RETRY_MS = 60 * SECOND_MS

# -- rules ---------------------------------------------------------------------------------------------------

# WhatsApp and Messenger allow a free-form reply only within 24 hours of the author's message.
MAX_WAIT_MS = DAY_MS
# SQS delays a message for 15 minutes at most, so the DynamoDB lane could not keep a longer silence.
MAX_TRIGGER_DELAY_MS = 15 * MINUTE_MS
MAX_SILENCE_MS = MAX_TRIGGER_DELAY_MS
# An adaptive wait is the mean gap between messages plus at most this many deviations.
MAX_ADAPTIVE_K = 20.0
# The name of a tenant or an agent. A longer tenant's name could make a conversation's id too long.
MAX_NAME_CHARACTERS = 128
MAX_CONTROL_WORDS = 50
MAX_CONTROL_WORD_CHARACTERS = 40
# A longer text cannot be a control word, not even with punctuation around it, so it is not compared.
MAX_CONTROL_TEXT_CHARACTERS = 4 * MAX_CONTROL_WORD_CHARACTERS
# A hold that a person forgets blocks a customer for no longer than a day.
MAX_HOLD_MS = DAY_MS
# Apps of Meta that a rule names. An id has 15 or 16 digits today.
MAX_APPS = 20
MAX_APP_ID_DIGITS = 32
# No quota may be higher, because a script counts a message's cost in whole microseconds.
MAX_QUOTA = 10_000_000
# The rules of one scope, as JSON. An instance reads the rules of all scopes at once.
MAX_RULES_BYTES = 64 * 1024
# A stage has few doors, and an instance reads the mappings of all of them with the rules.
MAX_DOORS = 50
MAX_DOOR_BYTES = 16 * 1024
# The bounds of a mapping let the largest webhook be read in a fraction of a second: each item is read with each
# condition and pointer once. A product's messages are nested a few levels deep.
MAX_LEVELS_OF_A_POINTER = 16
MAX_POINTER_CHARACTERS = 256
MAX_ALTERNATIVES_IN_A_DOOR = 16
MAX_CONDITIONS_IN_A_DOOR = 16
MAX_VALUES_IN_A_CONDITION = 32
MAX_ATTACHMENTS_IN_A_DOOR = 16
MAX_WORDS_IN_A_DOOR = 64
MAX_WORD_CHARACTERS_IN_A_DOOR = 128
# A body of a door contains at most as many items as one of the generic platform.
MAX_ITEMS_OF_A_DOOR = 1_000
# The largest webhook has room for a million attachments, for which a function would not have enough memory. Albums of
# the known products have up to 30.
MAX_ATTACHMENTS_OF_A_DOORS_MESSAGE = 100
# An instance keeps the resolved rules of this many combinations of layers. A sender who names agents could otherwise
# combine each agent with each conversation that has rules of its own.
MAX_RESOLVED_RULES = 4_096
# A write of rules is tried at most this often. A try fails only if another operator is writing at the same time.
MAX_RULES_WRITES = 5
# The pause between an instance's checks whether the rules have changed. While the rules' table cannot be read, the
# pause grows up to MAX_MS_BETWEEN_RULES_CHECKS, because a webhook waits for each check.
MIN_MS_BETWEEN_RULES_CHECKS = 5 * SECOND_MS
MAX_MS_BETWEEN_RULES_CHECKS = 30 * SECOND_MS

# -- calls to AWS --------------------------------------------------------------------------------------------

# This time is short, because a client tries to connect to each address of a service in turn, and S3 has eight.
AWS_CONNECT_SECONDS = 0.4
AWS_ANSWER_SECONDS = 2.5
AWS_ATTEMPTS = 2
# The time-out of a response while a person or a platform waits, if the caller can go on without the response.
AWS_HURRIED_ANSWER_SECONDS = 1.0
# A call that is tried twice takes at most this long; between the tries a client pauses for up to a second.
MAX_CALL_MS = 8 * SECOND_MS
# An instance reads a secret again when its copy is this old.
SECRET_LIFE_MS = MINUTE_MS
# IAM's sign-in tokens for the cache are valid for 15 minutes. A function reuses a token for a shorter time.
SIGN_IN_TOKEN_SECONDS = 900
SIGN_IN_TOKEN_REUSE_MS = 10 * MINUTE_MS

# -- aliases of authors --------------------------------------------------------------------------------------

# An alias expires this long after it was written. An author who still writes is then learned again.
ALIAS_LIFE_MS = 365 * DAY_MS
# An instance looks an alias up again when its copy is this old, because an operator may have forgotten the author.
ALIAS_COPY_LIFE_MS = MINUTE_MS
# An instance keeps this many copies. Each takes a few hundred bytes.
MAX_ALIASES_KEPT = 4_096
# WhatsApp's ids have at most 135 characters. A longer id is not looked up.
MAX_USER_ID_CHARACTERS = 256
# All look-ups for one webhook may take this long. Authors who are not looked up by then keep the id in the webhook.
MAX_LOOK_UP_MS_IN_A_WEBHOOK = 3 * SECOND_MS

# -- events --------------------------------------------------------------------------------------------------

# One call to EventBridge accepts at most this many entries. Some emulators also limit a call's bytes.
MAX_ENTRIES_IN_A_CALL = 10
MAX_ENTRY_BYTES_IN_A_CALL = 256 * 1024
# The largest message that SQS accepts in every account. The payloads of a larger dead letter are stored in the bucket.
MAX_DEAD_LETTER_BYTES = 256 * 1024
# The time that a conversation processor needs at its end to complete its batch or to put it back. Both tries of a call
# on an open connection fit into this time, even with the largest `timings.answer_ms`.
RELEASE_MS = 2 * SECOND_MS

# -- the Valkey lane -----------------------------------------------------------------------------------------

# The defaults of two settings, `timings.connect_ms` and `timings.answer_ms`. A healthy server answers within a few
# milliseconds, but the first connection from a private network may take seconds.
VALKEY_CONNECT_MS = 5 * SECOND_MS
VALKEY_ANSWER_MS = 800
VALKEY_ATTEMPTS = 2
# ElastiCache closes a connection 12 hours after its IAM sign-in, so a client is replaced an hour before that.
SIGN_IN_LIFE_MS = 11 * HOUR_MS
# The server ends a blocking pop after this time, which matters only if the client vanished without closing the
# connection.
POP_SECONDS = 20
# The time between two passes of the watchdog.
WATCHDOG_PASS_MS = 30 * SECOND_MS
# The most overdue batch of the Valkey lane may be this late before an alarm pages operators, and the doctor reports it.
# The watchdog repairs most conversations before that.
MAX_OVERDUE_MS = MINUTE_MS
# A processor renews its lease after this part of the lease's length, or after MAX_MS_BETWEEN_LEASE_RENEWALS if that is
# shorter. If a renewal fails on an open connection, which takes up to 1.6 seconds, the next one is in time.
LEASE_RENEWALS = 3
MAX_MS_BETWEEN_LEASE_RENEWALS = 5 * SECOND_MS
# A processor's run may last 15 minutes, so it publishes its metrics this often.
METRICS_EVERY_MS = 30 * SECOND_MS
# Work that is due later than this from now needs no processor yet, because the watchdog makes three passes before then.
START_HORIZON_MS = 3 * WATCHDOG_PASS_MS
# The processor looks at its shard at least this often.
PROCESSOR_LOOK_MS = 500
# A script searches for a message where it should be, then among this many of the newest messages. A full batch has half
# as many.
MAX_MESSAGES_SEARCHED = 2_000
# After this many bytes of payloads, another call continues the search, so that other clients' calls run in between.
MAX_BYTES_SEARCHED_IN_A_CALL = 64 * 1024
# A longer message id is remembered by its digest. The ids of WhatsApp, Telegram and Twilio are shorter.
MAX_REMEMBERED_ID_BYTES = 96
# A conversation with more message ids than this forgets the oldest, but never those of waiting messages.
MAX_IDS_REMEMBERED = 5_000
# The stage's quota and the number of waiting messages are checked only with messages 1, 9, 17, … of a buffer, for eight
# messages at once, because a check takes several commands. If a rule sets the quota, every message is checked.
LOOK_EVERY = 8
# An instance caches the quotas of this many accounts in the form that it sends to the script.
MAX_CHARGES_KEPT = 1_024
# The Valkey lane remembers this many emitted batches of a conversation. When a message is edited after its batch was
# emitted, the event about the edit names that batch.
MAX_BATCHES_REMEMBERED = 100

# -- takeovers -----------------------------------------------------------------------------------------------

# Further words of a person prolong the hold, but the hold ends this many times its length after their first words.
MAX_HOLDS_IN_A_TAKEOVER = 2
# A takeover remembers the ids of this many of the person's latest messages, to recognise a redelivery.
MAX_REPLIES_REMEMBERED = 50
# Platforms try to deliver a webhook for at most a week.
TAKEOVER_KEPT_MS = 8 * DAY_MS

# -- the fallback --------------------------------------------------------------------------------------------

# Retry only if the first try failed within this time. A try on a dropped connection fails fast, and a retry helps; a
# try on a hung server fails late, and a retry does not help.
RETRY_IF_FAILED_WITHIN_MS = 300
# After a failed call the circuit breaker skips Valkey for this long. Each further failure doubles the pause, up to
# MAX_BREAKER_PAUSE_MS.
MIN_BREAKER_PAUSE_MS = 1 * SECOND_MS
MAX_BREAKER_PAUSE_MS = 8 * SECOND_MS

# -- logs and metrics ----------------------------------------------------------------------------------------

# A stage that logs only a share of its conversations writes ordinary metrics of an instance no later than this after
# the last ones, if the instance still runs. CloudWatch counts by the minute.
MAX_METRICS_AGE_MS = 10 * SECOND_MS

# -- the DynamoDB lane ---------------------------------------------------------------------------------------

# A window that is overdue by this much must have lost its trigger. The next message, or the sweep, sends a new one.
WINDOW_GRACE_MS = 20 * SECOND_MS
# A larger message is stored in two items, so that reading which messages wait does not read its body. Such messages
# also count by their bytes; smaller ones are bounded by their number.
LARGE_MESSAGE_BYTES = 4 * 1024
# As many messages, and as many bytes of large ones, may wait in a conversation as in the Valkey lane by default.
MAX_STORED_MESSAGES = 5_000
MAX_STORED_BYTES = 32 * 1024 * 1024
# A window or a message may change between its read and its write. Both are then tried again, at most this many times in
# all.
MAX_WINDOW_TRIES = 3
# If an instance's clock steps back by less than this, each message arrives 1 ms after the last one. If the clock steps
# back further, the DynamoDB lane assumes that the earlier time was wrong, and uses the new time.
MAX_CLOCK_STEP_BACK_MS = 1 * SECOND_MS
# An operator's look at a conversation reads at most this many pages of a megabyte. Messages that wait take at most 20
# pages; the others contain tombstones of a day.
MAX_PAGES_PEEKED = 50
# A cancel locks the window for this long. If the DynamoDB processor has the lock, which it usually needs only for a
# moment, the cancel tries again after a pause.
CANCEL_LOCK_MS = 10 * SECOND_MS
MAX_CANCEL_LOCK_TRIES = 5
CANCEL_LOCK_PAUSE_SECONDS = 0.1
# A trigger that is hidden in its queue is in flight. A queue that has 120,000 messages in flight delivers no more, so
# a trigger is hidden for this long at most. If its window is due later, it leaves a successor in the queue instead.
MAX_TRIGGER_HIDDEN_MS = MINUTE_MS
# DynamoDB allows 1,000 writes a second per index partition. Each window writes at least twice (open, close), so the
# index of open windows is split into this many slices.
INDEX_SLICES = 8
# The item of a window contains the name of each message of its frozen batch, and an item has at most 400 KB.
MAX_NAME_BYTES = 256
# DynamoDB may carry out only some requests of a batch call. The others are repeated after each of these pauses.
UNDONE_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
