"""One burst of a customer's messages, called fragments, and the check of the batches that the stage emits for it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from lambdas.canary.listening import ArrivedEvent
from lambdas.canary.webhook import GenericWebhook, WebhookResponse
from message_buffer.messages.conversation_id import TRIAL_TENANT, ConversationId

# If one function crashes, its batch is late by at most a claim's time-out, a watchdog pass and a processor's start.
# This is P7 in docs/design.md.
MAX_LATE_SECONDS = 75.0
TENANT = TRIAL_TENANT
BATCH_READY = "messages.batch.ready"
# Fetches the messages of a batch from the bucket, if the batch is too large for an event.
Fetch = Callable[[Any], list[Any]]


class WebhookRefused(Exception):
    """Raised if the webhook did not accept a message. The exception's text contains the response."""


@dataclass(frozen=True)
class Fragment:
    """A sent message, with values from the webhook's response."""

    id: str
    due_at_ms: int
    count: int
    """How many messages, including this one, waited in the conversation when the webhook answered."""


@dataclass
class Burst:
    """The messages that one customer sends, one after the other."""

    webhook: GenericWebhook
    account: str
    user: str
    fragments: list[Fragment] = field(default_factory=list)

    @property
    def conversation(self) -> str:
        return str(ConversationId(TENANT, "generic", self.account, self.user))

    @property
    def due_at_ms(self) -> int:
        return self.fragments[-1].due_at_ms

    def message(self, message_id: str, text: str) -> dict[str, Any]:
        named = {"tenant": TENANT, "account": self.account, "conversation": self.user}
        return {**named, "id": message_id, "text": text}

    def send(self, message_id: str, text: str) -> None:
        """Send a fragment. Raise WebhookRefused or WebhookUnreachable if the webhook does not accept it."""
        waits = accepted(self.webhook.post(self.message(message_id, text)))["conversations"][self.conversation]
        self.fragments.append(Fragment(message_id, waits["dueAt"], waits["count"]))

    @property
    def expected(self) -> list[list[str]]:
        """Return the message ids of each batch that the stage must emit.

        There is usually one batch. If the buffer became due before the webhook answered, the next fragment began
        another batch.
        """
        batches: list[list[str]] = []
        for fragment in self.fragments:
            if fragment.count == 1 or not batches:
                batches.append([])
            batches[-1].append(fragment.id)
        return batches

    def of(self, arrivals: Iterable[ArrivedEvent]) -> list[ArrivedEvent]:
        """Return the first event of each batch that contains a fragment of this burst."""
        sent = {fragment.id for fragment in self.fragments}
        firsts: dict[str, ArrivedEvent] = {}
        for arrival in arrivals:
            if arrival.event["detail-type"] == BATCH_READY and arrival.batch["conversationId"] == self.conversation:
                # EventBridge may deliver an event twice. Recognize the second one by its batchId, as consumers do.
                firsts.setdefault(arrival.batch["batchId"], arrival)
        return [each for each in firsts.values() if each.batch.get("messagesRef") or sent & set(ids_of(each.batch))]

    def is_out(self, arrivals: Iterable[ArrivedEvent]) -> bool:
        return len(self.of(arrivals)) >= len(self.expected)

    def problem(self, arrivals: Iterable[ArrivedEvent], *, fetch: Fetch | None = None) -> str | None:
        """Return a description of what is wrong with the batches that arrived, or None if they are right."""
        batches = [ids_of(each.batch, fetch) for each in self.of(arrivals)]
        if not batches:
            return "no event arrived"
        if batches != self.expected:
            return f"arrived as {batches}, expected {self.expected}"
        return None

    def late_ms(self, arrivals: Iterable[ArrivedEvent]) -> int:
        """Return the time from the last fragment's due time to the arrival of the last batch's event in the queue."""
        return self.of(arrivals)[-1].at_ms - self.due_at_ms


def accepted(response: WebhookResponse) -> dict[str, Any]:
    """Return the body of a response with status 200. Raise WebhookRefused for any other status."""
    if response.status != HTTPStatus.OK:
        raise WebhookRefused(f"the webhook answers {response.status}: {response.body[:200]}")
    return response.json


def ids_of(batch: dict[str, Any], fetch: Fetch | None = None) -> list[str]:
    """Return the ids of a batch's messages. If the event only refers to the messages, fetch them from the bucket."""
    reference = batch.get("messagesRef")
    messages: Sequence[Any] = fetch(reference) if reference and fetch else batch["messages"]
    return [message["id"] for message in messages]
