"""Asks the stage for conversations and rules, and explains why each batch is due, or why it has left."""

import math
import threading
import time
from collections import OrderedDict, deque
from typing import Any

from bufferctl.errors import Failed
from console.batches import Batches
from console.hub import Hub
from console.limits import EXPLANATIONS_KEPT, PAUSE_AFTER_A_PROBLEM_SECONDS, RULES_KEPT_SECONDS, UNEXPLAINED_KEPT
from console.looks import now_ms
from console.pace import PacedStage
from console.time_lines import TimeLines
from console.why import Facts, facts_of_batch, facts_of_buffer, why, without_rules

Json = dict[str, Any]
# A conversation, or the account and the agent of several conversations.
Key = tuple[str, ...]
OWN_LAYER = "conversation:"


class KeptRules:
    """The rules that the console has read last, with the times of the answers."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[float, Json]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, key: Key, rules: Json) -> None:
        with self._lock:
            self._kept[key] = (time.monotonic(), rules)
            self._kept.move_to_end(key)
            if len(self._kept) > EXPLANATIONS_KEPT:
                self._kept.popitem(last=False)

    def fresh(self, key: Key) -> Json | None:
        """Return the rules, or None if they were not read in the last seconds."""
        age_seconds, rules = self._of(key)
        return rules if age_seconds < RULES_KEPT_SECONDS else None

    def during(self, facts: Facts, key: Key) -> Json | None:
        """Return the rules as they were while the batch waited, or None if they were not read then."""
        age_seconds, rules = self._of(key)
        waited_ms = max(now_ms() - (facts.first_at_ms or facts.due_at_ms), 0)
        return rules if age_seconds <= waited_ms / 1_000 + RULES_KEPT_SECONDS else None

    def _of(self, key: Key) -> tuple[float, Json | None]:
        """Return the age of the rules in seconds, and the rules."""
        with self._lock:
            read_at, rules = self._kept.get(key, (-math.inf, None))
        return time.monotonic() - read_at, rules


class Explained:
    """Answers of `conversation.show` with the sentence that says why the conversation is due then."""

    def __init__(self, stage: PacedStage, time_lines: TimeLines, *, words: bool) -> None:
        self._stage = stage
        self._time_lines = time_lines
        self._words = words
        self._answers = KeptRules()

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
        answer = self._answers.fresh((conversation,))
        if answer is None:
            answer = self._stage.ask("rules.explain", conversation=conversation)
            self._answers.add((conversation,), answer)
        return answer

    def known_rules(self, conversation: str, facts: Facts) -> Json | None:
        """Return the rules as they were while the batch waited, or None if they were not read then."""
        answer = self._answers.during(facts, (conversation,))
        return None if answer is None else answer["rules"]


class Departures:
    """Explains batches that have left: at once if their rules are known, otherwise after `run` has read the rules."""

    def __init__(
        self, stage: PacedStage, hub: Hub, *, explained: Explained, time_lines: TimeLines, batches: Batches
    ) -> None:
        self._stage = stage
        self._hub = hub
        self._explained = explained
        self._time_lines = time_lines
        self._batches = batches
        # An account's conversations have the same rules for an agent, unless a conversation has rules of its own.
        self._rules_of_accounts = KeptRules()
        self._unexplained: deque[tuple[Json, Facts]] = deque(maxlen=UNEXPLAINED_KEPT)
        self._came = threading.Event()
        self._ended = threading.Event()

    def cause_of(self, detail: Json) -> Json | None:
        """Return why the batch left, or None if its event lacks the times. A better answer may be published later."""
        facts = facts_of_batch(detail)
        if facts is None:
            return None
        names = {name: detail.get(name) for name in ("conversationId", "batchId", "agent")}
        rules = self._explained.known_rules(str(names["conversationId"]), facts)
        if rules is None:
            rules = self._rules_of_accounts.during(facts, _account_and_agent(names))
        if rules is None:
            self._unexplained.append((names, facts))
            self._came.set()
            return without_rules(facts)
        return self._why(names, facts, rules)

    def run(self) -> None:
        """Explain the batches whose rules were not known. Ask the stage only while a page is open."""
        while not self._ended.is_set():
            self._came.wait()
            if not self._hub.wait_for_a_reader(timeout_seconds=1):
                continue
            self._came.clear()
            try:
                self.explain()
            except Failed:
                # The page shows the problem, because the looks at the stage fail, too.
                self._came.set()
                self._ended.wait(PAUSE_AFTER_A_PROBLEM_SECONDS)

    def end(self) -> None:
        self._ended.set()
        self._came.set()

    def explain(self) -> None:
        """Read the missing rules, and publish the causes of the batches. Raise Failed if the stage does not answer."""
        while self._unexplained:
            # Begin with the newest, because the page's reader probably looks at it.
            names, facts = self._unexplained.pop()
            try:
                cause = self._why(names, facts, self._rules_of(names))
            except Failed:
                self._unexplained.append((names, facts))
                raise
            self._batches.note_cause(names["batchId"], cause)
            self._time_lines.note_cause(names["conversationId"], names["batchId"], cause)
            self._hub.publish("cause", {"batchId": names["batchId"], "cause": cause})

    def _rules_of(self, names: Json) -> Json:
        key = _account_and_agent(names)
        known = self._rules_of_accounts.fresh(key)
        if known is not None:
            return known
        answer = self._stage.look("rules.explain", conversation=names["conversationId"], agent=names["agent"])
        rules: Json = answer["rules"]
        if not any(str(each.get("layer")).startswith(OWN_LAYER) for each in rules.values()):
            self._rules_of_accounts.add(key, rules)
        return rules

    def _why(self, names: Json, facts: Facts, rules: Json) -> Json:
        return why(facts, rules, self._time_lines.of(names["conversationId"]), has_left=True)


def waiting_part(shown: Json) -> Json:
    """Return the state in the lane where messages wait. After an outage, that may be the DynamoDB lane alone."""
    waits_in_valkey = shown.get("count") or shown.get("batch")
    return shown if waits_in_valkey else shown.get("dynamodb") or shown


def _account_and_agent(names: Json) -> Key:
    return (*str(names["conversationId"]).split("/")[:3], str(names["agent"]))
