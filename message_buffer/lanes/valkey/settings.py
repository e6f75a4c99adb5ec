"""Where Valkey is, who signs in, and the engine's own numbers; apart from the client, which a function without Valkey
does not import."""

from typing import NamedTuple

A_DAY_MS = 86_400_000


class ConnectionSettings(NamedTuple):
    """Where Valkey is, and how long one try may wait for it."""

    url: str  # valkey://[user:password@]host:port[?cluster=true], valkeys:// for TLS
    connect_timeout_ms: int = 400
    answer_timeout_ms: int = 800
    ca_file: str | None = None


class StoreSettings(NamedTuple):
    shards: int = 1
    lease_ms: int = 15_000  # a processor that is silent for so long is dead
    start_ms: int = 10_000  # a reserved start that did not lead to a lease after so long failed
    # Work due later than this needs no processor yet: the watchdog passes several times before it.
    horizon_ms: int = 90_000
    look_ms: int = 500  # the processor looks at least this often
    claim_ms: int = 30_000  # from claim to take
    executor_ms: int = 60_000  # from take to complete; above the conversation processor's own time-out
    seen_ms: int = A_DAY_MS  # message ids and statistics of an idle conversation
    max_batch: int = 1000  # messages in one batch; the rest makes the next one
    max_batch_bytes: int = 4_194_304  # of its payloads: what a conversation processor's memory takes several times over
    max_search: int = 1000  # messages looked through for an edit or a delete
    max_emitted: int = 100  # batches a conversation remembers, to say where an edited message went


class IamAccess(NamedTuple):
    """Who signs in to the cache, where it takes IAM tokens."""

    user: str
    cache_name: str
    region: str


class ValkeySettings(NamedTuple):
    connection: ConnectionSettings
    iam: IamAccess | None
    store: StoreSettings
    processor_function: str
    """The function to start where a script reserved a processor's start."""
