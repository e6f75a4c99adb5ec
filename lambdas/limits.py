"""The numbers that several functions or modules share. Others are beside their use.

Operators change the numbers in `infra/settings_and_defaults.py` and in the rules. The library has its own
`limits.py`.
"""

from message_buffer.limits import MINUTE_MS

# The signed time of the generic platform or of a door may differ this much from ingest's clock, because both clocks may
# be wrong.
MAX_SIGNATURE_AGE_MS = 5 * MINUTE_MS
# For the names in a request. The longest are ids of conversations, and scopes, which add a short prefix to such an id.
MAX_NAME_CHARACTERS = 1_100
# The ARN of an assumed role has at most 168 characters. A log line shows this many characters of every name.
MAX_CALLER_CHARACTERS = 256
# A page is small, because the script that reads it blocks Valkey.
MAX_CONVERSATIONS_IN_A_PAGE = 500
# The index of open windows has no cursor for operators, so a listing has only the 5,000 most overdue windows.
MAX_WINDOWS_IN_A_LISTING = 5_000
