"""The settings of Valkey's address, of the sign-in, and of the store.

They are in their own module, because a function without Valkey does not import the client.
"""

from typing import NamedTuple

from message_buffer import limits

# The value of a setting that this function's environment lacks. The store refuses a call that needs the setting.
NOT_SET = 0


class ConnectionSettings(NamedTuple):
    """Valkey's address, and its time-outs."""

    url: str  # valkey://[user:password@]host:port[?cluster=true], valkeys:// for TLS
    connect_timeout_ms: int = limits.VALKEY_CONNECT_MS  # for TCP, TLS and the sign-in together
    answer_timeout_ms: int = limits.VALKEY_ANSWER_MS  # for an answer on an open connection
    ca_file: str | None = None

    @property
    def max_call_ms(self) -> int:
        """Return how long a call may take. All its tries together wait for a connection only once."""
        return self.connect_timeout_ms + limits.VALKEY_ATTEMPTS * self.answer_timeout_ms


class StoreSettings(NamedTuple):
    """The store's settings. A function's environment contains only the settings that the function needs."""

    shards: int
    start_ms: int  # a reserved start has failed if no processor has acquired the lease in this time
    lease_ms: int = NOT_SET  # a processor that has not renewed its lease for this long is dead
    claim_ms: int = NOT_SET  # the time from the claim to the take
    slots: int = NOT_SET  # conversations of a shard that may be in flight at once
    token_ms: int = NOT_SET  # the time from the take to the completion; longer than the conversation processor may run
    max_waiting: int = NOT_SET  # messages in one conversation
    max_waiting_bytes: int = NOT_SET  # bytes of messages of more than 4 KiB, in one conversation
    horizon_ms: int = limits.START_HORIZON_MS
    look_ms: int = limits.PROCESSOR_LOOK_MS
    seen_ms: int = limits.REMEMBERED_MS
    max_batch: int = limits.MAX_MESSAGES_IN_A_BATCH
    max_batch_bytes: int = limits.MAX_BYTES_IN_A_BATCH
    max_search: int = limits.MAX_MESSAGES_SEARCHED
    search_bytes: int = limits.MAX_BYTES_SEARCHED_IN_A_CALL
    max_emitted: int = limits.MAX_BATCHES_REMEMBERED
    max_seen: int = limits.MAX_IDS_REMEMBERED


class IamAccess(NamedTuple):
    """The user that signs in to a cache that accepts IAM tokens."""

    user: str
    cache_name: str
    region: str


class ValkeySettings(NamedTuple):
    connection: ConnectionSettings
    iam: IamAccess | None
    store: StoreSettings
    processor_function: str
    """The function to start when a script has reserved the start of a processor."""
