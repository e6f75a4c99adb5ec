"""Instagram: Messenger's events, with the professional account as the entry.

Its echoes come among the messages, as do those that were unsent (`is_deleted`).
"""

from lambdas.ingest.platforms.messenger import Messenger


class Instagram(Messenger):
    name = "instagram"
