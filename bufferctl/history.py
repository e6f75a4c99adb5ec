"""Replays a recorded history by the formula of the due time, and counts its gaps as an emitter would.

A line of a history is `{"conversation": "c1", "at": 1700000000000, "from": "customer" | "us"}`. `at` is in
milliseconds, or a time in ISO 8601. Only a learned wait also needs the `text`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bufferctl.errors import Failed
from message_buffer.rules.due_time import Due, Facts, arrival_of, due_after_message
from message_buffer.rules.layers import problems_of_deployed, resolve_rules
from message_buffer.rules.rules_and_defaults import RuleLayer, Rules
from message_buffer.tuning.curve import BINS_MS, WITHIN_MS, Counts, field


class HistoryLine(NamedTuple):
    at_ms: int
    is_customer: bool
    text: str = ""


class ReplayedBatch(NamedTuple):
    last: int
    """The index of its last line."""
    due: Due
    messages: int


History = Mapping[str, list[HistoryLine]]


def read_history(path: Path) -> History:
    """Return the lines of each conversation in the order of their times. Raise Failed, which names a wrong line."""
    found: dict[str, list[HistoryLine]] = {}
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise Failed(f"Cannot read {path}: {error}.") from error
    for number, text in enumerate(texts, 1):
        try:
            given = json.loads(text)
            at, author = given["at"], {"customer": True, "us": False}[given["from"]]
            at_ms = at if isinstance(at, int) else int(datetime.fromisoformat(at).timestamp() * 1_000)
            found.setdefault(str(given["conversation"]), []).append(
                HistoryLine(at_ms, author, str(given.get("text", "")))
            )
        except (ValueError, KeyError, TypeError) as error:
            expected = '{"conversation", "at", "from": "customer" or "us"}'
            raise Failed(f"{path}, line {number}: expected {expected}, but {type(error).__name__}: {error}.") from error
    return {name: sorted(lines, key=lambda line: line.at_ms) for name, lines in found.items()}


def read_rules(rules: Any) -> Rules:
    """Return these rules on top of the defaults. Raise Failed if they are not valid."""
    if problems := problems_of_deployed(rules):
        raise Failed("\n".join(problems))
    return resolve_rules([RuleLayer.model_validate({**rules, "name": "rules"})]).rules


def replay(lines: Iterable[HistoryLine], rules: Rules) -> list[ReplayedBatch]:
    """Return the batches of one conversation if each were emitted when it is due. Our own lines are ignored."""
    batches: list[ReplayedBatch] = []
    facts: Facts | None = None
    last_at_ms, last = None, 0

    def emit_until(now_ms: float) -> None:
        nonlocal facts
        if facts and facts.due and facts.due.due_at_ms <= now_ms:
            batches.append(ReplayedBatch(last, facts.due, facts.message_count))
            facts = None

    for number, line in enumerate(lines):
        if not line.is_customer:
            continue
        emit_until(line.at_ms)
        last_at_ms, gap_ms = arrival_of(line.at_ms, last_at_ms)
        opened_at_ms, count, due = (
            (facts.first_at_ms, facts.message_count, facts.due) if facts else (last_at_ms, 0, None)
        )
        timing = rules.timing_of(line.text, line.at_ms)
        facts = Facts(opened_at_ms, last_at_ms, count + 1, gap_ms, due=due)
        facts, last = facts._replace(due=due_after_message(facts, timing, line.at_ms)), number
        emit_until(line.at_ms)
    emit_until(float("inf"))
    return batches


def measure(history: History, rules: Rules) -> tuple[Counts, dict[str, float]]:
    """Return the counts of the history and its batches, and what the replay shows exactly."""
    counts: Counter[str] = Counter()
    cut = 0
    for lines in history.values():
        counts.update(_gap(line, after) for line, after in pairwise([*lines, None]) if line and line.is_customer)
        for batch in replay(lines, rules):
            last, after = lines[batch.last], next(iter(lines[batch.last + 1 :]), None)
            wait_ms = max(batch.due.due_at_ms - last.at_ms, 0)
            counts.update({"batches": 1, "resolved": 1, "waited_ms": wait_ms, field("e", wait_ms): 1})
            cut += after is not None and after.is_customer and after.at_ms - last.at_ms <= WITHIN_MS
    batches = max(counts["batches"], 1)
    return counts, {"batches": batches, "cut": cut / batches, "meanWaitMs": counts["waited_ms"] / batches}


def _gap(line: HistoryLine, after: HistoryLine | None) -> str:
    """Return the counter of the gap after a customer's line. A line of ours censors it."""
    gap_ms = after.at_ms - line.at_ms if after else BINS_MS[-1] + 1
    if gap_ms > BINS_MS[-1]:
        return field("c", BINS_MS[-1])
    return field("g" if after and after.is_customer else "c", gap_ms)
