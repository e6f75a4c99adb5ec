"""The numbers of the console that only developers change."""

# -- calls to the stage --------------------------------------------------------------------------------

# The requests of the page's reader come before the polls, so the polls leave room for them.
MAX_REQUESTS_A_SECOND = 5
MAX_LOOKS_A_SECOND = 3
# The admin function returns at most this many conversations in one answer.
CONVERSATIONS_IN_A_REQUEST = 500
# A sweep over all open conversations ends after this many answers, and the page then says that there are more.
MAX_REQUESTS_IN_A_SWEEP = 20
STATUS_EVERY_SECONDS = 2.0
LETTERS_EVERY_SECONDS = 15.0
LETTERS_SHOWN = 50
OWNERS_EVERY_SECONDS = 30.0
PAUSE_BETWEEN_SWEEPS_SECONDS = 0.5
PAUSE_AFTER_A_PROBLEM_SECONDS = 2.0
# A listener that cannot listen, for example because rights are missing, is started again after pauses that grow up to
# this.
MAX_PAUSE_BETWEEN_LISTENERS_SECONDS = 60.0
# After the end of a local stage, the listener polls this often for its next start, so that it listens before the first
# batch is due.
LOCAL_STAGE_POLL_SECONDS = 0.25

# -- what is kept for the page -------------------------------------------------------------------------

CONVERSATIONS_SHOWN = 200
# If there are more time lines, those that changed longest ago are dropped.
TIME_LINES_KEPT = 500
ENTRIES_IN_A_TIME_LINE = 100
BATCHES_KEPT = 3_000
BATCHES_KEPT_MS = 15 * 60_000
CUSTOMERS_KEPT = 50
BODIES_KEPT_OF_A_CUSTOMER = 200
LOG_LINES_SHOWN = 200
LOGS_LOOK_BACK_MS = 10 * 60_000

# -- the server ----------------------------------------------------------------------------------------

TOKEN_BYTES = 24
MAX_BODY_BYTES = 64 * 1024
MAX_TEXT_CHARACTERS = 4_000
# A page that reads so slowly that this many messages wait for it is disconnected; it then connects again.
MAX_WAITING_MESSAGES = 500
KEEP_ALIVE_SECONDS = 15.0
SHUT_DOWN_SECONDS = 3
MAX_HOLD_MS = 24 * 60 * 60_000

# -- scenarios -----------------------------------------------------------------------------------------

MAX_STEPS = 100
MAX_STEP_PAUSE_SECONDS = 60.0
# After a crash, a batch comes at the latest after the watchdog's pass, a lease and the starts of two functions.
MAX_WAIT_FOR_BATCH_SECONDS = 60.0
