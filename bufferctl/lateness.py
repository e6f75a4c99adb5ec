"""Says why a batch was emitted late, or why messages still wait, and from which log lines each cause was read.

It never guesses. A cause needs a log line that proves it, and whatever else took time is said to be unknown.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from bufferctl.diagnoses import FAILED_REPORT
from bufferctl.errors import Failed, Unreachable
from bufferctl.facts import LogLine, StageFacts, Unreadable
from bufferctl.formatting import Tone, moment
from bufferctl.reasons import due_at_ms, waiting_part, why_due, why_left
from message_buffer.json_object import Json
from message_buffer.limits import DAY_MS, LATE_MS, LATE_PARTS, MINUTE_MS

VERY_LATE_MS = 10 * LATE_MS
TONES: Mapping[str | None, Tone] = {None: "plain", "on_time": "good", "late": "warning", "very_late": "bad"}
EMITTERS = {"valkey": "conversation_processor", "dynamodb": "dynamodb_processor"}
# The log lines that prove a cause, each with the cause's kind and sentence. First those that name the conversation.
OF_CONVERSATION = {
    "conversation processor could not be started": ("not_started", "Lambda did not start its run: {reason}."),
    "recovered": ("put_back", "Its claim or token had expired, so the watchdog put it back."),
    "emit failed": ("emit_failed", "Attempt {attempt} failed, and the next had to wait {pause}: {reason}."),
    "window failed": ("emit_failed", "Attempt {attempt} failed, and the next had to wait {pause}: {reason}."),
    "token ended": ("token_ended", "A run was paused or could not reach Valkey, so it put the batch back for {pause}."),
    "lock lost": ("token_ended", "A run lost the window: {reason}."),
    "store failed": ("valkey_away", "A run could not reach Valkey: {reason}."),
    "window not locked": ("not_locked", "A run could not lock the window: {reason}."),
    "trigger sent again": ("trigger_late", "The window's trigger did not come, so the sweep sent another."),
    "trigger returned": ("trigger_late", "The window was not due or was locked; its trigger was hidden for {pause}."),
    "dead letter": ("dead_letter", "The batch became a dead letter: {reason}."),
}
OF_SHARD = {
    "store fails": ("valkey_away", "The processor could not reach Valkey: {reason}."),
    "store answers again": ("valkey_away", "The processor reached Valkey again after {pause}."),
    "shard not checked": ("valkey_away", "The watchdog could not reach Valkey: {reason}."),
    "the DynamoDB lane stands in": ("valkey_away", "Ingest could not reach Valkey."),
    "processor started": ("no_processor", "No processor ran for the shard, so the {role} started one."),
    "processor could not be started": ("no_processor", "No processor ran for the shard, and none started: {reason}."),
    "claims put back": ("put_back", "The processor put {conversations} of the shard back, perhaps this one: {reason}."),
}
# The lines by which a run that has failed to emit the batch says so. A run that died logs none of them.
FAILURES = ("emit failed", "window failed", "token ended", "lock lost", "store failed")
# By these texts Lambda, or the emulator, says that it ended a run, or that a run died.
DEATHS = re.compile("Task timed out.*|Runtime exited.*|Worker process died")
SEARCHED_DEATHS = ('"Task timed out"', '"Runtime exited"', '"Worker process died"', FAILED_REPORT)
PAUSES = ("retry_in_ms", "hidden_ms", "away_ms")
# In Lambda's report of a run, as text or as JSON.
_DURATION = re.compile(r'(?:\tDuration: |"durationMs": ?)([0-9.]+)')
_INIT = re.compile(r'(?:Init Duration: |"initDurationMs": ?)([0-9.]+)')
# The id of a batch of the Valkey lane contains the time of its last message.
_IN_A_BATCH_ID = re.compile(r"-([0-9]{13})-[0-9]+$")
Ask = Callable[..., Json]


class Cause(NamedTuple):
    kind: str
    text: str
    lines: Sequence[LogLine] = ()


def grade(late_ms: int | None) -> str | None:
    """Return in a word how late a batch is, or None if that is not known."""
    if late_ms is None:
        return None
    return "on_time" if late_ms <= LATE_MS else "late" if late_ms <= VERY_LATE_MS else "very_late"


def explain(facts: StageFacts, ask: Ask, name: str, *, event: Json | None = None) -> Json:
    """Return why a batch, or what waits in a conversation, is late. `name` is the id of either.

    `ask` asks the admin function. `event` is the batch's event, if the caller has kept it.
    """
    case = _Case(facts, ask, name, event)
    causes = sorted(case.causes(), key=lambda cause: cause.lines[0].at_ms if cause.lines else facts.now_ms)
    shown = [
        {
            "kind": kind, "text": text, "at": lines[0].at_ms if lines else None,
            "from": [f"{_role(line)}: `{_quoted(line)}` at {moment(line.at_ms)}" for line in lines],
        }
        for kind, text, lines in causes
    ]  # fmt: skip
    late = {"lateMs": case.late_ms, "lateness": grade(case.late_ms)}
    return case.known | late | {"summary": _summary(case.known, case.late_ms), "causes": shown}


class _Case:
    """One batch, or the messages that wait, with what is known about it."""

    def __init__(self, facts: StageFacts, ask: Ask, name: str, event: Json | None) -> None:
        self._facts, self._ask = facts, ask
        self._lines: list[LogLine] = []
        self._problem: str | None = None
        self._shard: int | None = None
        event = event or {"conversationId": name} if event or "/" in name else {"batchId": name}
        self.known: Json = {key: event.get(key) for key in ("batchId", "attempt", "lane")} | {
            "conversation": event.get("conversationId"), "dueAt": due_at_ms(event),
            "emittedAt": event.get("bufferedAt"), "due": _text(why_left(event)),
            "state": "emitted" if "bufferedAt" in event else "unknown",
        }  # fmt: skip
        at = _IN_A_BATCH_ID.search(self.known["batchId"] or "")
        self._since_ms = int(at[1]) if at else facts.now_ms - DAY_MS
        if not self.known["batchId"]:
            self._ask_state(name)
        if self.known["state"] == "waiting" and not self.late_ms:
            return
        try:
            self._read()
        except Unreadable as error:
            self._problem = str(error)

    @property
    def late_ms(self) -> int | None:
        end_ms, due_ms = self.known["emittedAt"] or self._facts.now_ms, self.known["dueAt"]
        return None if due_ms is None else max(end_ms - due_ms, 0)

    # -- reading -----------------------------------------------------------------------------------------------

    def _ask_state(self, conversation: str) -> None:
        try:
            shown = waiting_part(self._ask("conversation.show", conversation=conversation))
        except Unreachable:
            self.known["state"] = "unreachable"
            return
        self._shard = shown.get("shard")
        self._since_ms = shown.get("firstAt") or shown.get("lastAt") or self._since_ms
        if batch := shown.get("batch"):
            # The stage knows only when the next attempt is due.
            self.known |= {"state": "in_flight", "batchId": batch["batchId"], "attempt": batch["attempt"]}
        elif shown.get("count"):
            self.known |= {"state": "waiting", "dueAt": shown["dueAt"], "due": _text(why_due(shown))}
        if self.known["state"] != "unknown":
            self.known["lane"] = "valkey" if "shard" in shown else "dynamodb"

    def _read(self) -> None:
        """Read the lines about the conversation. Find the batch's `emitted` line, or the newest if none is named."""
        known = self.known
        batch, conversation = (name and self._logged(name) for name in (known["batchId"], known["conversation"]))
        if conversation is None and (found := self._about("batch", batch)):
            conversation = known["conversation"] = found[0].fields["conversation"]
        lines = self._about("conversation", conversation) if conversation else []
        ended = [each for each in lines if each.fields["message"] in ("emitted", "dead letter")]
        if batch is None and known["state"] != "waiting" and ended:
            batch = known["batchId"] = ended[-1].fields["batch"]
        line = next(
            (each for each in ended if (each.fields["message"], each.fields["batch"]) == ("emitted", batch)), None
        )
        if line:
            fields = line.fields
            metadata = {"rule": fields["rule"], "appliedWaitMs": fields["applied_wait_ms"]}
            known |= {"state": "emitted", "attempt": fields["attempt"], "due": _text(why_left({"metadata": metadata}))}
            known["lane"] = next(lane for lane, role in EMITTERS.items() if role == line.role)
            known["emittedAt"] = known["emittedAt"] or line.at_ms
            known["dueAt"] = known["dueAt"] or line.at_ms - fields["late_ms"]
        lines = [each for each in lines if each.fields.get("batch", batch) == batch]
        for line in (each for each in lines if each.fields["message"] == "taken late"):
            known["dueAt"] = known["dueAt"] or line.at_ms - line.fields["late_ms"]
        self._lines = [each for each in lines if self._is_near(each, known["emittedAt"])]
        if known["state"] != "emitted" and self._said("dead letter"):
            known["state"] = "dead"

    def _logged(self, name: str) -> str:
        """Return how the logs name a conversation or a batch."""
        return str(self._ask("id.look_up", id=name)["logged"])

    def _about(self, field: str, logged: str | None) -> list[LogLine]:
        roles = (*EMITTERS.values(), "processor", "watchdog")
        lines = [line for role in roles for line in self._search(role, json.dumps(logged, ensure_ascii=False))]
        found = [line for line in lines if line.fields.get(field) == logged and "message" in line.fields]
        return sorted(found, key=lambda line: line.at_ms)

    def _search(self, role: str, pattern: str, **narrower: Any) -> list[LogLine]:
        minutes = self._facts.minutes_since((self.known["dueAt"] or self._since_ms) - MINUTE_MS)
        return self._facts.log_lines(role, pattern, minutes=minutes, **narrower)

    def _is_near(self, line: LogLine, end_ms: int | None) -> bool:
        """Return whether a line is from between the due time and `end_ms`. An outage may have begun before that."""
        begin_ms, line_ms = self.known["dueAt"] or 0, line.at_ms - line.fields.get("away_ms", 0)
        return begin_ms <= line.at_ms and line_ms <= (end_ms or self._facts.now_ms)

    def _said(self, *messages: str) -> list[LogLine]:
        return [each for each in self._lines if each.fields["message"] in messages]

    # -- causes ------------------------------------------------------------------------------------------------

    def causes(self) -> Iterator[Cause]:
        if self.known["state"] == "unreachable":
            yield Cause("valkey_away", "The stage cannot say what waits, because it cannot reach Valkey now.")
        if self.late_ms is None:
            yield from _proven(self._lines, OF_CONVERSATION)
        if self.late_ms is None or self.late_ms <= LATE_MS:
            return
        found = [*self._of_the_parts(self.late_ms / LATE_PARTS), *_proven(self._lines, OF_CONVERSATION)]
        missing = self._missing()
        if missing is None:
            found += self._deaths()
        yield from found
        if missing or not found:
            yield Cause("unknown", missing or "No log line says what took the time.")

    def _missing(self) -> str | None:
        """Return why lines about the batch are missing, or None if none are."""
        if self._problem:
            return f"Not everything could be read: {self._problem}."
        if self._said("emitted", "taken late") or self.known["state"] == "waiting":
            return None
        if not self._facts.logs_info(EMITTERS[self.known["lane"] or "valkey"]):
            return "The stage's log_level hides the lines that would say more."
        return "The logs do not have the lines of that time: new lines appear after seconds, and old ones are deleted."

    def _of_the_parts(self, part_ms: float) -> Iterator[Cause]:
        """Yield what took at least `part_ms` before the claim, between claim and take, or between take and emission."""
        due_ms, taken, emitted = self.known["dueAt"], self._said("taken late"), self._said("emitted")
        if self.known["lane"] == "dynamodb":
            if emitted and self.known["attempt"] == 1:
                yield self._start(emitted[0], due_ms, "The run emitted the batch {} after it was due")
            return
        first = taken[0].fields if taken and taken[0].fields["attempt"] == 1 else {}
        if (claimed_ms := first.get("claimed_late_ms")) is not None:
            if first["waited_for_slot"]:
                text = f"No slot was free when it was due, so it was claimed {_seconds(claimed_ms)} later."
                yield Cause("no_free_slot", text, taken[:1])
            elif claimed_ms >= part_ms:
                yield from self._before_the_claim(due_ms + claimed_ms)
            if first["late_ms"] - claimed_ms >= part_ms:
                yield self._start(taken[0], due_ms + claimed_ms, "The run took the batch {} after the claim")
        elif self.known["state"] == "waiting":
            yield from self._before_the_claim(self._facts.now_ms)
        # A run that took the batch in time logs no `taken late`. A redrive of a dead letter takes no batch.
        last = [line for line in taken if line.fields["attempt"] == self.known["attempt"]]
        begin_ms = last[0].at_ms if last else due_ms if self.known["attempt"] == 1 else None
        if emitted and begin_ms and (took_ms := emitted[0].at_ms - begin_ms) >= part_ms:
            text = f"The run needed {_seconds(took_ms)} from taking the batch to emitting it."
            yield Cause("slow_emit", text, [*last, emitted[0]])

    def _before_the_claim(self, end_ms: int) -> Iterator[Cause]:
        """Yield why the conversation was not claimed before `end_ms`."""
        if self._shard is None:
            with suppress(Failed):  # if the shard is unknown, read the lines of all shards
                self._shard = self._ask("conversation.show", conversation=self.known["conversation"]).get("shard")
        minutes = self._facts.minutes_since(self.known["dueAt"])
        lines = [
            line
            for role in ("processor", "watchdog", "ingest", "admin")
            for line in self._facts.lines_saying(role, *OF_SHARD, "claimed", minutes=minutes)
            if self._is_near(line, end_ms) and self._shard in (None, line.fields.get("shard", self._shard))
        ]
        if found := [*_proven(lines, OF_SHARD)]:
            yield from found
        elif lines or not self._facts.is_local:
            yield Cause("unknown", "It was not claimed in time, and no log line says why.")
        else:
            text = "It was not claimed in time. The emulator writes the processor's lines when the processor ends."
            yield Cause("unknown", text)

    def _start(self, line: LogLine, asked_at_ms: int, text: str) -> Cause:
        """Return the cause that the run of this line began late or was slow, as Lambda's report in its stream says."""
        run = self._search(line.role, "", logStreamNames=[line.stream], endTime=line.at_ms + MINUTE_MS)
        report = next((each for each in run if each.at_ms >= line.at_ms and _DURATION.search(each.text)), None)
        took, init = (report and each.search(report.text) for each in (_DURATION, _INIT))
        if report and took:
            text += f"; it began after {_seconds(max(report.at_ms - float(took[1]) - asked_at_ms, 0))}"
        if init:
            text += f", because its instance was new and took {_seconds(float(init[1]))} to start"
        elif self._facts.is_local:
            text += ". The emulator does not say whether it had to start a process for the run"
        text = f"{text.format(_seconds(line.at_ms - asked_at_ms))}."
        return Cause("cold_start" if init else "started_late", text, [line, *filter(None, [report])])

    def _deaths(self) -> Iterator[Cause]:
        """Yield that runs of earlier attempts died, because they logged no result."""
        earlier = (self.known["attempt"] or 1) - 1
        if (died := earlier - len(self._said(*FAILURES))) <= 0:
            return
        found = {
            (line.stream, line.at_ms, line.text): line
            for pattern in SEARCHED_DEATHS
            for line in self._search(EMITTERS[self.known["lane"] or "valkey"], pattern)
            if _is_death(line) and self._is_near(line, self.known["emittedAt"])
        }
        which = "Attempt 1" if earlier == 1 else f"{died} of the {earlier} earlier attempts"
        how = ", ".join(sorted({_quoted(line).rstrip(".") for line in found.values()}))
        how = f": {how}" if how else ". Lambda's line about it is missing"
        yield Cause("run_died", f"{which} logged no result, so its run died{how}.", [*found.values()])


