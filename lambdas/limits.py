"""Every number of the functions that only developers change, grouped by function.

Operators change the numbers in `infra/settings_and_defaults.py` and in the rules. The library has its own
`limits.py`.
"""

from message_buffer.limits import DAY_MS, MAX_CALL_MS

# -- ingest: requests ----------------------------------------------------------------------------------------

# Lambda accepts an event of 6 MB, in which the gateway may encode the body as base64, a third longer.
MAX_WEBHOOK_BYTES = 4 * 1024 * 1024
# A 503 asks the platform to wait this long; a lost connection to Valkey is mostly open again by then.
RETRY_AFTER_SECONDS = 5
# A flood of forged signatures makes one instance read the webhook secrets no more often than this.
MIN_MS_BETWEEN_SECRET_READS = 10_000

# -- ingest: what one webhook may contain --------------------------------------------------------------------

# WhatsApp, which sends the largest webhooks, puts at most this many updates into one.
MAX_MESSAGES_IN_A_GENERIC_WEBHOOK = 1_000
# Twilio sends a few dozen fields; a form with many more only costs time.
MAX_FIELDS_IN_A_TWILIO_FORM = 1_000
# Twilio accepts at most this many files in one message.
MAX_MEDIA_IN_A_TWILIO_FORM = 10
# A longer number cannot be a count of files, and Python refuses to parse a very long one.
MAX_DIGITS_OF_A_MEDIA_COUNT = 3
# With one digit more, a time could be later than MAX_TIME_MS, the last that a message may have.
MAX_DIGITS_OF_A_TIME_IN_SECONDS = 11

# -- admin ---------------------------------------------------------------------------------------------------

# Lambda returns at most 6 MB. 60 messages stay below that if each is as long as a message may be.
MAX_MESSAGES_SHOWN = 60
# Rules are mostly short: 5,000 fit into an answer, unless they are all huge.
MAX_RULES_LISTED = 5_000
# A conversation's id has four parts of at most some hundred characters; a scope is not much longer.
MAX_NAME_CHARACTERS = 1_100
# The ARN of an assumed role has at most 168 characters. A log line keeps this much of every name.
MAX_CALLER_CHARACTERS = 256
# A hold that a person forgets blocks a customer for no longer than a day.
MAX_HOLD_MS = DAY_MS
# A page is small, because the script that reads it blocks Valkey.
MAX_CONVERSATIONS_IN_A_PAGE = 500
# A call of `conversation.list` reads the state of each conversation that it lists, one after the other.
MAX_CONVERSATIONS_LISTED = 500
DEFAULT_CONVERSATIONS_LISTED = 50
# A filter that matches little must not keep a call busy until its time-out: the answer then has a cursor.
MAX_PAGES_IN_A_LISTING = 200
# The index of open windows has no cursor for operators, so a listing ends at the 5,000 most overdue.
MAX_WINDOWS_IN_A_LISTING = 5_000
# A cursor names a shard and a position in one of its keys, of at most 20 digits.
MAX_CURSOR_CHARACTERS = 64
# Retiming stops while there is still time for one slow page and the answer.
MIN_MS_LEFT_TO_RETIME = 10_000

# -- admin: dead letters -------------------------------------------------------------------------------------

MAX_DEAD_LETTERS_LISTED = 500
DEFAULT_DEAD_LETTERS_LISTED = 50
# Longer than the admin function may run: if the function dies, the dead letters that it was reading become visible
# again after this time.
DEAD_LETTER_HIDDEN_SECONDS = 90
# The conversation processor's default time-out is 20 seconds; its cold start comes before that.
REDRIVE_ANSWER_SECONDS = 30.0
# The search for a dead letter stops early enough to redrive it and to make the others visible again.
MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS = int(REDRIVE_ANSWER_SECONDS * 1_000) + MAX_CALL_MS

# -- admin: forgetting ---------------------------------------------------------------------------------------

# If there was too much for one call, the next one finds the dead letters that this one has just given back.
MIN_MS_BEFORE_A_FORGET_GOES_ON = 1_000

