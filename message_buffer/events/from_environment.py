"""A function's settings for the destinations.

They are in their own module, because ingest does not import the destinations.
"""

from typing import NamedTuple


class EmissionSettings(NamedTuple):
    """The addresses of the destinations, and the bounds of what is sent there."""

    event_bus: str
    max_event_bytes: int
    oversize_bucket: str
    max_attempts: int
    dead_letter_queue_url: str
