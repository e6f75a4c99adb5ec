"""Compare the batches that a system emitted with the bursts that were sent to it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tools.bench.workload import Sending

Message = tuple[int, int]
"""The numbers of the conversation and of the message."""


@dataclass(frozen=True)
class Verdict:
    messages: int
    bursts: int
    batches: int
    lost: int
    """The number of messages that no batch contains."""
    sent_twice: int
    """The number of messages that were emitted more than once."""
    merged: int
    """The number of batches that contain messages of several bursts or conversations."""
    split: int
    """The number of bursts whose messages are in several batches."""


def check(sent: Iterable[Sending], batches: Iterable[list[Message]]) -> Verdict:
    burst_of = {(each.conversation, each.number): (each.conversation, each.burst) for each in sent}
    came: Counter[Message] = Counter()
    pieces: defaultdict[tuple[int, int], int] = defaultdict(int)
    merged = count = 0
    for batch in batches:
        count += 1
        came.update(batch)
        bursts = {burst_of[message] for message in batch}
        merged += len(bursts) > 1
        for burst in bursts:
            pieces[burst] += 1
    return Verdict(
        messages=len(burst_of),
        bursts=len(set(burst_of.values())),
        batches=count,
        lost=sum(message not in came for message in burst_of),
        sent_twice=sum(times > 1 for times in came.values()),
        merged=merged,
        split=sum(found > 1 for found in pieces.values()),
    )
