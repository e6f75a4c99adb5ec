"""The stage's queues: which of them gets a message, and which names rules may use."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from message_buffer.messages.conversation_id import ConversationId, door_of

DEFAULT, HANDOFF = "default", "handoff"
# A queue's name is a part of the names of outputs and alarms.
QUEUE_NAME = r"^[a-z][a-z0-9-]{0,30}$"

Queues = Mapping[str, Mapping[str, Collection[str]]]
"""The name of a queue -> its conditions, in the order in which they are tried: a field -> the texts that meet it.
`default` and `handoff` have no conditions."""
NO_QUEUES: Queues = {}


def queue_of(queues: Queues, conversation: ConversationId, *, agent: str | None, rule: str | None) -> str | None:
    """Return the name of the queue of a conversation's messages: that of the rule, else the first whose conditions are
    all met, else `default`. Return None if the stage has no such queue."""
    if not queues or rule is not None:
        return rule if queues else None
    _, platform, account, _ = conversation
    found: Mapping[str, set[str | None]] = {
        "platform": {platform},
        "agent": {agent},
        "tenant": {conversation.tenant},
        "account": {account, door_of(platform, account)},
    }
    for name, conditions in queues.items():
        if conditions and all(found[field] & set(wanted) for field, wanted in conditions.items()):
            return name
    return DEFAULT if DEFAULT in queues else None


def unknown_queues(rules: Mapping[str, Any], names: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each queue that these rules name and the stage does not have."""
    has = f"use one of {', '.join(sorted(names))}" if names else "this stage has no queues, so remove the rule"
    overrides = rules.get("platformOverrides")
    layers = {"": rules, **(overrides if isinstance(overrides, dict) else {})}
    for platform, layer in layers.items():
        queue = layer.get("queue") if isinstance(layer, dict) else None
        if isinstance(queue, str) and queue not in names:
            yield f"{f'platformOverrides.{platform}.' if platform else ''}queue: there is no queue {queue!r}; {has}"
