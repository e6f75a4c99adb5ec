"""Valkey's address, its sign-in, and the store's own numbers.

They are apart from the client, because a function without Valkey does not import the client.
"""

from typing import NamedTuple

A_DAY_MS = 86_400_000


class ConnectionSettings(NamedTuple):
    """Valkey's address, and the time-outs of one try."""

    url: str  # valkey://[user:password@]host:port[?cluster=true], valkeys:// for TLS
    connect_timeout_ms: int = 400
    answer_timeout_ms: int = 800
    ca_file: str | None = None


class StoreSettings(NamedTuple):
    shards: int = 1
    lease_ms: int = 15_000  # a processor that has not renewed its lease for lease_ms is dead
    start_ms: int = 10_000  # a reserved start that led to no lease within start_ms has failed
    # Work due later than horizon_ms from now needs no processor yet: the watchdog passes several times before.
    horizon_ms: int = 90_000
    look_ms: int = 500  # the processor looks at least this often
    claim_ms: int = 30_000  # from claim to take
    token_ms: int = 60_000  # from take to complete; above the conversation processor's time-out
    seen_ms: int = A_DAY_MS  # message ids and statistics of an idle conversation
    max_batch: int = 1000  # messages in one batch; the others go into the next batch
    max_batch_bytes: int = 4_194_304  # bytes of payload in one batch; a conversation processor holds it several times
    max_search: int = 1000  # messages searched for an edit or a delete
    max_emitted: int = 100  # batches that a conversation remembers, to answer where an edited message went


class IamAccess(NamedTuple):
    """The user that signs in to a cache that accepts IAM tokens."""

    user: str
    cache_name: str
    region: str


class ValkeySettings(NamedTuple):
    connection: ConnectionSettings
    iam: IamAccess | None
    store: StoreSettings
