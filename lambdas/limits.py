"""Every number of the functions that only developers change, grouped by function.

Operators change the numbers in `infra/settings_and_defaults.py` and in the rules. The library has its own
`limits.py`.
"""

from message_buffer.limits import MAX_CALL_MS, MINUTE_MS

# -- ingest: requests ----------------------------------------------------------------------------------------

# Lambda accepts an event of at most 6 MB. The gateway may encode the body as base64, which makes it a third longer.
MAX_WEBHOOK_BYTES = 4 * 1024 * 1024
# The largest body of each platform. Strangers may send larger ones, whose signatures would take long to check. Meta
# sends at most 3 MB. Telegram names no maximum, but its longest text has 4,096 characters, and an update quotes few.
MAX_META_WEBHOOK_BYTES = 3 * 1024 * 1024
MAX_TELEGRAM_WEBHOOK_BYTES = 1024 * 1024
# A form encodes a character in at most 12 bytes, so this is enough for 5,000 characters. An SMS has at most 1,600.
MAX_TWILIO_WEBHOOK_BYTES = 64 * 1024
# Each secret that ingest tries costs a hash of the entire body, so it tries only this many.
MAX_SECRETS_TRIED = 4
# Ingest searches at most this many bytes of a body for the accounts that it claims, and uses at most this many of them.
MAX_BYTES_SEARCHED_FOR_ACCOUNTS = 256 * 1024
MAX_ACCOUNTS_CLAIMED = 16
# The signed time of the generic platform or of a door may differ this much from ingest's clock, because both clocks may
# be wrong.
MAX_SIGNATURE_AGE_MS = 5 * MINUTE_MS
# A 503 asks the platform to wait this long. A lost connection to Valkey is usually open again by then.
RETRY_AFTER_SECONDS = 5
# A 429 asks the platform to wait until the quota allows messages again, but no longer than this, because a quota is
# full again after a minute.
MAX_RETRY_AFTER_SECONDS = 60
# For each platform and kind of refusal an instance logs this many requests of unproven senders in a minute, and then
# only how many more there were. Of each metric it writes as many counts, and then one whenever the count has doubled.
MAX_LINES_ABOUT_STRANGERS = 5
# After a refused signature an instance reads the webhook secrets again, but not within this time of its last read.
MIN_MS_BETWEEN_SECRET_READS = 10_000

# -- ingest: what one webhook may contain --------------------------------------------------------------------

# As many messages as WhatsApp, which sends the largest webhooks of all platforms, puts into one webhook.
MAX_MESSAGES_IN_A_GENERIC_WEBHOOK = 1_000
MAX_CONVERSATIONS_IN_A_WEBHOOK = 1_000
# A person writes to one customer after the other, so platforms report few of their replies at once.
MAX_CONVERSATIONS_TAKEN_OVER_IN_A_WEBHOOK = 50
# A save fails only if another request changes the same conversation's takeover at the same time.
MAX_SAVES_OF_A_TAKEOVER = 5
# Changes are edits, deletions and reactions.
MAX_CHANGES_IN_A_WEBHOOK = 1_000
# Phone numbers have at most 15 digits. A longer one beside an author's id is ignored.
MAX_DIGITS_OF_A_NUMBER = 32
# Twilio sends a few dozen fields; a form with many more only costs time.
MAX_FIELDS_IN_A_TWILIO_FORM = 1_000
# Twilio accepts at most this many files in one message.
MAX_MEDIA_IN_A_TWILIO_FORM = 10
# A number with more digits cannot be a count of files, and Python refuses to parse a number with very many digits.
MAX_DIGITS_OF_A_MEDIA_COUNT = 3
# Telegram reports the deletion of at most this many messages in one update.
MAX_MESSAGES_DELETED_AT_ONCE = 100
# Telegram nests a rich message's blocks and texts in at most 16 levels. We count a list of texts as another level.
MAX_LEVELS_OF_A_RICH_MESSAGE = 32
# With another digit, a time could be later than MAX_TIME_MS, the latest time that a message may have.
MAX_DIGITS_OF_A_TIME_IN_SECONDS = 11
# A time with more digits than MAX_DIGITS_OF_A_TIME_IN_SECONDS, up to this many, is in milliseconds.
MAX_DIGITS_OF_A_TIME_IN_MS = 15

# -- ingest: webhooks from a queue ---------------------------------------------------------------------------

# A webhook that is refused for now is hidden for this time, which doubles with each delivery. After the longest pause
# at most five minutes pass between the end of an outage and the webhook's next delivery.
MIN_QUEUED_WEBHOOK_PAUSE_SECONDS = 2
MAX_QUEUED_WEBHOOK_PAUSE_SECONDS = 300
# A webhook takes milliseconds, or a few seconds if Valkey does not answer. With less time left, the others of a batch
# are delivered again at once.
MIN_MS_LEFT_FOR_A_QUEUED_WEBHOOK = 10_000

# -- admin ---------------------------------------------------------------------------------------------------

