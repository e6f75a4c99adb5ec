"""The numbers of the local stage that only developers change."""

# -- start ---------------------------------------------------------------------------------------------

MAX_EMULATOR_START_SECONDS = 30.0
MAX_VALKEY_START_SECONDS = 10.0
# The first answer of ingest includes the start of its process.
MAX_FIRST_ANSWER_SECONDS = 30.0

# -- processes -----------------------------------------------------------------------------------------

# A process that SIGTERM has not ended by then gets SIGKILL.
MAX_ENDING_SECONDS = 3.0
# The pause between two polls. Looking at a process costs nothing; asking ingest over HTTP runs the function each time.
PROCESS_POLL_SECONDS = 0.05
FIRST_ANSWER_POLL_SECONDS = 0.2

# -- calls ---------------------------------------------------------------------------------------------

# A server that takes longer than this to answer counts as down.
MAX_EMULATOR_HEALTH_SECONDS = 2.0
MAX_VALKEY_PING_SECONDS = 1.0
# The emulator starts a process for a request that finds none free.
MAX_WEBHOOK_ANSWER_SECONDS = 30.0

# -- logs ----------------------------------------------------------------------------------------------

LOGS_POLL_SECONDS = 0.5
# `make logs` begins this far in the past, so that it shows the run that made a person look.
MAX_PAST_LOGS_MS = 60_000
# A function that runs beside another may write its lines a moment later under an earlier time.
MAX_LATE_LINE_MS = 2_000
# The end of a failed command's log; the log itself stays in the stage's folder.
MAX_SHOWN_LOG_LINES = 25

# -- terminal ------------------------------------------------------------------------------------------

PROGRESS_TICK_SECONDS = 0.2
DEMO_TICK_SECONDS = 0.1
DEMO_BAR_CHARACTERS = 30

# -- demo ----------------------------------------------------------------------------------------------

# More than `maxWaitMs` of the local stage's rules, and the start of its functions.
MAX_EVENT_SECONDS = 40.0
# A second event, which the demo reports as an error, would come within this time after the first one.
MAX_SECOND_EVENT_SECONDS = 3.0
