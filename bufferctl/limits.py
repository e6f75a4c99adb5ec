"""The numbers of the command line that only developers change."""

# -- above these the functions refuse ------------------------------------------------------------------

MAX_HOLD_HOURS = 24
MAX_LISTED_LETTERS = 500
MAX_LISTED_AT_ONCE = 500

# -- calls ---------------------------------------------------------------------------------------------

# The admin function has a time-out of a minute, and may need a cold start first.
MAX_ADMIN_ANSWER_SECONDS = 70
# Tests and benchmarks share one client of the emulator between many threads.
MAX_EMULATOR_CONNECTIONS = 50

# `conversation forget` calls the function again until everything is erased, each time from where the last call stopped.
# A few calls are enough, unless a queue is full of dead letters.
MAX_FORGET_CALLS = 20

# -- listening to the bus ------------------------------------------------------------------------------

# If `tail` is killed, its queue remains, and keeps events, which contain what people wrote, for this long. A running
# `tail` reads each event within a second.
EVENT_RETENTION_SECONDS = 300

# -- verify ------------------------------------------------------------------------------------------

VERIFY_FRAGMENTS = 5
FRAGMENT_PAUSE_SECONDS = 0.2
# If the webhook answers so slowly that the buffer is due between two fragments, the burst is sent again this often.
MAX_BURST_TRIES = 3
# Together more than the default of `limits.max_event_bytes`, each less than the largest message.
OVERSIZE_MESSAGES, OVERSIZE_CHARACTERS = 5, 60_000
# A new rule of EventBridge may need a minute, and the functions their cold starts.
MAX_RULE_SECONDS = 120
WARM_UP_PAUSE_SECONDS = 5
# Changed rules are in force within this time.
RULES_IN_FORCE_SECONDS = 10
# After this time, and the minutes of `--keep-running`, another trial may remove what a trial has made.
MAX_TRIAL_SECONDS = 600
BURSTS_A_MINUTE = 6

# -- doctor ------------------------------------------------------------------------------------------

MAX_LOG_PAGES = 20
LOOK_BACK_MINUTES = 60
# The watchdog checks every shard twice a minute, the sweep looks once a minute, the canary runs every five minutes.
MAX_SILENCE_MINUTES = 11
# As the alarm: only what a pass could not repair is as late as this.
MAX_OVERDUE_MS = 60_000
# Strangers send some forgeries to every public address; these are many, or as many as a platform's first messages.
MAX_REFUSED_WEBHOOKS, MIN_REFUSED_WEBHOOKS = 100, 3
QUEUED_DAYS = 14
UNUSED_DAYS = 3
MAX_REASON_CHARACTERS = 90
CERTIFICATE_DAYS = 30
MAX_SKEW_SECONDS = 60
MAX_API_ANSWER_SECONDS = 20
MAX_SHARE_OF_A_QUOTA = 0.8
# New accounts may run 10 functions at once. Fewer than this cannot take a burst.
MIN_CONCURRENCY = 100

# -- defaults of options -------------------------------------------------------------------------------

DEFAULT_LISTED_LETTERS = 50
