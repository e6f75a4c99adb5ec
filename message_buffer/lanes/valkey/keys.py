"""The shard of a conversation, and the names of its keys.

Every key of a shard begins with the shard's hash tag, so all keys of a script are in one cluster slot. A tag ends at
the first `}` of the key, so a conversation id may contain braces.
"""

from functools import cache
from hashlib import blake2s
from zlib import crc32

from message_buffer.messages.conversation_id import encode_conversation


def shard_of(conversation: str, shards: int) -> int:
    """Return the number of the conversation's shard; raise InvalidId if the id is not valid."""
    return shard_of_encoded(encode_conversation(conversation), shards)


def shard_of_encoded(conversation: bytes, shards: int) -> int:
    """Return the number of the conversation's shard. `conversation` is the id in the form that `encode_conversation`
    returns."""
    return crc32(conversation) % shards


def script_keys(kinds: tuple[str, ...], shard: int, conversation: bytes = b"") -> list[bytes]:
    """Return a script's keys in the order of its header. `kinds` are the keys as the header names them: `pending`,
    `conv:<id>`, …"""
    prefixes, of_conversation = _prefixes(kinds, shard)
    keys = prefixes.copy()
    for at in of_conversation:
        keys[at] += conversation
    return keys


@cache
def _prefixes(kinds: tuple[str, ...], shard: int) -> tuple[list[bytes], list[int]]:
    """Return the keys without the conversation's id, and the positions of those keys to which the id must be added."""
    tag = f"{{b{shard}}}:"
    prefixes = [(tag + kind.removesuffix("<id>")).encode() for kind in kinds]
    return prefixes, [at for at, kind in enumerate(kinds) if kind.endswith("<id>")]


def wake_key(shard: int) -> bytes:
    """Return the key of the list that a sleeping processor pops from."""
    return script_keys(("wake",), shard)[0]


def batch_prefix(conversation: str) -> str:
    """Return the first part of the conversation's batch ids, which no other conversation shares. Scripts add the last
    arrival and the generation."""
    return blake2s(encode_conversation(conversation), digest_size=12).hexdigest()
