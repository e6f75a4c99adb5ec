"""The load that the benchmarks send, and the checker of what came out of it."""

import random
from collections import defaultdict
from itertools import pairwise
from statistics import mean, median

import pytest

from tools.bench.checker import Message, check
from tools.bench.workload import Sending, Shape, fragments, gap_ms, workload

SHAPE = Shape()
SENT = workload(conversations=40, bursts=3, seed=7)


def bursts_of(sent: list[Sending]) -> dict[tuple[int, int], list[Message]]:
    """Return the batches that a perfect buffer would make."""
    found: defaultdict[tuple[int, int], dict[Message, None]] = defaultdict(dict)
    for each in sent:
        found[each.conversation, each.burst][each.conversation, each.number] = None
    return {burst: list(messages) for burst, messages in found.items()}


def test_bursts_have_the_mean_and_gaps_the_median_that_the_shape_names() -> None:
    drawn = random.Random(1)
    sizes = [fragments(SHAPE, drawn) for _ in range(20_000)]
    gaps = [gap_ms(SHAPE, drawn) for _ in range(20_000)]
    assert mean(sizes) == pytest.approx(SHAPE.mean_fragments, rel=0.03)
    assert sizes.count(1) / len(sizes) == pytest.approx(1 / SHAPE.mean_fragments, rel=0.05)
    assert median(gaps) == pytest.approx(SHAPE.gap_median_ms, rel=0.03)


def test_every_gap_inside_a_burst_is_below_the_silence_and_every_gap_between_two_above_it() -> None:
    by_conversation: defaultdict[int, list[Sending]] = defaultdict(list)
    for each in SENT:
        by_conversation[each.conversation].append(each)
    for sendings in by_conversation.values():
        for one, other in pairwise(sendings):
            gap = other.at_ms - one.at_ms
            assert gap < SHAPE.silence_ms if one.burst == other.burst else gap > SHAPE.silence_ms


def test_a_perfect_buffer_passes_the_check() -> None:
    bursts = bursts_of(SENT)
    verdict = check(SENT, bursts.values())
    assert (verdict.lost, verdict.sent_twice, verdict.merged, verdict.split) == (0, 0, 0, 0)
    assert verdict.batches == verdict.bursts == len(bursts) == 120
    assert verdict.messages == sum(map(len, bursts.values()))


def test_a_message_in_no_batch_is_lost() -> None:
    batches = list(bursts_of(SENT).values())
    batches[3] = batches[3][:-1]
    assert check(SENT, batches).lost == 1


def test_a_message_that_comes_again_was_sent_twice_in_the_same_batch_or_another() -> None:
    batches = list(bursts_of(SENT).values())
    assert check(SENT, [*batches, batches[0][:1]]).sent_twice == 1
    assert check(SENT, [batches[0] + batches[0][:1], *batches[1:]]).sent_twice == 1


def test_a_batch_of_two_conversations_or_of_two_bursts_is_merged_wrongly() -> None:
    bursts = bursts_of(SENT)
    rest = [batch for burst, batch in bursts.items() if burst not in {(0, 0), (0, 1), (1, 0)}]
    assert check(SENT, [bursts[0, 0] + bursts[1, 0], bursts[0, 1], *rest]).merged == 1
    assert check(SENT, [bursts[0, 0] + bursts[0, 1], bursts[1, 0], *rest]).merged == 1


def test_a_burst_in_two_batches_is_split_and_nothing_worse() -> None:
    bursts = bursts_of(SENT)
    longest = max(bursts, key=lambda burst: len(bursts[burst]))
    whole = bursts.pop(longest)
    verdict = check(SENT, [whole[:1], whole[1:], *bursts.values()])
    assert (verdict.split, verdict.lost, verdict.sent_twice, verdict.merged) == (1, 0, 0, 0)
