"""Instagram sends the same events as Messenger. The account is the professional account that the entry names.

Echoes (`is_echo`) and messages that the author deleted (`is_deleted`) arrive as `message` objects with a flag.
"""

from lambdas.ingest.platforms.messenger import Messenger


class Instagram(Messenger):
    name = "instagram"
    object_name = "instagram"
