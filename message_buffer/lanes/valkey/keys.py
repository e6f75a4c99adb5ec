"""Key names: which shard a conversation lives on, and what its keys are called.

Every key of a shard carries the shard's hash tag, so that a script's keys share one cluster slot. A tag ends at
the first `}` of the key, therefore a conversation id may hold braces itself.
"""

from functools import cache
from hashlib import blake2s
from zlib import crc32

from message_buffer.errors import InvalidId
from message_buffer.limits import MAX_CONVERSATION_ID_BYTES


def shard_of(conversation: str, shards: int) -> int:
    return crc32(encode_conversation(conversation)) % shards


def encode_conversation(conversation: str) -> bytes:
    try:
        encoded = conversation.encode()
    except UnicodeEncodeError as error:
        raise InvalidId("a conversation id must be valid Unicode: it holds a lone surrogate") from error
    if not 0 < len(encoded) <= MAX_CONVERSATION_ID_BYTES:
        raise InvalidId(f"a conversation id has 1 to {MAX_CONVERSATION_ID_BYTES} bytes; this one has {len(encoded)}")
    return encoded


def script_keys(kinds: tuple[str, ...], shard: int, conversation: bytes = b"") -> list[bytes]:
    """The keys of a script, from the kinds its header names (`pending`, `conv:<id>`, …), in the header's order."""
    return [
        prefix + conversation if per_conversation else prefix for prefix, per_conversation in _prefixes(kinds, shard)
    ]


@cache
def _prefixes(kinds: tuple[str, ...], shard: int) -> tuple[tuple[bytes, bool], ...]:
    tag = f"{{b{shard}}}:"
    return tuple(((tag + kind.removesuffix("<id>")).encode(), kind.endswith("<id>")) for kind in kinds)


def wake_key(shard: int) -> bytes:
    return script_keys(("wake",), shard)[0]


def batch_prefix(conversation: str) -> str:
    """Makes batch ids of one conversation differ from every other's; the scripts add arrival and generation."""
    return blake2s(encode_conversation(conversation), digest_size=12).hexdigest()
