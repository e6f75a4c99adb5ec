"""The responder with its table, a FIFO queue, and collaborators that a test can make fail."""

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

from lambdas.responder.assistants import Prompt, Reply
from lambdas.responder.channels import Channel
from lambdas.responder.conversations_table import ConversationsTable, Plan
from lambdas.responder.errors import CallBusy, CallUnconfirmed
from lambdas.responder.forgetting import OperatorCommands
from lambdas.responder.gate import BufferClient
from lambdas.responder.service import Collaborators, Responder
from message_buffer.aws import clients as aws
from message_buffer.aws.object_store import ObjectStore
from message_buffer.clock import Clock
from message_buffer.consumer import turns
from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.settings import ResponderOptions
from message_buffer.telemetry import Telemetry
from tests.support.fakes import FakeBus, RecordedTelemetry
from tests.support.fifo_queue import FakeSqs, FifoQueue

Tables = Callable[[], ConversationsTable]

NAME = "default/whatsapp/106540352242922/491701234567"
# After a crash the queue delivers again when this is over.
HIDDEN_MS = 30_000
# Lambda may take entries a while before it invokes the function.
HIDDEN_BY_LAMBDA_MS = 630_000
# Two parts, because the channel takes no more characters in one.
ANSWER = "It left today.\nIt comes tomorrow."
MAX_PART_CHARACTERS = 20
PARTS = ["It left today.", "It comes tomorrow."]

OPTIONS = ResponderOptions(
    assistant="echo",
    model="a-model",
    instructions="Be kind.",
    assistant_url="https://example.org/v1",
    assistant_seconds=30,
    max_reply_tokens=100,
    max_history_tokens=1_000,
    max_replies_an_hour=60,
    max_tenant_replies_an_hour=3_000,
    gate="deliver",
    gate_wait_seconds=40,
    channel="platform",
    allowed_channels=(),
    typing_indicator=False,
    tools=(),
    outbox_days=35,
    turn_days=365,
)


class Killed(BaseException):
    """Lambda kills the process: no further code runs."""


class Steps:
    """Records the calls to collaborators and table, and makes one of them fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.fail_at: tuple[int, str, bool] | None = None
        """The call's number, whether it fails `before` or `after` it is made, and whether that kills the process."""
        self.before: Callable[[str], None] = lambda _name: None
        """Called with the name of each call before it is made."""

    def around(self, thing: Any) -> Any:
        return _Stepped(thing, self)

    def take(self, name: str, call: Callable[[], Any]) -> Any:
        number = len(self.names)
        self.names.append(name)
        self.before(name)
        planned, when, kills = self.fail_at or (-1, "", False)
        if planned == number and when == "before":
            raise self._error(name, kills, done=False)
        result = call()
        if planned == number and when == "after":
            raise self._error(name, kills, done=True)
        return result

    def _error(self, name: str, kills: bool, *, done: bool) -> BaseException:
        if kills:
            return Killed()
        if name in ("send", "answer"):
            return CallUnconfirmed("made to fail") if done else CallBusy("made to fail")
        return SendFailed("made to fail")


class _Stepped:
    def __init__(self, thing: Any, steps: Steps) -> None:
        self._thing = thing
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not callable(found):
            return found

        def step(*args: Any, **named: Any) -> Any:
            said = name
            if args[:1] == ("gate",):
                said = "gate" if "generation" in named else "gate of holds"
            return self._steps.take(said, lambda: found(*args, **named))

        return step


class FakeChannel:
    max_part_characters = MAX_PART_CHARACTERS

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.before_send: Callable[[str], None] = lambda _text: None
        self.typing = 0

    def send(self, to: ConversationId, text: str) -> str:
        self.before_send(text)
        self.sent.append(text)
        return f"sent-{len(self.sent)}"

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        self.typing += 1


class FakeAssistant:
    def __init__(self) -> None:
        self.prompts: list[Prompt] = []
        self.while_asked: Callable[[], None] = lambda: None
        self.says = ANSWER

        self.uses: dict[str, str] = {}
        """The arguments of the tools that it uses."""

    def answer(self, prompt: Prompt) -> Reply:
        self.prompts.append(prompt)
        self.while_asked()
        return Reply(self.says, 11, 7, self.uses)

    @property
    def last_prompt(self) -> list[tuple[str, str]]:
        return [(turn.role, turn.text) for turn in self.prompts[-1].turns]


