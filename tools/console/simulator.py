"""Sends what simulated customers write, and publishes to every page what was sent and how the stage answered."""

import threading
from collections import Counter, OrderedDict
from http import HTTPStatus

from bufferctl.errors import Failed
from message_buffer.json_object import Json
from tools.console.customers import CannotDo, Customer, Customers
from tools.console.hub import Hub
from tools.console.outage import NO_REASON, is_outage
from tools.console.pace import PacedStage
from tools.console.place import ShownStage
from tools.console.polls import Polls, now_ms
from tools.console.time_lines import TimeLines
from tools.console.why import why_due

# The fields of `conversation.show` that the page shows beside the chat.
BUFFER_FIELDS = ("state", "count", "dueAt", "firstAt", "lastAt", "heldUntil", "batch", "generation")


class Simulator:
    def __init__(self, place: ShownStage, hub: Hub, *, stage: PacedStage, polls: Polls, time_lines: TimeLines) -> None:
        self._place = place
        self._hub = hub
        self._stage = stage
        self._polls = polls
        self._time_lines = time_lines
        self._customers = Customers()
        self._lock = threading.Lock()
        self._refused: Counter[int] = Counter()
        self._unpublished: OrderedDict[str, None] = OrderedDict()
        self._is_publishing = False

    @property
    def kinds(self) -> Json:
        return {platform: list(kinds) for platform, kinds in self._place.sender.kinds.items()}

    @property
    def refused(self) -> dict[int, int]:
        """Return how many of the webhooks were refused, by HTTP status."""
        with self._lock:
            return dict(self._refused)

    def act(self, customer: Customer, kind: str, *, text: str = "", message_id: str | None = None) -> Json:
        """Post the webhook. Raise CannotDo if the platform has no such webhook, Failed if the stage does not answer."""
        if kind not in self._place.sender.kinds.get(customer.platform, ()):
            raise CannotDo(f"This stage's simulator cannot send '{kind}' by {customer.platform}.")
        with self._lock:
            posted = self._customers.webhook(customer, kind, text=text, message_id=message_id)
        began_ms = now_ms()
        with self._place.errors():
            response = self._place.sender.send(customer.platform, posted)
        if response.status != HTTPStatus.OK:
            with self._lock:
                self._refused[response.status] += 1
        conversation, known = _conversation(customer, response.body)
        sent = {
            "customer": customer._asdict(),
            "conversation": conversation,
            "kind": kind,
            "text": text,
            "messageId": posted.message_id,
            "at": began_ms,
            "tookMs": now_ms() - began_ms,
            "status": response.status,
            "answer": response.body,
            **known,
        }
        what = "flush word" if response.body.get("flushed") else kind
        self._time_lines.add(conversation, f"sent {what}", began_ms, status=response.status)
        with self._lock:
            # From now on, the response to an earlier request is out of date, and must not be published.
            self._unpublished[conversation] = None
        self._hub.publish("sent", sent)
        self._polls.hurry()
        self._publish_buffers_soon()
        return sent

    def resume(self, conversation: str) -> None:
        """End the conversation's hold, as an operator does. Raise Failed if the stage refuses that."""
        with self._place.errors():
            self._place.stage.ask("conversation.resume", conversation=conversation)
        self._time_lines.add(conversation, "operator: resume", now_ms())
        with self._lock:
            self._unpublished[conversation] = None
        self._polls.hurry()
        self._publish_buffers_soon()

    def _publish_buffers_soon(self) -> None:
        """Publish the buffers from another thread, because `PacedStage` may wait, but the customer must not."""
        with self._lock:
            if self._is_publishing:
                return
            self._is_publishing = True
        threading.Thread(target=self._publish_buffers, daemon=True).start()

    def _publish_buffers(self) -> None:
        while True:
            with self._lock:
                if not self._unpublished:
                    self._is_publishing = False
                    return
                conversation, _ = self._unpublished.popitem(last=False)
            try:
                self._publish_buffer(conversation)
            except Exception as error:  # noqa: BLE001 - the page shows it, and the other buffers follow
                self._hub.publish("notice", {"text": f"The console failed: {type(error).__name__}"})

    def _publish_buffer(self, conversation: str) -> None:
        try:
            shown = self._stage.ask("conversation.show", conversation=conversation, messages=False)
        except Failed as error:
            if is_outage(error):
                # The page already shows the outage. Publish only a text in place of the reason for the due time.
                self._hub.publish("buffer", {"conversation": conversation, "why": {"text": NO_REASON}})
            else:
                self._hub.publish("notice", {"text": str(error)})
            return
        part = waiting_part(shown)
        buffer = {name: part.get(name) for name in BUFFER_FIELDS}
        lane = "valkey" if "shard" in part else "dynamodb"
        with self._lock:
            if conversation not in self._unpublished:
                of_lane = {"conversation": conversation, "lane": lane}
                self._hub.publish("buffer", {**of_lane, **buffer, "why": why_due(part)})


def waiting_part(shown: Json) -> Json:
    """Return the state in the lane where messages wait, because after an outage that may be only the DynamoDB lane."""
    waits_in_valkey = shown.get("count") or shown.get("batch")
    return shown if waits_in_valkey else shown.get("dynamodb") or shown


def _conversation(customer: Customer, response: Json) -> tuple[str, Json]:
    """Return the conversation's id and, if the response has them, its due time and number of waiting messages."""
    conversations = response.get("conversations")
    if isinstance(conversations, dict) and len(conversations) == 1:
        ((name, known),) = conversations.items()
        return name, dict(known)
    return customer.conversation, {}
