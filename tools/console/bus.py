"""Passes the stage's events on to the page. Removes people's words unless the console may show them."""

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bufferctl.stage import ROOT
from message_buffer.json_object import Json
from tools.console.batches import Batches, figures_of
from tools.console.hub import Hub
from tools.console.pace import PAUSE_AFTER_A_PROBLEM_SECONDS
from tools.console.polls import Polls
from tools.console.time_lines import TimeLines
from tools.console.why import why_left
from tools.console.words import shown

# The longest pause before the console replaces a listener that has failed, for example because rights are missing.
MAX_PAUSE_BETWEEN_LISTENERS_SECONDS = 60.0
SHUT_DOWN_SECONDS = 3
BATCH_READY = "messages.batch.ready"


@dataclass(frozen=True)
class Takers:
    """The parts of the console that receive the events."""

    hub: Hub
    polls: Polls
    time_lines: TimeLines
    batches: Batches
    scenarios: Callable[[str, Json], None]


class BusListener:
    def __init__(self, command: Sequence[str], takers: Takers, *, words: bool) -> None:
        self._command = command
        self._takers = takers
        self._words = words
        self._ended = threading.Event()
        self._listener: subprocess.Popen[str] | None = None
        self._has_listened = False
        self.problem: str | None = "The console does not see events yet."

    def run(self) -> None:
        """Run a listener until `end` is called. If a listener ends, for example with its stage, start another."""
        pause = PAUSE_AFTER_A_PROBLEM_SECONDS
        while not self._ended.is_set():
            self._has_listened = False
            self._listen()
            if self._has_listened:
                pause = PAUSE_AFTER_A_PROBLEM_SECONDS
            self._report(self.problem or "The console does not see events.")
            self._ended.wait(pause)
            # Pause longer after each failure, because a listener without the right to delete leaves its queue behind.
            pause = min(2 * pause, MAX_PAUSE_BETWEEN_LISTENERS_SECONDS)

    def end(self) -> None:
        """End the listener, which then removes its rule and its queue."""
        self._ended.set()
        if self._listener and self._listener.stdin:
            self._listener.stdin.close()
            try:
                self._listener.wait(SHUT_DOWN_SECONDS)
            except subprocess.TimeoutExpired:
                # The listener is a separate process, and finishes the removal after the console has ended.
                return

    def take(self, kind: str, detail: Json, *, at_ms: int) -> None:
        seen: Json = {"type": kind, "at": at_ms, "detail": shown(detail, words=self._words)}
        if kind == BATCH_READY and (figures := figures_of(detail, arrived_at_ms=at_ms)):
            self._takers.batches.add(figures)
            seen |= {"figures": figures, "why": why_left(detail)}
        if isinstance(conversation := detail.get("conversationId"), str):
            facts = {
                "batchId": detail.get("batchId"),
                "count": detail.get("messageCount"),
                "reason": detail.get("flushReason") or detail.get("reason") or detail.get("change"),
                "attempt": detail.get("attempt"),
                "why": seen.get("why"),
                "lateMs": seen.get("figures", {}).get("lateMs"),
            }
            self._takers.time_lines.add(conversation, kind, at_ms, **facts)
        self._takers.hub.publish("event", seen)
        self._takers.scenarios(kind, detail)
        self._takers.polls.hurry()

    def _listen(self) -> None:
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
        ) as self._listener:
            assert self._listener.stdin
            assert self._listener.stdout
            if self._ended.is_set():
                # `end` was called before this process existed, so end the process here.
                self._listener.stdin.close()
            for line in self._listener.stdout:
                try:
                    with suppress(json.JSONDecodeError):  # a listener that is killed may print half a line
                        self._understand(json.loads(line))
                except Exception as error:  # noqa: BLE001 - one event of another form must not hide all later ones
                    text = f"The console cannot read an event: {type(error).__name__}"
                    self._takers.hub.publish("notice", {"text": text})

    def _understand(self, message: Json) -> None:
        if "event" in message:
            self.take(message["event"]["detail-type"], message["event"]["detail"], at_ms=message["at"])
        else:
            self._has_listened |= "listening" in message
            self._report(message.get("problem"))

    def _report(self, problem: str | None) -> None:
        self.problem = problem
        self._takers.hub.publish("bus", {"problem": problem})