class FakeBuffer(BufferClient):
    """The buffer. A test raises the generation to say that the customer has written again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.generation = 1
        self.window_generation = 1
        self.others: Json | None = None
        """A hold by people or by a consumer, or the mark of a hand-off."""
        self.handed_off: list[Json] = []
        self.completed: list[tuple[str, int]] = []
        """The summaries, with the times."""

    def call(self, operation: str, conversation: ConversationId, **fields: Any) -> Json:
        match operation:
            case "gate":
                newest = self.generation if fields.get("lane") == "valkey" else self.window_generation
                newer = {"newer": newest > fields["generation"]} if "generation" in fields else {}
                held = self.others and (self.others["until"] is None or self.others["until"] > self._clock())
                return {"holds": [self.others] if held else [], **newer}
            case "conversation.handoff":
                self.handed_off.append({"conversation": str(conversation), **fields})
                self.others = hold("handoff", "responder", self._clock() + fields["holdMs"])
            case "conversation.complete":
                self.completed.append((fields["summary"], fields["at"]))
        return {}

    def take_over(self, for_ms: int, *, cause: str = "answer") -> None:
        self.others = hold("people", cause, self._clock() + for_ms)


def hold(holder: str, cause: str, until_ms: int | None) -> Json:
    """Return a hold as the gate says it."""
    return {"holder": holder, "cause": cause, "until": until_ms}


class FakeObjects(ObjectStore):
    def __init__(self) -> None:
        super().__init__("oversize")
        self.stored: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        return self.stored[key]


class World:
    def __init__(self, table: ConversationsTable, *, telemetry: Telemetry | None = None, **options: Any) -> None:
        self.now_ms = 1_700_000_000_000
        self.steps = Steps()
        self.table = table
        self.sender = FakeChannel()
        self.channel: Channel | None = self.steps.around(self.sender)
        self.assistant = FakeAssistant()
        self.buffer = FakeBuffer(lambda: self.now_ms)
        self.bus = FakeBus()
        self.objects = FakeObjects()
        self.telemetry = RecordedTelemetry()
        self.queue, self.dead = (FifoQueue(name, lambda: self.now_ms) for name in ("batches", "dead"))
        self.sqs = FakeSqs(self.queue, self.dead, clock=lambda: self.now_ms)
        self.time_left_ms = 60_000
        self._owners = 0
        self._emitted = count()
        self.commands = OperatorCommands(table, self.telemetry, clock=lambda: self.now_ms, new_owner=self._new_owner)
        self.responder = Responder(
            Collaborators(
                table=self.steps.around(table),
                bus=self.steps.around(self.bus),
                objects=self.objects,
                buffer=self.steps.around(self.buffer),
                dead_letter_urls={self.queue.url: self.dead.url},
                assistant=lambda _tenant: self.steps.around(self.assistant),
                channel=lambda _to: self.channel,
            ),
            OPTIONS._replace(**options),
            telemetry or self.telemetry,
            clock=lambda: self.now_ms,
            new_owner=self._new_owner,
        )

    def _new_owner(self) -> str:
        self._owners += 1
        return f"owner-{self._owners}"

    def emit(self, batch_id: str, generation: int, text: str = "Where is it?", lane: str = "valkey") -> None:
        """Put a batch of the buffer into the responder's queue. The same batch may come again."""
        if lane == "valkey":
            self.buffer.generation = max(self.buffer.generation, generation)
        else:
            self.buffer.window_generation = max(self.buffer.window_generation, generation)
        self.put(event(batch_id, generation, text, lane, last_message_at_ms=self.now_ms))

    def put(self, body: str, *, group: str = NAME) -> None:
        self.queue.put(body, group=group, deduplication_id=str(next(self._emitted)))

    def forget(self, *, at_ms: int | None = None) -> Any:
        """Erase the conversation. Return False if time ran out."""
        at_ms = self.now_ms if at_ms is None else at_ms
        return self.commands.forget(NAME, at_ms=at_ms, time_left=lambda: self.time_left_ms)["finished"]

    def deliver(self) -> None:
        """Advance the clock until entries can be delivered, and deliver them as Lambda does."""
        self.now_ms = max(self.now_ms, self.queue.next_at_ms())
        taken = self.queue.take(hidden_ms=HIDDEN_BY_LAMBDA_MS)
        answer = partial(self.responder.respond, time_left_ms=lambda: self.time_left_ms)
        event = self.queue.event(taken)
        client = aws.client
        with patch.object(aws, "client", lambda name, **named: self.sqs if name == "sqs" else client(name, **named)):
            try:
                response = turns.handle(event, answer, queue_urls=[self.queue.url])
            except Killed:
                return
        self.queue.end(taken, response)

    def run(self, *, at_most: int = 60) -> None:
        """Deliver until the queue is empty."""
        for _ in range(at_most):
            if not self.queue.messages:
                return
            self.deliver()
        raise AssertionError("the queue does not become empty")

    @property
    def dead_lettered(self) -> list[tuple[str, str]]:
        """The bodies of dead letters, with their reasons."""
        return [(each.body, each.sent["MessageAttributes"]["reason"]["StringValue"]) for each in self.dead.messages]

    # -- what came out ------------------------------------------------------------------------------

    def item(self, part: str = "!", conversation: str = NAME) -> Json | None:
        """Return the attributes of an item as text, or None if there is no such item."""
        key = {"id": {"S": conversation}, "part": {"S": part}}
        found = aws.client("dynamodb").get_item(TableName=self.table.name, Key=key).get("Item")
        return found and {name: next(iter(value.values())) for name, value in found.items()}

    def plan(self) -> Plan | None:
        """Return the stored plan, without taking it."""
        item = self.item("plan")
        return self.table.take_plan(NAME, item["owner"]) if item else None

    def put_settings(self, name: str, settings: Json) -> None:
        item = {"id": {"S": name}, "part": {"S": "!"}, "settings": {"S": json.dumps(settings)}}
        aws.client("dynamodb").put_item(TableName=self.table.name, Item=item)

    def events(self, kind: str) -> list[Json]:
        """Return the details of the events of this type that were published, repeats included."""
        return [json.loads(detail) for published, detail in self.bus.published if published == kind]

    def turns(self) -> list[tuple[str, str]]:
        record = self.table.read(NAME)
        return [(turn.role, turn.text) for turn in record.turns] if record else []

    def status(self) -> str:
        record = self.item()
        assert record
        return str(record.get("conversationStatus"))


