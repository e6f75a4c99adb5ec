"""Plays a customer who sends five fragments over HTTP, and shows the one event: `python -m tools.local demo`."""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

from bufferctl.events import ArrivedEvent
from bufferctl.load import MAX_SECOND_EVENT_SECONDS
from tools.local.errors import LocalError
from tools.local.events import Inbox, collect
from tools.local.outputs import Outputs
from tools.local.progress import Progress
from tools.local.stage import Stage
from tools.local.webhooks import Webhooks, whatsapp, whatsapp_text

DEMO_TICK_SECONDS = 0.1
DEMO_BAR_CHARACTERS = 30
# Longer than a message of the demo can wait (`maxWaitMs`), plus the starts of the functions.
MAX_EVENT_SECONDS = 60.0
# The customer's texts, each with the seconds that the customer pauses before it.
FRAGMENTS = (
    (0.0, "Hey"),
    (2.2, "I have a question"),
    (0.8, "about my order"),
    (4.0, "#12345"),
    (1.3, "when will it arrive?"),
)
REPLIES = {"source": ["message-buffer"], "detail-type": ["messages.reply.sent"]}


@dataclass(frozen=True)
class SentMessage:
    message_id: str
    due_at_ms: int


def run(stage: Stage, *, overrides: Mapping[str, Any], reply: bool = False, stream: TextIO = sys.stdout) -> bool:
    """Play the demo. Return whether one event had the five messages in order and, if `reply`, one reply came."""
    with (
        _started(stage, overrides) as outputs,
        collect(outputs) as inbox,
        collect(outputs, pattern=REPLIES) as replies,
    ):
        webhooks, view = Webhooks(outputs), View(stream)
        sent = _type_as_a_person(webhooks, view)
        view.wait_for(sent[-1].due_at_ms, until=lambda: bool(_about(inbox, sent)), at_most_seconds=MAX_EVENT_SECONDS)
        arrivals = _about(inbox, sent)
        if arrivals:
            view.show_event(arrivals[0], due_at_ms=sent[-1].due_at_ms)
            view.line(f"Listening {MAX_SECOND_EVENT_SECONDS:.0f} s longer: a second event would be an error …")
            inbox.wait_until(lambda all_: len(_of(all_, sent)) > 1, timeout_seconds=MAX_SECOND_EVENT_SECONDS)
        problem = _problem(_about(inbox, sent), sent)
        view.line(problem or "One event, five messages, in order.")
        if reply and not problem:
            problem = _show_reply(arrivals[0], replies, view)
        return problem is None


def _show_reply(asked: ArrivedEvent, replies: Inbox, view: "View") -> str | None:
    """Show the conversation with its reply. Return what is wrong with the reply, or None."""
    conversation = asked.batch["conversationId"]

    def of_customer(all_: Sequence[ArrivedEvent]) -> list[ArrivedEvent]:
        return [each for each in all_ if each.batch["conversationId"] == conversation]

    replies.wait_until(lambda all_: bool(of_customer(all_)), timeout_seconds=MAX_EVENT_SECONDS)
    came = of_customer(replies.arrivals)
    problem = None if len(came) == 1 else f"{len(came)} replies came instead of one. `make logs` may say why."
    if problem:
        view.line(problem)
        return problem
    view.line("\nThe conversation, as the customer sees it:\n")
    for _, text in FRAGMENTS:
        view.line(f"  {text:>40}")
    for part in came[0].batch["parts"]:
        view.line(f"  {part['text']}")
    view.line(f"\n  answered  {came[0].at_ms - asked.at_ms} ms after the batch was on the bus")
    return None


@contextmanager
def _started(stage: Stage, overrides: Mapping[str, Any]) -> Iterator[Outputs]:
    """Yield the outputs of the running stage. If none is up, start one with these overrides, and stop it at the end."""
    with ExitStack() as afterwards:
        try:
            outputs = stage.outputs()
        except LocalError:
            afterwards.callback(_down, stage)
            outputs = stage.up(Progress(), overrides=overrides)
        yield outputs


def _down(stage: Stage) -> None:
    try:
        stage.down(Progress())
    except KeyboardInterrupt:
        stage.down(Progress())
        raise


