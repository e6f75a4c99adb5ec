"""Instagram: Messenger's events, with the professional account as the entry.

Echoes and unsent messages (`is_deleted`) come among the messages.
"""

from lambdas.ingest.platforms.messenger import Messenger


class Instagram(Messenger):
    name = "instagram"
