"""Says why a batch was emitted late, or why messages still wait, and from which log lines each cause was read.

It never guesses. A cause needs a log line that proves it, and whatever else took time is said to be unknown.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from bufferctl.errors import Failed, Unreachable
from bufferctl.facts import LogLine, StageFacts, Unreadable
from bufferctl.formatting import Tone, moment
from bufferctl.reasons import due_at_ms, waiting_part, why_due, why_left
from message_buffer.json_object import Json
from message_buffer.limits import DAY_MS, LATE_MS, LATE_PARTS, MINUTE_MS

VERY_LATE_MS = 10 * LATE_MS
EMITTERS = {"valkey": "conversation_processor", "dynamodb": "dynamodb_processor"}
# Each log line that proves a cause, with the cause's kind and a sentence. First those that name the conversation.
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
}  # fmt: skip
OF_SHARD = {
    "store fails": ("valkey_away", "The processor could not reach Valkey: {reason}."),
    "store answers again": ("valkey_away", "The processor reached Valkey again after {pause}."),
    "shard not checked": ("valkey_away", "The watchdog could not reach Valkey: {reason}."),
    "the DynamoDB lane stands in": ("valkey_away", "Ingest could not reach Valkey."),
    "processor started": ("no_processor", "No processor ran for the shard, so the {role} started one."),
    "processor could not be started": ("no_processor", "No processor ran for the shard, and none started: {reason}."),
    "claims put back": ("put_back", "The processor put {conversations} of the shard back, perhaps this one: {reason}."),
}
DIED = ("Task timed out", "Runtime exited", "Worker process died", "platform.report")
_DURATION = re.compile(r'(?:\tDuration: |"durationMs": ?)([0-9.]+)')
_INIT = re.compile(r'(?:Init Duration: |"initDurationMs": ?)([0-9.]+)')
# The id of a batch of the Valkey lane contains the time of its last message.
_IN_A_BATCH_ID = re.compile(r"-([0-9]{13})-[0-9]+$")
TONES: Mapping[str | None, Tone] = {None: "plain", "on_time": "good", "late": "warning", "very_late": "bad"}
Ask = Callable[..., Json]


class Cause(NamedTuple):
    kind: str
    text: str
    lines: tuple[LogLine, ...] = ()


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
    causes, known = list(case.causes()), case.known
    late_ms = case.late_ms
    return known | {
        "lateMs": late_ms, "lateness": grade(late_ms), "summary": _summary(known, late_ms),
        "causes": [
            {
                "kind": each.kind, "text": each.text, "at": each.lines[0].at_ms if each.lines else None,
                "from": [f"{_role(line)}: {_quoted(line)} at {moment(line.at_ms)}" for line in each.lines],
            }
            for each in causes
        ],
    }  # fmt: skip


class _Case:
    """One batch, or the messages that wait, with what is known about it."""

    def __init__(self, facts: StageFacts, ask: Ask, name: str, event: Json | None) -> None:
        self._facts, self._ask = facts, ask
        self._lines: list[LogLine] = []
        self._problem: str | None = None
        self._shard: int | None = None
        self.known: Json = dict.fromkeys(("conversation", "batchId", "dueAt", "emittedAt", "attempt", "lane", "due"))
        self.known["state"] = "unknown"
        at = _IN_A_BATCH_ID.search(event["batchId"] if event else name)
        # When the batch's last message arrived, or the earliest time at which it may have. None if there is no batch.
        self._since_ms: int | None = int(at[1]) if at else facts.now_ms - DAY_MS
        if event:
            same = {key: event.get(key) for key in ("batchId", "attempt", "lane")}
            self.known |= same | {"state": "emitted", "conversation": event["conversationId"]}
            self.known |= {
                "dueAt": due_at_ms(event),
                "emittedAt": event.get("bufferedAt"),
                "due": _text(why_left(event)),
            }
        elif "/" in name:
            self.known["conversation"] = name
            self._ask_state(name)
        else:
            self.known["batchId"] = name
        if self._since_ms is None or (self.known["state"] == "waiting" and not self.late_ms):
            return  # the stage does not know the conversation, or nothing is due
        try:
            self._read()
        except Unreadable as error:
            self._problem = str(error)

    @property
    def late_ms(self) -> int | None:
        end_ms, due_ms = self.known["emittedAt"] or self._facts.now_ms, self.known["dueAt"]
        return None if due_ms is None else max(end_ms - due_ms, 0)

    # -- reading -----------------------------------------------------------------------------------------------

    def _ask_state(self, name: str) -> None:
        try:
            shown = waiting_part(self._ask("conversation.show", conversation=name))
        except Unreachable:
            self.known["state"] = "unreachable"
            return
        self._shard = shown.get("shard")
        self._since_ms = shown.get("firstAt") or shown.get("lastAt")
        if not (shown.get("count") or shown.get("batch")):
            return
        batch = shown.get("batch") or {}
        self.known |= {key: batch.get(key) for key in ("batchId", "attempt")}
        self.known |= {
            "state": "in_flight" if batch else "waiting",
            "lane": "valkey" if "shard" in shown else "dynamodb",
        }
        # The due time of a frozen batch is that of its next attempt, so read the batch's own from the logs.
        self.known |= {"due": _text(why_due(shown)), "dueAt": None if batch else shown["dueAt"]}

    def _read(self) -> None:
        """Read the lines about the conversation. Find the batch's `emitted` line, or the newest if none is named."""
        known = self.known
        batch, conversation = self._logged(known["batchId"]), self._logged(known["conversation"])
        if conversation is None and (found := self._about("batch", batch)):
            conversation = known["conversation"] = found[0].fields["conversation"]
        lines = self._about("conversation", conversation)
        emitted = [each for each in lines if each.fields["message"] == "emitted"]
        if known["state"] in ("waiting", "in_flight"):
            emitted = []
        elif batch:
            emitted = [each for each in emitted if each.fields["batch"] == batch][:1]
        if emitted:
            line = emitted[-1].fields
            batch, known["batchId"] = line["batch"], known["batchId"] or line["batch"]
            metadata = {"rule": line["rule"], "appliedWaitMs": line["applied_wait_ms"]}
            known |= {"state": "emitted", "attempt": line["attempt"], "due": _text(why_left({"metadata": metadata}))}
            known["lane"] = next(lane for lane, role in EMITTERS.items() if role == emitted[-1].role)
            known["dueAt"] = known["dueAt"] or emitted[-1].at_ms - line["late_ms"]
            known["emittedAt"] = known["emittedAt"] or emitted[-1].at_ms
        lines = [each for each in lines if each.fields.get("batch", batch) == batch]
        taken = [each for each in lines if each.fields["message"] == "taken late"]
        if taken:
            known["dueAt"] = known["dueAt"] or taken[0].at_ms - taken[0].fields["late_ms"]
        self._lines = [each for each in lines if self._is_near(each)]
        if known["state"] != "emitted" and self._said("dead letter"):
            known["state"] = "dead"

    def _logged(self, name: str | None) -> str | None:
        """Return how the logs name a conversation or a batch."""
        return name and str(self._ask("id.look_up", id=name)["logged"])

    def _about(self, field: str, logged: str | None) -> list[LogLine]:
        found = [
            line
            for role in (*EMITTERS.values(), "processor", "watchdog")
            for line in (self._search(role, f'"{logged}"') if logged else ())
            if line.fields.get(field) == logged and "message" in line.fields
        ]
        return sorted(found, key=lambda line: line.at_ms)

    def _search(self, role: str, pattern: str, **narrower: Any) -> list[LogLine]:
        since_ms = (self.known["dueAt"] or self._since_ms or 0) - MINUTE_MS
        return self._facts.log_lines(role, pattern, minutes=self._facts.minutes_since(since_ms), **narrower)

    def _is_near(self, line: LogLine, *, end_ms: int | None = None) -> bool:
        """Return whether a line is from the time between due and emitted. An outage may have begun before that."""
        end_ms = end_ms or self.known["emittedAt"] or self._facts.now_ms
        return (self.known["dueAt"] or 0) <= line.at_ms and line.at_ms - line.fields.get("away_ms", 0) <= end_ms

    def _said(self, *messages: str) -> list[LogLine]:
        return [each for each in self._lines if each.fields["message"] in messages]

    # -- causes ------------------------------------------------------------------------------------------------

    def causes(self) -> Iterator[Cause]:
        """Yield the causes. If some are not known, the last one says so."""
        if self.known["state"] == "unreachable":
            yield Cause("valkey_away", "The stage cannot say what waits, because it cannot reach Valkey now.")
        if self.late_ms is None or self.late_ms <= LATE_MS:
            return
        hidden = self._hidden()
        found = [*self._before_the_take(self.late_ms / LATE_PARTS), *_causes(self._lines, OF_CONVERSATION)]
        if hidden is None:
            found += [*self._deaths(), *self._after_the_take(self.late_ms / LATE_PARTS)]
        yield from sorted(found, key=lambda cause: cause.lines[0].at_ms if cause.lines else 0)
        if hidden or not found:
            yield Cause("unknown", hidden or "No log line says what took the time.")

    def _hidden(self) -> str | None:
        """Return why lines about the batch are missing, or None if none are."""
        role = EMITTERS[self.known["lane"] or "valkey"]
        if self._problem:
            return f"Not everything could be read: {self._problem}."
        if self._said("emitted", "taken late") or self.known["state"] == "waiting":
            return None
        if not self._facts.logs_info(role):
            return "The stage's log_level hides the lines that would say more."
        return "The logs do not have the lines of that time: those of today appear after seconds, old ones are deleted."

    def _before_the_take(self, part_ms: float) -> Iterator[Cause]:
        """Yield why the first attempt did not begin in time."""
        due_ms, first, end_ms = self.known["dueAt"], next(iter(self._said("taken late")), None), self._facts.now_ms
        is_first = first is not None and first.fields["attempt"] == 1
        if first and is_first and (claimed_ms := first.fields["claimed_late_ms"]) is not None:
            if first.fields["waited_for_slot"]:
                text = f"No slot was free when it was due, so it was claimed {_seconds(claimed_ms)} later."
                yield Cause("no_free_slot", text, (first,))
            elif claimed_ms >= part_ms:
                yield from self._before_the_claim(due_ms + claimed_ms)
            if first.fields["late_ms"] - claimed_ms >= part_ms:
                wait = _seconds(first.fields["late_ms"] - claimed_ms)
                yield self._start(first, due_ms + claimed_ms, f"The run took the batch {wait} after the claim")
        elif self.known["state"] == "waiting" and self.known["lane"] == "valkey":
            yield from self._before_the_claim(end_ms)
        elif self.known["lane"] == "dynamodb" and self.known["attempt"] == 1:
            for line in self._said("emitted"):
                yield self._start(
                    line, due_ms, f"The run emitted the batch {_seconds(self.late_ms or 0)} after it was due"
                )

    def _before_the_claim(self, end_ms: int) -> Iterator[Cause]:
        """Yield why the conversation was not claimed before `end_ms`."""
        if self._shard is None and "/" in (conversation := self.known["conversation"]):
            with suppress(Failed):  # if the shard is unknown, read the lines of all shards
                self._shard = self._ask("conversation.show", conversation=conversation).get("shard")
        minutes = self._facts.minutes_since(self.known["dueAt"])
        lines = [
            line
            for role in ("processor", "watchdog", "ingest", "admin")
            for line in self._facts.lines_saying(role, *OF_SHARD, "claimed", minutes=minutes)
            if self._is_near(line, end_ms=end_ms) and self._shard in (None, line.fields.get("shard", self._shard))
        ]
        text = "It was not claimed in time"
        yield from _causes(lines, OF_SHARD)
        if not any(line.role == "processor" for line in lines):
            where = "the emulator writes them when the processor ends" if self._facts.is_local else "look again later"
            yield Cause("unknown", f"{text}. The processor's lines of that time are missing; {where}.")
        elif not any(line.fields["message"] in OF_SHARD for line in lines):
            yield Cause("unknown", f"{text}, and no line says why.")

    def _start(self, line: LogLine, asked_at_ms: int, text: str) -> Cause:
        """Return the cause that Lambda began the run of this line late, or that the run itself was slow at first."""
        run = self._search(line.role, "", logStreamNames=[line.stream], endTime=line.at_ms + MINUTE_MS)
        report = next((each for each in run if each.at_ms >= line.at_ms and _DURATION.search(each.text)), None)
        if report is None or (took := _DURATION.search(report.text)) is None:
            return Cause("started_late", f"{text}. Lambda's report of the run is missing.", (line,))
        init = _INIT.search(report.text)
        new = f" Its instance was new, and took {_seconds(float(init[1]))} to start." if init else ""
        began = _seconds(max(report.at_ms - float(took[1]) - asked_at_ms, 0))
        return Cause("cold_start" if init else "started_late", f"{text}; it began after {began}.{new}", (line, report))

    def _deaths(self) -> Iterator[Cause]:
        """Yield the attempts whose run died, because they logged no result."""
        attempt, role = self.known["attempt"] or 1, EMITTERS[self.known["lane"] or "valkey"]
        ended = self._said("emit failed", "window failed", "token ended", "lock lost", "store failed")
        if (died := attempt - 1 - len(ended)) <= 0:
            return
        lines = {
            (line.stream, line.at_ms): line
            for text in DIED
            for line in self._search(role, f'"{text}"')
            if self._is_near(line) and _is_death(line)
        }
        which = "Attempt 1" if attempt == 2 else f"{died} of the {attempt - 1} earlier attempts"
        how = "; Lambda says only this about that time" if lines else ", and Lambda's line about it is missing"
        yield Cause("run_died", f"{which} logged no result, so the run died{how}.", tuple(lines.values()))

    def _after_the_take(self, part_ms: float) -> Iterator[Cause]:
        """Yield that the run which emitted the batch was slow."""
        taken, emitted = self._said("taken late"), self._said("emitted")
        begin_ms = taken[-1].at_ms if taken else self.known["dueAt"]
        if (taken or self.known["attempt"] == 1) and emitted and self.known["lane"] == "valkey" and (took_ms := emitted[-1].at_ms - begin_ms) >= part_ms:
            text = f"The run needed {_seconds(took_ms)} from taking the batch to emitting it."
            yield Cause("slow_emit", text, (*taken[-1:], emitted[-1]))


