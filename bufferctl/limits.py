"""The numbers of the command line that only developers change."""

# -- above these the functions refuse ------------------------------------------------------------------

MAX_HOLD_HOURS = 24
MAX_LISTED_LETTERS = 500
MAX_LISTED_AT_ONCE = 500

# -- calls ---------------------------------------------------------------------------------------------

# The admin function has a time-out of a minute, and may need a cold start first.
MAX_ADMIN_ANSWER_SECONDS = 70
MAX_WEBHOOK_ANSWER_SECONDS = 20
# Tests and benchmarks share one client of the emulator between many threads.
MAX_EMULATOR_CONNECTIONS = 50

# `conversation forget` calls the function again until everything is erased, each time from where the last call stopped.
# A few calls are enough, unless a queue is full of dead letters.
MAX_FORGET_CALLS = 20

# -- listening to the bus ------------------------------------------------------------------------------

LONG_POLL_SECONDS = 1
SHORT_POLL_SECONDS = 0.1
# If `tail` is killed, its queue remains, and keeps events, which contain what people wrote, for this long. A running
# `tail` reads each event within a second.
EVENT_RETENTION_SECONDS = 300
# One call to SQS returns at most this many messages.
MAX_EVENTS_IN_A_POLL = 10

# -- defaults of options -------------------------------------------------------------------------------

DEFAULT_LISTED_LETTERS = 50
