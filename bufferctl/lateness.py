"""Says why a batch was emitted late, or why messages still wait, and from which log lines each cause was read.

It never guesses. A cause needs a log line that proves it, and whatever else took time is said to be unknown.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from bufferctl.errors import Failed
from bufferctl.facts import LogLine, StageFacts, Unreadable
from bufferctl.formatting import moment
from bufferctl.reasons import waiting_part, why, why_due
from message_buffer.json_object import Json
from message_buffer.limits import DAY_MS, LATE_MS, LATE_PARTS, MINUTE_MS

VERY_LATE_MS = 10 * LATE_MS
# The functions whose lines name a conversation.
ROLES = ("conversation_processor", "dynamodb_processor", "processor", "watchdog")
# The log lines that prove a cause, each with the cause's sentence. First those that name the conversation.
OF_CONVERSATION = {
    "conversation processor could not be started": "Lambda did not start its run: {reason}.",
    "recovered": "Its claim or token had expired, so the watchdog put it back.",
    "emit failed": "Attempt {attempt} failed, and the next had to wait {pause}: {reason}.",
    "window failed": "Attempt {attempt} failed, and the next had to wait {pause}: {reason}.",
    "token ended": "A run was paused or could not reach Valkey, so it put the batch back for {pause}.",
    "lock lost": "A run lost the window: {reason}.",
    "store failed": "A run could not reach Valkey: {reason}.",
    "trigger sent again": "The window's trigger did not come, so the sweep sent another.",
    "dead letter": "The batch became a dead letter: {reason}.",
}
OF_SHARD = {
    "store fails": "The processor could not reach Valkey: {reason}.",
    "store answers again": "The processor reached Valkey again after {pause}.",
    "the DynamoDB lane stands in": "Ingest could not reach Valkey.",
    "processor started": "No processor ran for the shard, so the {role} started one.",
    "processor could not be started": "No processor ran for the shard, and none started: {reason}.",
}
# The lines by which a run that has failed to emit the batch says so. A run that died logs none of them.
FAILURES = ("emit failed", "window failed", "token ended", "lock lost", "store failed")
# By these texts Lambda, or the emulator, says that it ended a run, or that a run died.
DEATHS = ("Task timed out", "Runtime exited", "Worker process died")
# Lambda's report of the first run of an instance says how long the instance took to start.
INIT = re.compile(r"Init Duration: ([0-9.]+)")
# The id of a batch of the Valkey lane contains the time of its last message.
IN_A_BATCH_ID = re.compile(r"-([0-9]{13})-[0-9]+$")
SUMMARIES = {
    "emitted": "The batch was emitted",
    "waiting": "What waits is still not claimed",
    "in_flight": "The batch is being emitted, or waits for its next attempt",
    "dead": "The batch became a dead letter",
}
Ask = Callable[..., Json]
# A sentence, and the lines that prove it.
Cause = tuple[str, list[LogLine]]
UNKNOWN: Cause = ("No log line says what took the time.", [])
UNCLAIMED: Cause = ("No claim in time led to a run, and no log line says why.", [])


def grade(late_ms: int | None) -> str | None:
    """Return in a word how late a batch is, or None if that is not known."""
    if late_ms is None:
        return None
    return "on_time" if late_ms <= LATE_MS else "late" if late_ms <= VERY_LATE_MS else "very_late"


def explain(facts: StageFacts, ask: Ask, name: str) -> Json:
    """Return why a batch, or a conversation's batch, is late. `name` is the id of either.

    `ask` invokes the admin function.
    """
    case = _Case(facts, ask, name)
    causes = sorted(case.causes(), key=lambda cause: cause[1][0].at_ms if cause[1] else facts.now_ms)
    shown = [
        {
            "text": text, "at": lines[0].at_ms if lines else None,
            "from": [f"{_role(line)}: `{_quoted(line)}` at {moment(line.at_ms)}" for line in lines],
        }
        for text, lines in causes
    ]  # fmt: skip
    late = {"lateMs": case.late_ms, "lateness": grade(case.late_ms)}
    return case.known | late | {"summary": _summary(case.known, case.late_ms), "causes": shown}


class _Case:
    """The known facts about a batch, or about messages that wait."""

    def __init__(self, facts: StageFacts, ask: Ask, name: str) -> None:
        self._facts, self._ask = facts, ask
        self._lines: list[LogLine] = []
        self.known: Json = dict.fromkeys(("batchId", "conversation", "attempt", "dueAt", "emittedAt", "due"))
        self.known |= {"conversation" if "/" in name else "batchId": name, "state": "unknown"}
        at = IN_A_BATCH_ID.search(name)
        self._since_ms = int(at[1]) if at else facts.now_ms - DAY_MS
        if self.known["conversation"]:
            self._ask_state()
        if self.known["state"] != "waiting" or self.late_ms:
            self._read()

    @property
    def late_ms(self) -> int | None:
        end_ms, due_ms = self.known["emittedAt"] or self._facts.now_ms, self.known["dueAt"]
        return None if due_ms is None else max(end_ms - due_ms, 0)

    # -- reading -----------------------------------------------------------------------------------------------

    def _ask_state(self) -> None:
        shown = waiting_part(self._ask("conversation.show", conversation=self.known["conversation"]))
        self._since_ms = shown.get("firstAt") or shown.get("lastAt") or self._since_ms
        if batch := shown.get("batch"):
            # The stage knows only when the next attempt is due.
            self.known |= {"state": "in_flight", "batchId": batch["batchId"], "attempt": batch["attempt"]}
        elif shown.get("count"):
            due = (why_due(shown) or {}).get("text")
            # Between the claim and the run's first step there is no batch yet.
            state = "in_flight" if shown.get("state") == "inflight" else "waiting"
            self.known |= {"state": state, "dueAt": shown["dueAt"], "due": due}

    def _read(self) -> None:
        """Read the lines about the batch. If no batch is known, and no messages wait, take the newest batch."""
        known = self.known
        batch, conversation = (name and self._logged(name) for name in (known["batchId"], known["conversation"]))
        if conversation is None and (found := self._about("batch", batch)):
            conversation = known["conversation"] = found[0].fields["conversation"]
        lines = self._about("conversation", conversation) if conversation else []
        if batch is None and known["state"] == "unknown":
            ended = [each.fields["batch"] for each in lines if each.fields["message"] in ("emitted", "dead letter")]
            batch = known["batchId"] = ended[-1] if ended else None
        lines = [each for each in lines if each.fields.get("batch", batch) == batch]
        for line in lines:
            self._learn(line)
        self._lines = [each for each in lines if self._is_near(each, known["emittedAt"])]

    def _learn(self, line: LogLine) -> None:
        known, fields = self.known, line.fields
        if fields["message"] in ("emitted", "taken late") and known["dueAt"] is None:
            known["dueAt"] = line.at_ms - fields["late_ms"]
        if fields["message"] == "emitted" and known["state"] != "emitted":
            known |= {
                "state": "emitted", "emittedAt": line.at_ms, "attempt": fields["attempt"],
                "due": why(fields["rule"], fields["applied_wait_ms"], was_emitted=True)["text"],
            }  # fmt: skip
        elif fields["message"] == "dead letter":
            known["state"] = "dead"

    def _logged(self, name: str) -> str:
        """Return how the logs name a conversation or a batch."""
        return str(self._ask("id.look_up", id=name)["logged"])

    def _about(self, field: str, logged: str | None) -> list[LogLine]:
        lines = [line for role in ROLES for line in self._search(role, json.dumps(logged, ensure_ascii=False))]
        found = [line for line in lines if line.fields.get(field) == logged and "message" in line.fields]
        return sorted(found, key=lambda line: line.at_ms)

    def _search(self, role: str, pattern: str) -> list[LogLine]:
        minutes = self._facts.minutes_since((self.known["dueAt"] or self._since_ms) - MINUTE_MS)
        with suppress(Unreadable):
            return self._facts.log_lines(role, pattern, minutes=minutes)
        return []

    def _is_near(self, line: LogLine, end_ms: int | None) -> bool:
        """Return whether a line is from between the due time and `end_ms`. An outage may have begun before that."""
        begin_ms, line_ms = self.known["dueAt"] or 0, line.at_ms - line.fields.get("away_ms", 0)
        return begin_ms <= line.at_ms and line_ms <= (end_ms or self._facts.now_ms)

    def _said(self, *messages: str) -> list[LogLine]:
        return [each for each in self._lines if each.fields["message"] in messages]

    # -- causes ------------------------------------------------------------------------------------------------

    def causes(self) -> Iterator[Cause]:
        if self.late_ms is None:
            yield from _proven(self._lines)
        if self.late_ms is None or self.late_ms <= LATE_MS:
            return
        found = [*self._of_the_parts(self.late_ms / LATE_PARTS), *_proven(self._lines)]
        if ran := self._said("emitted", "taken late"):
            found += self._deaths(ran[0].role)
        yield from found or [UNKNOWN]

    def _of_the_parts(self, part_ms: float) -> Iterator[Cause]:
        """Yield what took at least `part_ms` before the claim, between claim and take, or between take and emission.

        A run that took the batch in time, and one of the DynamoDB lane, logs no `taken late`.
        """
        begin_ms, after = self.known["dueAt"], "due"
        taken, emitted = self._said("taken late"), self._said("emitted")
        if taken and (first := taken[0].fields)["attempt"] == 1:
            claimed_late_ms, claimed_at_ms = first["claimed_late_ms"], begin_ms + first["claimed_late_ms"]
            if first["waited_for_slot"]:
                text = f"No slot was free when it was due, so it was claimed {_seconds(claimed_late_ms)} later."
                yield text, taken[:1]
            elif claimed_late_ms >= part_ms:
                yield from self._before_the_claim(claimed_at_ms)
            if taken[0].at_ms - claimed_at_ms >= part_ms:
                yield self._slow(taken[0], claimed_at_ms, "took the batch {} after the claim")
        elif self.known["state"] == "waiting":
            yield from self._before_the_claim(self._facts.now_ms)
        elif not self.known["batchId"]:
            yield "It is claimed, but no run has taken it yet: a run starts slowly, or has died.", []
        if last := [line for line in taken if line.fields["attempt"] == self.known["attempt"]]:
            begin_ms, after = last[0].at_ms, "taken"
        elif self.known["attempt"] != 1:
            return  # a dead letter that was sent again
        if emitted and emitted[0].at_ms - begin_ms >= part_ms:
            yield self._slow(emitted[0], begin_ms, f"emitted the batch {{}} after it was {after}")

    def _before_the_claim(self, end_ms: int) -> Iterator[Cause]:
        """Yield why the conversation was not claimed before `end_ms`."""
        shard = None
        with suppress(Failed):  # if the shard is unknown, read the lines of all shards
            shard = self._ask("conversation.show", conversation=self.known["conversation"]).get("shard")
        minutes = self._facts.minutes_since(self.known["dueAt"])
        lines = [
            line
            for role in ("processor", "watchdog", "ingest", "admin")
            for line in self._facts.lines_saying(role, *OF_SHARD, minutes=minutes)
            if self._is_near(line, end_ms) and shard in (None, line.fields.get("shard", shard))
        ]
        yield from _proven(lines) or [UNCLAIMED]
        if started := [line for line in lines if line.fields["message"] == "processor started"]:
            # It may have died before the due time, while it waited for that.
            how, died = self._died("processor", self.known["dueAt"] - MINUTE_MS, started[0].at_ms)
            yield from [(f"The processor's run died: {how}.", died)] if died else []
            if self._said("taken late"):
                yield f"The new processor claimed it {_seconds(end_ms - started[-1].at_ms)} later.", started[-1:]

    def _slow(self, line: LogLine, begin_ms: int, did: str) -> Cause:
        """Return as a cause how long a run took to log this line, and whether its instance was new."""
        text, proofs = f"The run {did.format(_seconds(line.at_ms - begin_ms))}", [line]
        for report in self._search(line.role, '"Init Duration"'):
            init = INIT.search(report.text)
            if init and report.stream == line.stream and report.at_ms >= line.at_ms:
                text += f"; its instance was new and took {_seconds(float(init[1]))} to start"
                proofs.append(report)
        return f"{text}.", proofs

    def _deaths(self, role: str) -> list[Cause]:
        """Return a cause if earlier attempts died and logged no result, or the run whose claim expired."""
        earlier, recovered = (self.known["attempt"] or 1) - 1, self._said("recovered")
        if (died := earlier - len(self._said(*FAILURES))) <= 0 and not recovered:
            return []
        end_ms = recovered[-1].at_ms if recovered else self.known["emittedAt"] or self._facts.now_ms
        how, found = self._died(role, self.known["dueAt"], end_ms)
        if died > 0:
            which = "Attempt 1" if earlier == 1 else f"{died} of the {earlier} earlier attempts"
            return [(f"{which} logged no result, so its run died: {how}.", found)]
        text = f"A run died before that claim expired: {how}." if found else "No line says why that claim expired."
        return [(text, found or recovered)]

    def _died(self, role: str, begin_ms: int, end_ms: int) -> Cause:
        """Return how runs of this function died between these times, and the lines about it."""
        found = [
            line
            for death in DEATHS
            for line in self._search(role, f'"{death}"')
            if death in line.text and not line.fields and begin_ms <= line.at_ms <= end_ms
        ]
        return ", ".join(sorted({_quoted(line).rstrip(".") for line in found})) or "no line says how", found


def _proven(lines: list[LogLine]) -> list[Cause]:
    """Return the causes that these lines prove. Lines with the same sentence prove one cause."""
    found: dict[str, list[LogLine]] = {}
    sentences = OF_CONVERSATION | OF_SHARD
    for line in lines:
        if sentence := sentences.get(line.fields["message"]):
            pause = line.fields.get("retry_in_ms") or line.fields.get("away_ms", 0)
            reason = str(line.fields.get("reason") or line.fields.get("error")).rstrip(".")
            more = {"pause": _seconds(pause), "reason": reason, "role": _role(line)}
            found.setdefault(sentence.format(**line.fields | more), []).append(line)
    return [*found.items()]


def _summary(known: Json, late_ms: int | None) -> str:
    if known["state"] not in SUMMARIES:
        return "No log line tells of a batch. New lines come late, old ones are deleted, and log_level may hide them."
    if known["state"] == "waiting" and not late_ms:
        return f"What waits is due at {moment(known['dueAt'])}, so it is not late."
    attempt = f" in attempt {known['attempt']}," if (known["attempt"] or 1) > 1 else ""
    late = ", but its due time is unknown" if late_ms is None else f" {_seconds(late_ms)} after it was due"
    return f"{SUMMARIES[known['state']]}{attempt}{late}."


def _role(line: LogLine) -> str:
    return line.role.replace("_", " ")


def _quoted(line: LogLine) -> str:
    """Return a line's message, or Lambda's text about a death."""
    text = line.text.splitlines()[0]
    death = next((each for each in DEATHS if each in text), "")
    return str(line.fields.get("message") or text[text.find(death) :])


def _seconds(ms: float) -> str:
    return f"{ms / 1_000:.1f} s"
