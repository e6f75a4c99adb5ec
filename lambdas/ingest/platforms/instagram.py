"""Instagram: Messenger's events, with the professional account as the entry.

Echoes (`is_echo`) and messages that the author deleted (`is_deleted`) arrive as `message` objects with a flag.
"""

from lambdas.ingest.platforms.messenger import Messenger


class Instagram(Messenger):
    name = "instagram"