def event(
    batch_id: str,
    generation: int,
    text: str,
    lane: str = "valkey",
    *,
    last_message_at_ms: int = 0,
) -> str:
    message = {"id": f"m-{batch_id}", "text": text, "type": "text"}
    detail = {
        "version": 1,
        "batchId": batch_id,
        "conversationId": NAME,
        "generation": generation,
        "lane": lane,
        "messages": [message],
        "metadata": {"lastMessageAt": last_message_at_ms},
    }
    return json.dumps({"source": "message-buffer", "detail-type": "messages.batch.ready", "detail": detail})


def conversation_event(detail_type: str, at_ms: int) -> Json:
    """Return an event by which the bus says that the conversation is to be forgotten, or that its task is done."""
    detail = {"version": 1, "conversationId": NAME, "at": at_ms}
    return {"source": "message-buffer", "detail-type": detail_type, "detail": detail}


def tables(client: Any) -> Tables:
    """Return a function that makes an empty table of a DynamoDB in this process."""
    made = count()

    def new_table() -> ConversationsTable:
        name = f"conversations-{next(made)}"
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}, {"AttributeName": "part", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": part, "AttributeType": "S"} for part in ("id", "part")],
            BillingMode="PAY_PER_REQUEST",
        )
        return ConversationsTable(name, outbox_days=OPTIONS.outbox_days, turn_days=OPTIONS.turn_days)

    return new_table