# A function returns at most 6 MB. 60 messages are smaller than that, even if each has the maximum size.
MAX_MESSAGES_SHOWN = 60
# Rules are mostly short, so the rules of 5,000 scopes fit into a response, unless they are all huge.
MAX_RULES_LISTED = 5_000
# For the names in a request. The longest are ids of conversations, and scopes, which add a short prefix to such an id.
MAX_NAME_CHARACTERS = 1_100
# The ARN of an assumed role has at most 168 characters. A log line shows this many characters of every name.
MAX_CALLER_CHARACTERS = 256
# A page is small, because the script that reads it blocks Valkey.
MAX_CONVERSATIONS_IN_A_PAGE = 500
# A call of `conversation.list` reads the state of each conversation that it lists, one after the other.
MAX_CONVERSATIONS_LISTED = 500
DEFAULT_CONVERSATIONS_LISTED = 50
# If a filter matches few conversations, a call returns after this many pages, with a cursor, before its time-out.
MAX_PAGES_IN_A_LISTING = 200
# The index of open windows has no cursor for operators, so a listing has only the 5,000 most overdue windows.
MAX_WINDOWS_IN_A_LISTING = 5_000
# A cursor names a shard and a position in one of its keys, of at most 20 digits.
MAX_CURSOR_CHARACTERS = 64
# Retiming stops when less time than this is left, which is enough for the response and one call to Valkey with the
# longest time-outs.
MIN_MS_LEFT_TO_RETIME = 13_000

# -- admin: dead letters -------------------------------------------------------------------------------------

MAX_DEAD_LETTERS_LISTED = 500
DEFAULT_DEAD_LETTERS_LISTED = 50
# The queue hides dead letters that the admin function is reading for this time, which is longer than the function may
# run. If the function dies, they become visible again after this time.
DEAD_LETTER_HIDDEN_SECONDS = 90
# The conversation processor's default time-out is 20 seconds, and its cold start takes additional time.
REDRIVE_ANSWER_SECONDS = 30.0
# The search for a dead letter stops early enough to redrive it and to make the others visible again.
MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS = int(REDRIVE_ANSWER_SECONDS * 1_000) + MAX_CALL_MS

# -- admin: forgetting ---------------------------------------------------------------------------------------

# If there was too much for one call, the next one waits until the queue shows the dead letters that this one gave back.
MIN_MS_BEFORE_A_FORGET_GOES_ON = 1_000

# -- processor: starting conversation processors -------------------------------------------------------------

# A thread that starts a conversation processor mostly waits for Lambda's response, so this many threads work at once.
MAX_STARTS_AT_ONCE = 32
# While this many starts wait for a thread or for Lambda's response, the processor claims no further conversations.
MAX_STARTS_UNDER_WAY = 200
# If less than this part of a claim's time is left when a thread is free to start the conversation processor, put the
# claim back instead, as if Lambda had refused the start. The conversation processor could come after the claim's end.
CLAIM_LEFT_FOR_A_START = 0.5
# Half of MAX_STARTS_UNDER_WAY, so that the processor can claim more conversations while it is still starting the last
# ones.
MAX_CONVERSATIONS_IN_A_CLAIM = MAX_STARTS_UNDER_WAY // 2
# If no conversation processor could be started, the conversation is due again after this pause, which doubles with each
# failure in a row.
MIN_RETURN_MS = 250
MAX_RETURN_MS = 5_000

# -- processor: its lease, and Valkey's outages --------------------------------------------------------------

# While Valkey fails, the processor pauses between its tries. The pause doubles each time, up to MAX_PAUSE_MS.
MIN_PAUSE_MS = 50
MAX_PAUSE_MS = 1_000
# A processor without Valkey ends after this time. In a shorter outage it keeps running, because it can resume sooner
# than a new one could start.
MAX_MS_WITHOUT_VALKEY = 30_000
# If Valkey fails when a run has less time left than one more call and this, the processor ends instead of pausing, so
# that it can still publish its metrics.
MIN_MS_LEFT_TO_PAUSE = 2_000

# -- watchdog ------------------------------------------------------------------------------------------------

# A page is small, because the script that puts its conversations back blocks Valkey.
MAX_CONVERSATIONS_IN_A_RECOVERY = 500
# If more claims have expired on a shard, the next pass puts back the rest.
MAX_CONVERSATIONS_RECOVERED_IN_A_PASS = 50_000
# A step of a pass is a call to Valkey, whose longest time follows from the stage's settings, and a processor's start,
# which takes up to this time. With less time left, a pass ends.
MAX_PROCESSOR_START_MS = MAX_CALL_MS

# -- conversation processor ----------------------------------------------------------------------------------

# A conversation processor that still works after a quarter of its token's length renews the token, and again after each
# further quarter. If one renewal fails on an open connection, which takes up to 1.6 seconds, the next one is in time.
TOKEN_RENEWALS = 4

# -- DynamoDB processor --------------------------------------------------------------------------------------

# A window is locked, and its trigger is hidden in the queue, for this time. A heartbeat extends both.
WINDOW_LOCK_MS = 30_000
# If one heartbeat fails, the next one comes before the lock expires.
HEARTBEATS_IN_A_LOCK = 3
HEARTBEAT_SECONDS = WINDOW_LOCK_MS / 1_000 / HEARTBEATS_IN_A_LOCK
# The shortest time for which a trigger is hidden, and the longest if another run has locked the window, because that
# run usually needs only a moment.
MIN_TRIGGER_REST_MS = 1_000
MAX_TRIGGER_REST_MS = 5_000
# If a message is edited between the read and the freeze, the processor reads again, in all at most this often.
MAX_READS_OF_A_WINDOW = 5
# A sweep reads at most this many open windows, beginning with those that are listed under the earliest time.
MAX_WINDOWS_IN_A_SWEEP = 500
# EventBridge can start a sweep only once a minute, so that sweep asks for a second sweep after this time.
SECOND_SWEEP_DELAY_MS = 30_000
# A batch's bodies are read in pieces of this many messages, until the batch is full. If all have the largest size, a
# piece has as many bytes as a batch.
MAX_BODIES_READ_AT_ONCE = 64