# -- processor: starting conversation processors -------------------------------------------------------------

# A start is mostly waiting for Lambda's answer, so this many threads wait side by side.
MAX_STARTS_AT_ONCE = 32
# Starts that wait for a thread or for Lambda. At this number the processor claims nothing more until some have ended.
MAX_STARTS_UNDER_WAY = 200
# A claim returns at most this many: half of MAX_STARTS_UNDER_WAY, so the processor can claim more while starts are
# running.
MAX_CONVERSATIONS_IN_A_CLAIM = MAX_STARTS_UNDER_WAY // 2
# If no conversation processor could be started, the conversation is due again after this pause, which doubles with each
# failure in a row.
MIN_RETURN_MS = 250
MAX_RETURN_MS = 5_000

# -- processor: its lease, and Valkey's outages --------------------------------------------------------------

# A lease is renewed after a third of its length, but at least this often.
LEASE_RENEWALS = 3
MAX_MS_BETWEEN_LEASE_RENEWALS = 5_000
# A run may last 15 minutes; its metrics are published this often.
METRICS_EVERY_MS = 30_000
# While Valkey fails, the processor pauses this long, and twice as long each time.
MIN_PAUSE_MS = 50
MAX_PAUSE_MS = 1_000
# After two lengths of a lease without Valkey, the lease is certainly lost, and the processor leaves.
MAX_LEASES_WITHOUT_VALKEY = 2
# With less time left a processor leaves instead of pausing: its metrics still have to be published.
MIN_MS_LEFT_TO_PAUSE = 2_000

# -- watchdog ------------------------------------------------------------------------------------------------

# A page is small, because the script that puts it back blocks Valkey.
MAX_CONVERSATIONS_IN_A_RECOVERY = 500
# If more have expired on a shard, the next pass puts back the rest.
MAX_CONVERSATIONS_RECOVERED_IN_A_PASS = 50_000
# The slowest step: the watchdog gives up on a call to Valkey after 2.4 seconds, and then starts a processor.
MAX_STEP_MS = 4_000 + MAX_CALL_MS

# -- conversation processor ----------------------------------------------------------------------------------

# A batch that exists in both lanes waits this long: the DynamoDB lane emits its messages in a moment.
DYNAMODB_LANE_FIRST_MS = 1_000
# If the table could not be asked about a batch's messages, the batch is tried again after this pause.
ASK_TABLE_AGAIN_MS = 3_000
# A batch waits at most five times for the DynamoDB lane to emit what it stores of the same conversation.
MAX_WAITS_FOR_DYNAMODB_LANE = 5
# Ten attempts, half a minute in all, are spent on waiting and on a table that does not answer. After that the batch
# leaves unchecked: an outage of the table must not become an outage of the Valkey lane.
MAX_ATTEMPTS_TO_AGREE = 10
# A token outlives the function's time-out by the rounding of the time-out to whole seconds, and by the difference
# between the clocks of two hosts: until it has expired, no other run may emit the batch.
TOKEN_MARGIN_MS = 2_000

# -- DynamoDB processor --------------------------------------------------------------------------------------

# The queue hides a received trigger for the same time; a heartbeat extends both.
WINDOW_LOCK_MS = 30_000
# If one heartbeat fails, the next one comes before the lock expires.
HEARTBEATS_IN_A_LOCK = 3
HEARTBEAT_SECONDS = WINDOW_LOCK_MS / 1_000 / HEARTBEATS_IN_A_LOCK
# A trigger whose window is locked is delivered again after this pause: the other run is usually done in a moment.
MIN_TRIGGER_REST_MS = 1_000
MAX_TRIGGER_REST_MS = 5_000
# If a message is edited between the read and the freeze, the processor reads again.
MAX_READS_OF_A_WINDOW = 5
# Windows whose trigger was lost; the next sweep finds the others.
MAX_WINDOWS_IN_A_SWEEP = 500

# -- settings ------------------------------------------------------------------------------------------------

# The largest size of an event whose messages are in the object store.
MIN_MAX_EVENT_BYTES = 1_024