def _causes(lines: list[LogLine], sentences: Mapping[str, tuple[str, str]]) -> Iterator[Cause]:
    """Yield the cause that each line proves. Lines with the same sentence prove one cause."""
    found: dict[tuple[str, str], list[LogLine]] = {}
    for line in lines:
        if line.fields["message"] in sentences:
            kind, sentence = sentences[line.fields["message"]]
            pause = next(
                (line.fields[name] for name in ("retry_in_ms", "hidden_ms", "away_ms") if name in line.fields), 0
            )
            reason = str(line.fields.get("reason") or line.fields.get("error")).rstrip(".")
            more = {"pause": _seconds(pause), "reason": reason, "role": _role(line)}
            found.setdefault((kind, sentence.format(**line.fields | more)), []).append(line)
    for (kind, text), proofs in found.items():
        yield Cause(kind, text, tuple(proofs))


def _is_death(line: LogLine) -> bool:
    if line.fields:
        return line.fields.get("type") == "platform.report" and line.fields["record"].get("status") != "success"
    return any(text in line.text for text in DIED)


def _summary(known: Json, late_ms: int | None) -> str:
    what = "The batch" if known["batchId"] else "What waits"
    attempt = f", in attempt {known['attempt']}" if (known["attempt"] or 1) > 1 else ""
    late = "its due time is unknown" if late_ms is None else f"{_seconds(late_ms)} after it was due"
    match known["state"]:
        case "emitted":
            return f"The batch was emitted{attempt}, {late}."
        case "waiting" if not late_ms:
            return f"What waits is due at {moment(known['dueAt'])}, so it is not late."
        case "waiting" | "in_flight":
            return f"{what} is still here{attempt}, {late}."
        case "dead":
            return f"The batch is a dead letter{attempt}."
    return "Nothing is known about a batch of this conversation or id."


def _text(why: Json | None) -> str | None:
    return str(why["text"]) if why else None


def _role(line: LogLine) -> str:
    return line.role.replace("_", " ").replace("dynamodb", "DynamoDB")


def _quoted(line: LogLine) -> str:
    status = f"platform.report {line.fields['record'].get('status')}" if "record" in line.fields else None
    return f"`{line.fields.get('message') or status or line.text.splitlines()[0]}`"


def _seconds(ms: float) -> str:
    return f"{ms / 1_000:.1f} s"
