"""Asks the stage for conversations and rules, and explains why each batch is due, or why it has left."""

import threading
import time
from collections import OrderedDict, deque
from typing import Any

from bufferctl.errors import Failed, Unreachable
from console.batches import Batches
from console.hub import Hub
from console.limits import EXPLANATIONS_KEPT, PAUSE_AFTER_A_PROBLEM_SECONDS, RULES_KEPT_SECONDS, UNEXPLAINED_KEPT
from console.looks import now_ms
from console.pace import PacedStage
from console.time_lines import TimeLines
from console.why import Facts, facts_of_batch, facts_of_buffer, why, without_rules

Json = dict[str, Any]
# Rules are the same for all conversations of an account and an agent, except for those with rules of their own.
Owner = tuple[str, ...]
OWN_LAYER = "conversation:"


class Explained:
    """Answers of `conversation.show` with the sentence that says why the conversation is due then."""

    def __init__(self, stage: PacedStage, time_lines: TimeLines, *, words: bool) -> None:
        self._stage = stage
        self._time_lines = time_lines
        self._words = words
        self._rules: OrderedDict[str, tuple[float, Json]] = OrderedDict()
        self._lock = threading.Lock()

    def show(self, conversation: str) -> Json:
        """Return the conversation's state with `why`, and with its messages if the page may show people's words."""
        shown = self._stage.ask("conversation.show", conversation=conversation, messages=self._words)
        rules = self.rules(conversation)["rules"]
        facts = facts_of_buffer(waiting_part(shown))
        cause = why(facts, rules, self._time_lines.of(conversation))
        if facts is not None:
            self._time_lines.note_why(conversation, facts.due_at_ms, cause)
        return shown | {"why": cause}

    def rules(self, conversation: str) -> Json:
        """Return the answer of `rules.explain`, which is kept for some seconds."""
        with self._lock:
            read_at, rules = self._rules.get(conversation, (-RULES_KEPT_SECONDS, {}))
        if time.monotonic() - read_at >= RULES_KEPT_SECONDS:
            rules = self._stage.ask("rules.explain", conversation=conversation)
            with self._lock:
                self._rules[conversation] = (time.monotonic(), rules)
                self._rules.move_to_end(conversation)
                if len(self._rules) > EXPLANATIONS_KEPT:
                    self._rules.popitem(last=False)
        return rules

    def known_rules(self, conversation: str, facts: Facts) -> Json | None:
        """Return the rules as they were while the batch waited, or None if they were not read then."""
        with self._lock:
            read_at, answer = self._rules.get(conversation, (-RULES_KEPT_SECONDS, {}))
        return answer["rules"] if answer and _are_of(facts, read_at) else None


class Departures:
    """Explains batches that have left, at once if their rules are known, and else as soon as `run` has read them."""

    def __init__(
        self, stage: PacedStage, hub: Hub, *, explained: Explained, time_lines: TimeLines, batches: Batches
    ) -> None:
        self._stage = stage
        self._hub = hub
        self._explained = explained
        self._time_lines = time_lines
        self._batches = batches
        self._rules: OrderedDict[Owner, tuple[float, Json]] = OrderedDict()
        self._unexplained: deque[tuple[Json, Facts]] = deque(maxlen=UNEXPLAINED_KEPT)
        self._came = threading.Event()
        self._ended = threading.Event()

    def cause_of(self, detail: Json) -> Json | None:
        """Return why the batch left, or None if its event lacks the times. A better answer may be published later."""
        facts = facts_of_batch(detail)
        if facts is None:
            return None
        named = {name: detail.get(name) for name in ("conversationId", "batchId", "agent")}
        rules = self._explained.known_rules(str(named["conversationId"]), facts)
        if rules is None:
            read_at, rules = self._rules.get(_owner(named), (-RULES_KEPT_SECONDS, {}))
            if not rules or not _are_of(facts, read_at):
                self._unexplained.append((named, facts))
                self._came.set()
                return without_rules(facts)
        return self._why(named, facts, rules)

    def run(self) -> None:
        """Explain the batches whose rules were not known. Ask the stage only while a page is open."""
        while not self._ended.is_set():
            self._came.wait()
            if not self._hub.wait_for_a_reader(timeout_seconds=1):
                continue
            self._came.clear()
            try:
                self.explain()
            except Unreachable:
                # The page shows the problem, because the looks at the stage fail, too.
                self._came.set()
                self._ended.wait(PAUSE_AFTER_A_PROBLEM_SECONDS)
            except Exception as error:  # noqa: BLE001 - the page shows it, and the other batches follow
                self._hub.publish("notice", {"text": f"The console failed: {type(error).__name__}"})
                self._came.set()

    def end(self) -> None:
        self._ended.set()
        self._came.set()

    def explain(self) -> None:
        """Read the missing rules, and publish the causes of the batches. Raise Unreachable if the stage is away.

        A batch that the stage refuses to explain keeps the stage's reason alone.
        """
        while self._unexplained:
            # The newest first, because somebody may be looking at it.
            named, facts = self._unexplained.pop()
            try:
                cause = self._why(named, facts, self._rules_of(named))
            except Unreachable:
                self._unexplained.append((named, facts))
                raise
            except Failed:
                continue
            self._batches.note_cause(named["batchId"], cause)
            self._time_lines.note_cause(named["conversationId"], named["batchId"], cause)
            self._hub.publish("cause", {"batchId": named["batchId"], "cause": cause})

    def _rules_of(self, named: Json) -> Json:
        owner = _owner(named)
        read_at, known = self._rules.get(owner, (-RULES_KEPT_SECONDS, {}))
        if time.monotonic() - read_at < RULES_KEPT_SECONDS:
            return known
        answer = self._stage.look("rules.explain", conversation=named["conversationId"], agent=named["agent"])
        rules: Json = answer["rules"]
        if not any(str(each.get("layer")).startswith(OWN_LAYER) for each in rules.values()):
            self._rules[owner] = (time.monotonic(), rules)
            self._rules.move_to_end(owner)
            if len(self._rules) > EXPLANATIONS_KEPT:
                self._rules.popitem(last=False)
        return rules

    def _why(self, named: Json, facts: Facts, rules: Json) -> Json:
        return why(facts, rules, self._time_lines.of(named["conversationId"]), has_left=True)


def waiting_part(shown: Json) -> Json:
    """Return the state in the lane where messages wait. After an outage, that may be the DynamoDB lane alone."""
    waits_in_valkey = shown.get("count") or shown.get("batch")
    return shown if waits_in_valkey else shown.get("dynamodb") or shown


def _are_of(facts: Facts, read_at: float) -> bool:
    """Return whether rules that were read at this time, by the monotonic clock, are those of the batch."""
    waited_ms = max(now_ms() - (facts.first_at_ms or facts.due_at_ms), 0)
    return time.monotonic() - read_at <= waited_ms / 1_000 + RULES_KEPT_SECONDS


def _owner(named: Json) -> Owner:
    return (*str(named["conversationId"]).split("/")[:3], str(named["agent"]))
