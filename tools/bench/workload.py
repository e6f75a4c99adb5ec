"""A synthetic workload: bursts of messages, drawn from named distributions with a seed.

The distributions have the shapes of real chats: few fragments with a long tail, and gaps that differ by a factor of
ten. Their parameters in `Shape` are our choice. The workload is not recorded from real traffic, and its rate does not
change with the hour of the day. The gaps inside a burst are shorter than `silence_ms`, which ends the burst. The gaps
between two bursts of a conversation are longer. So a checker knows the messages that each batch should contain.
"""

import random
from dataclasses import dataclass
from math import log
from typing import NamedTuple


@dataclass(frozen=True)
class Shape:
    silence_ms: int = 500
    mean_fragments: float = 3.0
    """The mean number of fragments in a burst, which is one plus a geometrically distributed number."""
    gap_median_ms: float = 80.0
    """The median of the gaps between fragments. The gaps are lognormal, and at most three fifths of `silence_ms`."""
    gap_sigma: float = 0.8
    pause_ms: float = 1_500.0
    """The mean of an exponential random time. A pause between bursts is this time plus 1.5 `silence_ms`."""
    redelivered_share: float = 0.02
    """The share of messages that are sent again, as platforms do when a response is lost."""


class Sending(NamedTuple):
    at_ms: float
    """The time from the beginning of the workload."""
    conversation: int
    burst: int
    number: int
    """The number of the message in its conversation; a redelivery has the same number."""


def workload(*, conversations: int, bursts: int, seed: int, shape: Shape | None = None) -> list[Sending]:
    """Return the messages in the order in which they are sent."""
    drawn, chosen = random.Random(seed), shape or Shape()
    sendings = [
        sending
        for conversation in range(conversations)
        for sending in _conversation(conversation, bursts, chosen, drawn)
    ]
    return sorted(sendings)


def _conversation(conversation: int, bursts: int, shape: Shape, drawn: random.Random) -> list[Sending]:
    at_ms, number, sendings = drawn.uniform(0, shape.silence_ms + shape.pause_ms), 0, []
    for burst in range(bursts):
        for fragment in range(fragments(shape, drawn)):
            if fragment:
                at_ms += gap_ms(shape, drawn)
            sendings.append(Sending(at_ms, conversation, burst, number))
            if drawn.random() < shape.redelivered_share:
                # Redeliver the message within its burst, because a later redelivery could change the wait and so merge
                # two bursts.
                sendings.append(Sending(at_ms + shape.silence_ms / 20, conversation, burst, number))
            number += 1
        at_ms += 1.5 * shape.silence_ms + drawn.expovariate(1 / shape.pause_ms)
    return sendings


def fragments(shape: Shape, drawn: random.Random) -> int:
    if shape.mean_fragments <= 1:
        return 1
    more = 1 - 1 / shape.mean_fragments
    return 1 + int(log(1 - drawn.random()) / log(more))


def gap_ms(shape: Shape, drawn: random.Random) -> float:
    return min(drawn.lognormvariate(log(shape.gap_median_ms), shape.gap_sigma), 0.6 * shape.silence_ms)