def _proven(lines: list[LogLine], sentences: Mapping[str, tuple[str, str]]) -> Iterator[Cause]:
    """Yield the causes that these lines prove. Lines with the same sentence prove one cause."""
    found: dict[tuple[str, str], list[LogLine]] = {}
    for line in lines:
        if line.fields["message"] in sentences:
            kind, sentence = sentences[line.fields["message"]]
            pause = next((line.fields[name] for name in PAUSES if name in line.fields), 0)
            reason = str(line.fields.get("reason") or line.fields.get("error")).rstrip(".")
            more = {"pause": _seconds(pause), "reason": reason, "role": _role(line)}
            found.setdefault((kind, sentence.format(**line.fields | more)), []).append(line)
    for (kind, text), proofs in found.items():
        yield Cause(kind, text, proofs)


def _is_death(line: LogLine) -> bool:
    if line.fields:
        return line.fields.get("type") == "platform.report" and line.fields["record"].get("status") != "success"
    return bool(DEATHS.search(line.text))


def _summary(known: Json, late_ms: int | None) -> str:
    attempt = f" in attempt {known['attempt']}," if (known["attempt"] or 1) > 1 else ""
    late = ", but its due time is unknown" if late_ms is None else f" {_seconds(late_ms)} after it was due"
    match known["state"]:
        case "emitted":
            return f"The batch was emitted{attempt}{late}."
        case "waiting" if not late_ms:
            return f"What waits is due at {moment(known['dueAt'])}, so it is not late."
        case "waiting":
            return f"What waits is still not claimed{late}."
        case "in_flight":
            return f"The batch is being emitted, or waits for its next attempt{late}."
        case "dead":
            return "The batch became a dead letter."
    return "Nothing is known about a batch of this conversation or id."


def _text(why: Json | None) -> str | None:
    return str(why["text"]) if why else None


def _role(line: LogLine) -> str:
    return line.role.replace("_", " ").replace("dynamodb", "DynamoDB")


def _quoted(line: LogLine) -> str:
    report = line.fields.get("type") and f"{line.fields['type']}: {line.fields['record'].get('status')}"
    death = DEATHS.search(line.text)
    return str(line.fields.get("message") or report or (death[0] if death else line.text.splitlines()[0]))


def _seconds(ms: float) -> str:
    return f"{ms / 1_000:.1f} s"
