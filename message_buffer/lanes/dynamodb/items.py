"""The items of the DynamoDB lane's table, and their keys.

    conversation   item          attributes
    <id>           !             the conversation's window: see `window.py`
    <id>           m#<name>      a stored message: arrived_at, and body, or `apart`, if the body is an item of its own
    <id>           p#<name>      the body of a large message
    <id>           m#<name>      a tombstone: batch_id (its batch, or DROPPED), expires_at

A message's name is its id, or the hash of a long id. DynamoDB may delete an item after its `expires_at`, so an item
that contains a message has no `expires_at`. The index `open` contains the open windows, sorted within each of its
slices by `due_at`. `due_at` is the window's due time or an earlier time, so a message that moves the due time to a
later time need not change the index.
"""

from hashlib import blake2s

# A window's item contains the names of all messages in its frozen batch, and DynamoDB allows 400 KB per item.
MAX_NAME_BYTES = 256
# A conversation's items are sorted in this order, so that a query can leave out the bodies.
WINDOW, MESSAGE, BODY = "!", "m#", "p#"
OPEN_INDEX = "open"
# The `batch_id` in the tombstone of a message that was dropped, and so is in no batch.
DROPPED = "!dropped"


def key_of(conversation: str, item: str) -> dict[str, str]:
    return {"conversation": conversation, "item": item}


def name_of(message_id: str) -> str:
    encoded = message_id.encode()
    return message_id if len(encoded) <= MAX_NAME_BYTES else f"blake2s:{blake2s(encoded).hexdigest()}"


def seconds(at_ms: int) -> int:
    """Return a time in seconds, the unit of `expires_at`."""
    return at_ms // 1_000
