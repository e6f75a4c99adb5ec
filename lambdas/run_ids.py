"""Names the runs of processors and conversation processors, for their leases and tokens."""

from uuid import uuid4


def new_run_id(started_by: str | int) -> str:
    """Return an id that begins with `started_by`, which is a start id or the deadline of a claim.

    The rest is random, because Lambda may deliver one event twice, and only one of the two runs may have the lease or
    the batch.
    """
    return f"{started_by}.{uuid4().hex}"
