"""Draws a workload of bursts of messages from named distributions, with a seed.

It is a stand-in: its shapes (few fragments with a long tail, gaps spread over a decade) are those of people who chat;
its parameters are our choice, and are in `Shape`. It is no recording of real traffic, and has neither hours of the day
nor crowds. The gaps inside a burst are shorter than the silence that ends it, and those between two bursts of a
conversation are longer, so a checker can say which messages each batch should have.
"""

import random
from dataclasses import dataclass
from math import log
from typing import NamedTuple


@dataclass(frozen=True)
class Shape:
    silence_ms: int = 500
    mean_fragments: float = 3.0
    """The messages of a burst: one, and a geometric number more."""
    gap_median_ms: float = 80.0
    """The gap between fragments: lognormal, at most three fifths of the silence."""
    gap_sigma: float = 0.8
    pause_ms: float = 1_500.0
    """The gap between bursts: one and a half silences, and an exponential time with this mean."""
    redelivered_share: float = 0.02
    """The part of the messages that is sent again, as platforms do when an answer was lost."""


class Sending(NamedTuple):
    at_ms: float
    """When it is sent, from the beginning."""
    conversation: int
    burst: int
    number: int
    """The message's number in its conversation; a redelivery has the same one."""


def workload(*, conversations: int, bursts: int, seed: int, shape: Shape | None = None) -> list[Sending]:
    """Return the messages in the order of sending."""
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
                # Still within the burst, so that a redelivery which moves a timer is not counted as a merge.
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
