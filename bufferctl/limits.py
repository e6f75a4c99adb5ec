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

# -- output -----------------------------------------------------------------------------------------

# A healthy stage takes a batch that is due in less time. A terminal shows a longer time in another colour.
LATE_MS = 2_000
# In a narrow terminal, columns of long texts become as narrow as this. If that is not enough, the layout changes.
MIN_FOLDED_CHARACTERS = 20
UNKNOWN_WIDTH = 80
# The spaces between two columns, and those before the fields beneath a name.
GAP, INDENT = 2, 2

# -- listening to the bus ------------------------------------------------------------------------------

# If `tail` is killed, its queue remains, and keeps events, which contain what people wrote, for this long. A running
# `tail` reads each event within a second.
EVENT_RETENTION_SECONDS = 300

# -- verify ------------------------------------------------------------------------------------------

VERIFY_FRAGMENTS = 5
FRAGMENT_PAUSE_SECONDS = 0.2
# If the webhook answers so slowly that the buffer is due between two fragments, it is repeated, up to this many times.
MAX_BURST_TRIES = 3
# These messages together exceed the default of `limits.max_event_bytes`. Each is smaller than the largest message.
OVERSIZE_MESSAGES, OVERSIZE_CHARACTERS = 5, 60_000
# A new rule of EventBridge may take effect only after a minute, and the functions may need cold starts.
MAX_RULE_SECONDS = 120
WARM_UP_PAUSE_SECONDS = 5
# Changed rules are in force within this time.
RULES_IN_FORCE_SECONDS = 10
# When a trial is older than this time plus its minutes of `--keep-running`, a later trial may remove its leftovers.
MAX_TRIAL_SECONDS = 600
BURSTS_A_MINUTE = 6

# -- doctor ------------------------------------------------------------------------------------------

MAX_LOG_PAGES = 20
LOOK_BACK_MINUTES = 60
# The watchdog checks every shard twice a minute, the sweep runs once a minute, and the canary every five minutes.
MAX_SILENCE_MINUTES = 11
# Every public address receives some forgeries. Report more than the first number of them, or, if the platform has no
# accepted webhook, the second number.
MAX_REFUSED_WEBHOOKS, MIN_REFUSED_WEBHOOKS = 100, 3
QUEUED_DAYS = 14
UNUSED_DAYS = 3
MAX_REASON_CHARACTERS = 90
CERTIFICATE_DAYS = 30
MAX_SKEW_SECONDS = 60
MAX_API_ANSWER_SECONDS = 20
MAX_SHARE_OF_A_QUOTA = 0.8
# New accounts may run 10 functions at once. Fewer than this are not enough for a burst.
MIN_CONCURRENCY = 100

# -- defaults of options -------------------------------------------------------------------------------

DEFAULT_LISTED_LETTERS = 50