def _type_as_a_person(webhooks: Webhooks, view: "View") -> list[SentMessage]:
    customer = f"4915{uuid.uuid4().int % 10**9:09}"
    sent: list[SentMessage] = []
    view.line(f"A customer ({customer}) writes on WhatsApp:\n")
    view.line(f"  {'sent':>7}  {'message':<24}the event is due")
    began = time.monotonic()
    for pause_seconds, text in FRAGMENTS:
        if sent:
            view.wait_for(sent[-1].due_at_ms, until=lambda: False, at_most_seconds=pause_seconds)
        message_id = f"wamid.{uuid.uuid4().hex}"
        at_seconds = time.monotonic() - began
        response = webhooks.post("whatsapp", whatsapp(whatsapp_text(message_id, text, sender=customer)))
        if response.status != 200:
            raise LocalError(f"The webhook answered {response.status}: {response.body.decode(errors='replace')}")
        (conversation,) = response.json["conversations"].values()
        due_at_ms = conversation["dueAt"]
        in_seconds = due_at_ms / 1_000 - time.time()
        later_ms = due_at_ms - sent[-1].due_at_ms if sent else 0
        later = f", {later_ms / 1_000:.1f} s later than before" if later_ms else ""
        view.line(f"  {at_seconds:5.1f} s  {text:<24}in {in_seconds:.1f} s{later}")
        sent.append(SentMessage(message_id, due_at_ms))
    return sent


def _about(inbox: Inbox, sent: Sequence[SentMessage]) -> list[ArrivedEvent]:
    return _of(inbox.arrivals, sent)


def _of(arrivals: Sequence[ArrivedEvent], sent: Sequence[SentMessage]) -> list[ArrivedEvent]:
    """Return the events of this customer only, because other people may use the stage at the same time."""
    ids = {each.message_id for each in sent}
    return [arrival for arrival in arrivals if ids & set(_ids(arrival))]


def _ids(arrival: ArrivedEvent) -> list[str]:
    return [message["id"] for message in arrival.batch["messages"]]


def _problem(arrivals: Sequence[ArrivedEvent], sent: Sequence[SentMessage]) -> str | None:
    expected = [each.message_id for each in sent]
    if not arrivals:
        return f"No event came within {MAX_EVENT_SECONDS:.0f} s. `make logs` may say why."
    if len(arrivals) > 1:
        return f"{len(arrivals)} events came instead of one."
    if _ids(arrivals[0]) != expected:
        return f"The event holds {_ids(arrivals[0])} instead of {expected}."
    return None


class View:
    """Prints lines. On a terminal it also shows a bar below them, which shrinks until the batch is due."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()

    def line(self, text: str) -> None:
        self._stream.write(f"{self._erased()}{text}\n")
        self._stream.flush()

    def wait_for(self, due_at_ms: int, *, until: Callable[[], bool], at_most_seconds: float) -> None:
        """Show the time left until the batch is due. Return when `until` returns True, or after `at_most_seconds`."""
        deadline = time.monotonic() + at_most_seconds
        whole_ms = max(1.0, due_at_ms - time.time() * 1_000)
        while not until() and (left := deadline - time.monotonic()) > 0:
            self._show_bar(max(0.0, due_at_ms - time.time() * 1_000), whole_ms)
            time.sleep(min(DEMO_TICK_SECONDS, left))
        self._stream.write(self._erased())

    def show_event(self, arrival: ArrivedEvent, *, due_at_ms: int) -> None:
        batch: dict[str, Any] = arrival.batch
        self.line(f"\n{arrival.event['detail-type']}:\n{json.dumps(batch, indent=2, ensure_ascii=False)}\n")
        self.line(f"  waited    {batch['metadata']['waitMs'] / 1_000:.2f} s from the first message to the batch")
        self.line(f"  lateness  {arrival.at_ms - due_at_ms} ms from the due time to the event on the bus\n")

    def _show_bar(self, left_ms: float, whole_ms: float) -> None:
        if self._live:
            full = round(DEMO_BAR_CHARACTERS * min(1.0, left_ms / whole_ms))
            bar = "█" * full + "░" * (DEMO_BAR_CHARACTERS - full)
            self._stream.write(f"{self._erased()}  timer    {bar} {left_ms / 1_000:4.1f} s")
            self._stream.flush()

    def _erased(self) -> str:
        return "\r\x1b[2K" if self._live else ""
