"""Passes the stage's events on to the page. Removes people's words unless the console may show them."""

import json
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

from bufferctl.lateness import grade
from bufferctl.reasons import due_at_ms, why_left
from bufferctl.stage import ROOT
from message_buffer.json_object import Json
from tools.console.history import History
from tools.console.hub import Hub
from tools.console.pace import PAUSE_AFTER_A_PROBLEM_SECONDS
from tools.console.polls import Polls
from tools.console.words import shown

# The longest pause before the console replaces a listener that has failed, for example because rights are missing.
MAX_PAUSE_BETWEEN_LISTENERS_SECONDS = 60.0
SHUT_DOWN_SECONDS = 3
BATCH_READY = "messages.batch.ready"


class Bus:
    def __init__(self, command: Sequence[str], *, hub: Hub, polls: Polls, history: History, words: bool) -> None:
        self._command = command
        self._hub = hub
        self._polls = polls
        self._history = history
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
            # The listener is a separate process. If it needs longer, it finishes after the console has ended.
            with suppress(subprocess.TimeoutExpired):
                self._listener.wait(SHUT_DOWN_SECONDS)

    def take(self, kind: str, detail: Json, *, at_ms: int, event_id: str | None = None) -> None:
        """Publish the event. Keep it without words and messages, because they may be large."""
        event: Json = {"id": event_id, "kind": kind, "at": at_ms, "conversation": detail.get("conversationId")}
        if kind == BATCH_READY:
            due, emitted = due_at_ms(detail), detail.get("bufferedAt")
            late_ms = None if due is None or emitted is None else max(emitted - due, 0)
            event |= {"why": why_left(detail), "lateMs": late_ms, "lateness": grade(late_ms)}
        self._history.add_event(event | {"detail": shown(detail, words=False) | {"messages": None}})
        self._hub.publish("event", event | {"detail": shown(detail, words=self._words)})
        self._polls.hurry()

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
                    self._hub.publish("notice", {"text": text})

    def _understand(self, message: Json) -> None:
        if "event" in message:
            event = message["event"]
            self._history.add_whole(event | {"detail": shown(event["detail"], words=self._words)})
            self.take(event["detail-type"], event["detail"], at_ms=message["at"], event_id=event.get("id"))
        else:
            self._has_listened |= message["problem"] is None
            self._report(message["problem"])

    def _report(self, problem: str | None) -> None:
        if problem != self.problem:
            self.problem = problem
            self._hub.publish("bus", {"problem": problem})
