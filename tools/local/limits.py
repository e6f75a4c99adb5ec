"""The numbers of the local stage that only developers change."""

# -- start ---------------------------------------------------------------------------------------------

MAX_EMULATOR_START_SECONDS = 30.0
MAX_VALKEY_START_SECONDS = 10.0
# The first answer of ingest includes the start of its process.
MAX_FIRST_ANSWER_SECONDS = 30.0

# -- processes -----------------------------------------------------------------------------------------

# A process that is still running this long after SIGTERM gets SIGKILL.
MAX_ENDING_SECONDS = 3.0
# A process has ended this long after SIGKILL.
MAX_KILL_SECONDS = 5.0
# The pause between two polls. A look at a process is cheap, but each request to ingest runs the function.
PROCESS_POLL_SECONDS = 0.05
FIRST_ANSWER_POLL_SECONDS = 0.2
LOCK_POLL_SECONDS = 0.2

# -- calls ---------------------------------------------------------------------------------------------

# A server that takes longer than this to respond counts as down.
MAX_EMULATOR_HEALTH_SECONDS = 2.0
MAX_VALKEY_PING_SECONDS = 1.0
# If no process of ingest is free, the emulator starts one for the request.
MAX_WEBHOOK_ANSWER_SECONDS = 30.0

# -- logs ----------------------------------------------------------------------------------------------

LOGS_POLL_SECONDS = 0.5
# `make logs` begins this far in the past, so that it shows the run because of which the developer looks.
MAX_PAST_LOGS_MS = 60_000
# Functions run at the same time, so a line may appear in the logs up to this long after another function's line that
# has a later time.
MAX_LATE_LINE_MS = 2_000
# How many lines of a failed command's log are shown, from its end. The log itself stays in the stage's folder.
MAX_SHOWN_LOG_LINES = 25

# -- terminal ------------------------------------------------------------------------------------------

PROGRESS_TICK_SECONDS = 0.2
DEMO_TICK_SECONDS = 0.1
DEMO_BAR_CHARACTERS = 30

# -- demo ----------------------------------------------------------------------------------------------

# `maxMessages` of the preset `customers`. So the warm-up fills the buffer, which is then due at once, in both lanes.
DEMO_WARM_UP_MESSAGES = 20
# Longer than a message of the demo can wait (`maxWaitMs`) and the functions need to start.
MAX_EVENT_SECONDS = 60.0
# A second event, which the demo reports as an error, would come within this time after the first one.
MAX_SECOND_EVENT_SECONDS = 3.0
