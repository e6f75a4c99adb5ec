"""The edges of the responder: its queue, events, history, operators and secrets, and what it must never log."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from types import SimpleNamespace
from typing import Any

import pytest

from lambdas.responder import handler as module
from lambdas.responder.batch import read_batch
from lambdas.responder.credentials import CredentialStore
from lambdas.responder.dead_letters import MAX_REASON_CHARACTERS
from lambdas.responder.errors import CallBusy, CallRefused, MalformedEvent
from lambdas.responder.forgetting import MAX_OLDER_TURNS_IN_AN_ANSWER
from lambdas.responder.gate import DELIVER, DISCARD_AND_MERGE, BufferClient, check_gate
from lambdas.responder.history import (
    MAX_IDS_BYTES,
    MAX_RECORDED_TURNS_BYTES,
    MAX_TURN_BYTES,
    USER,
    Turn,
    alternate,
    fit_into_budget,
    newest_ids,
    shorten,
    trim,
)
from message_buffer.aws import clients
from message_buffer.aws.functions import Functions
from message_buffer.errors import SendFailed
from message_buffer.limits import SECRET_LIFE_MS
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.settings import LogSettings, ResponderSettings
from message_buffer.telemetry import Telemetry
from tests.support.fakes import FakeSecrets, RecordedTelemetry
from tests.support.fifo_queue import FakeSqs, FifoQueue
from tests.support.responder import (
    ANSWER,
    HIDDEN_MS,
    NAME,
    OPTIONS,
    FakeObjects,
    Tables,
    World,
    event,
)

BATCH = read_batch(event("b-1", 2, "Hey", lane="dynamodb"), FakeObjects())
CONTEXT = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)


# -- the queue -------------------------------------------------------------------------------------


def test_the_settings_of_the_queues_lead_each_entry_to_its_dead_letter_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler's own wiring, for a body that needs nothing but its queue."""
    queues = {name: [FifoQueue(f"{name}{end}", lambda: 0) for end in ("", "-dead")] for name in ("sms", "default")}
    sqs = FakeSqs(*(each for pair in queues.values() for each in pair), clock=lambda: 0)
    settings = ResponderSettings(
        log=LogSettings(), conversations_table="table", secret_id="secret", secret_prefix="message-buffer-prod/",
        gate_function="gate", event_bus="bus",
        queues={name: {"url": live.url, "dead_letter_url": dead.url} for name, (live, dead) in queues.items()},
        oversize_bucket="oversize", options=OPTIONS,
    )  # fmt: skip
    monkeypatch.setattr(module, "read_settings", lambda _kind: settings)
    monkeypatch.setattr(module, "Telemetry", lambda _log: RecordedTelemetry())
    monkeypatch.setattr(clients, "client", lambda _service, **_: sqs)
    module._components.cache_clear()
    live, dead = queues["sms"]
    live.put("no batch" + "!" * 500, group="g", deduplication_id="1")
    answer = module.handler(live.event(live.take(hidden_ms=1_000)), CONTEXT)
    module._components.cache_clear()
    assert (answer, live.messages) == ({"batchItemFailures": []}, [])
    (letter,) = dead.messages
    assert (letter.body, letter.group) == ("no batch" + "!" * 500, "g")
    assert len(letter.sent["MessageAttributes"]["reason"]["StringValue"]) <= MAX_REASON_CHARACTERS


def test_a_batch_is_hidden_shortly_so_that_a_crash_brings_it_back_soon(world: World) -> None:
    world.emit("b-1", 1)
    world.steps.fail_at = (3, "before", True)
    world.deliver()
    assert world.queue.next_at_ms() - world.now_ms == HIDDEN_MS


# -- the event -------------------------------------------------------------------------------------


def test_an_oversize_batch_is_fetched_from_where_the_event_says() -> None:
    objects = FakeObjects()
    messages = [{"id": "m-1", "text": "", "type": "image"}, {"id": "m-2", "text": "Hey", "type": "text"}]
    objects.stored["batches/b-1.json"] = json.dumps({"messages": messages}).encode()
    body = json.loads(event("b-1", 1, ""))
    reference = {"bucket": objects.bucket, "key": "batches/b-1.json", "bytes": 1}
    body["detail"] |= {"messages": [], "messagesRef": reference}
    batch = read_batch(json.dumps(body), objects)
    assert (batch.text, batch.message_ids) == ("[image]\nHey", ["m-1", "m-2"])


@pytest.mark.parametrize(
    "reference", [{"bucket": "another", "key": "batches/b-1.json"}, {"bucket": "oversize", "key": "dead-letters/x"}]
)
def test_an_event_cannot_lead_to_other_objects(reference: dict[str, str]) -> None:
    body = json.loads(event("b-1", 1, ""))
    body["detail"] |= {"messages": [], "messagesRef": reference}
    with pytest.raises(MalformedEvent):
        read_batch(json.dumps(body), FakeObjects())


def test_a_batch_too_large_for_any_assistant_is_refused_before_it_is_fetched() -> None:
    body = json.loads(event("b-1", 1, ""))
    reference = {"bucket": FakeObjects().bucket, "key": "batches/b-1.json", "bytes": 64_000_000}
    body["detail"] |= {"messages": [], "messagesRef": reference}
    with pytest.raises(MalformedEvent, match="more than"):
        read_batch(json.dumps(body), FakeObjects())


def test_at_most_two_large_batches_are_read_at_the_same_time_and_no_text_beyond_any_question_is_kept() -> None:
    """Ten of them would not fit into the function's memory."""
    objects, lock, pair, at_work, most = FakeObjects(), Lock(), Barrier(2), 0, 0
    message = {"id": "m-1", "type": "text", "text": "x" * 1_000_000}

    def get(_key: str) -> bytes:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        pair.wait(10)
        with lock:
            at_work -= 1
        return json.dumps({"messages": [message]}).encode()

    objects.get = get  # type: ignore[assignment,method-assign]
    body = json.loads(event("b-1", 1, ""))
    reference = {"bucket": objects.bucket, "key": "batches/b-1.json", "bytes": 1}
    body["detail"] |= {"messages": [], "messagesRef": reference}
    with ThreadPoolExecutor(10) as threads:
        batches = list(threads.map(lambda _: read_batch(json.dumps(body), objects), range(10)))
    assert most == 2
    assert all(32_000 * 3 < len(batch.text) < 300_000 for batch in batches)


@pytest.mark.parametrize("text", ["", "  \n", "\x00\t"])
def test_a_message_without_readable_text_is_named_by_its_type(text: str) -> None:
    assert read_batch(event("b-1", 1, text), FakeObjects()).text == "[text]"


@pytest.mark.parametrize("body", ["{", "[" * 200_000, "null", '{"detail": []}'])
def test_a_body_that_is_no_event_is_malformed(body: str) -> None:
    with pytest.raises(MalformedEvent):
        read_batch(body, FakeObjects())


@pytest.mark.parametrize(
    "change",
    [{"version": 2},
     {"batchId": 1}, {"conversationId": "x"}, {"generation": "1"}, {"generation": True},
     {"messages": [{"text": "Hey"}]}, {"messages": [{"id": "1", "text": 7}]}, {"messages": []},
     {"lane": "third"}, {"lane": []}],
)  # fmt: skip
def test_an_event_that_breaks_the_schema_is_malformed(change: dict[str, Any]) -> None:
    body = json.loads(event("b-1", 1, "a secret word"))
    body["detail"] |= change
    with pytest.raises(MalformedEvent) as raised:
        read_batch(json.dumps(body), FakeObjects())
    assert "secret word" not in str(raised.value)


# -- history ---------------------------------------------------------------------------------------


def turns(*texts: str) -> list[Turn]:
    return [Turn("user" if number % 2 == 0 else "assistant", text, number, "b") for number, text in enumerate(texts)]


def test_the_newest_turns_fit_the_budget_and_the_question_always_does() -> None:
    before = turns("x" * 300, "y" * 30, "z" * 30)
    asked = turns("q" * 300)
    chosen = fit_into_budget(before, asked, max_tokens=123)
    assert [turn.text[0] for turn in chosen] == ["y", "z", "q"]
    assert fit_into_budget(before, asked, max_tokens=1) == asked


def test_models_get_turns_that_alternate_and_begin_with_the_user() -> None:
    spoken = [Turn("assistant", "a", 1, "b"), Turn("user", "b", 2, "b"), Turn("user", "c", 3, "b")]
    assert [(turn.role, turn.text) for turn in alternate(spoken)] == [("user", "b\nc")]


def test_a_record_stays_far_below_what_an_item_may_hold() -> None:
    for text in ("ß" * 200_000, '"' * 200_000, "\x01" * 200_000):
        huge = [turn._replace(text=shorten(text)) for turn in turns(*["t"] * 60)]
        assert all(len(turn.text.encode()) <= MAX_TURN_BYTES for turn in huge)
        recent, older = trim(huge)
        assert older + recent == huge
        assert sum(len(json.dumps(turn, ensure_ascii=False).encode()) for turn in recent) < 350_000


def test_a_turn_keeps_the_newest_of_too_many_ids_and_leaves_out_what_is_empty() -> None:
    ids = [f"wamid.{number:060}" for number in range(1_000)]
    kept = newest_ids(ids)
    assert kept == ids[-len(kept) :]
    assert MAX_IDS_BYTES - len(ids[0]) < sum(map(len, kept)) <= MAX_IDS_BYTES
    turn = Turn("user", "Hey", 0, "b")
    assert turn.fields().keys() == {"role", "text", "at_ms", "batch_id"}
    assert Turn(**turn.fields()) == turn


# -- operators -------------------------------------------------------------------------------------

Answer = Callable[..., dict[str, Any]]


@pytest.fixture
def world(new_table: Tables) -> World:
    return World(new_table())


@pytest.fixture
def ask(world: World) -> Answer:
    return lambda operation, **fields: world.commands.run(
        {"operation": operation, "conversation": NAME, "by": "arn:me", **fields},
        request_id="r-1",
        time_left_ms=lambda: 60_000,
    )


def test_a_command_is_told_with_the_request_by_which_its_caller_is_found(world: World, ask: Answer) -> None:
    ask("history")
    (line,) = world.telemetry.said("operator")
    assert line["operation"] == "history"
    assert (line["conversation"], line["claimedBy"], line["requestId"]) == (NAME, "arn:me", "r-1")


def test_the_history_shows_what_was_said_only_on_request(world: World, ask: Answer) -> None:
    world.emit("b-1", 1)
    world.run()
    shown = ask("history")["result"]
    asked, said = shown["turns"]
    assert asked == {"at": world.now_ms, "role": "user", "batchId": "b-1", "messageIds": ["m-b-1"]}
    assert said == asked | {
        "role": "assistant", "messageIds": ["sent-1", "sent-2"], "model": "a-model", "inputTokens": 11,
        "outputTokens": 7, "totalTokens": 18, "processingMs": 0,
    }  # fmt: skip
    assert shown["lastReplyId"] == "b-1"
    assert "today" not in json.dumps(shown)
    assert ask("history", texts=True)["result"]["turns"][1]["text"] == ANSWER
    assert shown["status"] == "reply_sent"


def test_the_longest_history_fits_into_a_response_of_lambda(
    world: World, ask: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.emit("b-1", 1)
    world.run()
    longest = Turn(USER, '"' * MAX_TURN_BYTES, world.now_ms, "b-1", ["m" * MAX_IDS_BYTES])
    monkeypatch.setattr(type(world.table), "older_turns", lambda _, __, limit, now_ms: [longest] * limit)
    shown = ask("history", texts=True, limit=MAX_OLDER_TURNS_IN_AN_ANSWER)
    assert len(json.dumps(shown)) + MAX_RECORDED_TURNS_BYTES < 6 * 1024 * 1024


@pytest.mark.parametrize(
    "fields",
    [{"operation": "drop"}, {"operation": "history", "conversation": "x"}],
)
def test_an_invalid_command_is_refused_in_a_sentence(fields: dict[str, Any], ask: Answer) -> None:
    operation = fields.pop("operation")
    answer = ask(operation, **fields)
    assert (answer["ok"], answer["error"]["code"]) == (False, "invalid")
    assert answer["error"]["message"]


class FakeGate(Functions):
    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__()
        self.answer = answer
        self.asked: list[Any] = []

    def call(self, function: str, payload: Any, *, response_seconds: float) -> dict[str, Any]:
        self.asked.append((function, dict(payload)))
        return self.answer


def test_the_gate_is_asked_of_its_function() -> None:
    gate = FakeGate({"ok": True, "result": {"current": 3, "newer": True, "holds": []}})
    buffer = BufferClient(gate, "gate", by="responder")
    assert check_gate(buffer, DISCARD_AND_MERGE, BATCH, parts_sent=0, has_waited=False) == (None, True)
    mark = {"holder": "handoff", "cause": "answer", "until": None}
    gate.answer["result"] = {"holds": [mark]}
    assert check_gate(buffer, DELIVER, BATCH, parts_sent=0, has_waited=False) == (mark, False)
    asked = {"operation": "gate", "by": "responder", "conversation": NAME, "lane": "dynamodb", "sending": True}
    assert gate.asked == [("gate", asked | {"generation": 2}), ("gate", asked)]


def test_a_gate_that_refuses_is_asked_again_later() -> None:
    gate = FakeGate({"ok": False, "error": {"code": "unavailable", "message": "…"}})
    with pytest.raises(CallBusy):
        BufferClient(gate, "gate", by="responder").call("gate", BATCH.conversation)


# -- secrets ---------------------------------------------------------------------------------------


def test_credentials_are_kept_for_a_while_and_an_old_answer_is_better_than_none() -> None:
    now_ms = 0
    secrets = FakeSecrets(json.dumps({"whatsapp": {"accessToken": "one", "accounts": {"7": {"accessToken": "two"}}}}))
    store = CredentialStore(secrets, "the-secret", prefix="-", clock=lambda: now_ms)
    assert store.of("whatsapp", "6") == {"accessToken": "one"}
    assert store.of("whatsapp", "7") == {"accessToken": "two"}
    assert store.of("telegram", "bot") == {}
    assert secrets.reads == 1
    now_ms, secrets.failures = SECRET_LIFE_MS + 1, [SendFailed("read secret: Throttling")]
    assert store.of("whatsapp", "7") == {"accessToken": "two"}
    assert secrets.reads == 2


def test_the_platform_decides_the_channel_and_a_generic_webhook_has_the_bus() -> None:
    credentials = CredentialStore(FakeSecrets(json.dumps({"telegram": {"botToken": "t"}})), "the-secret", prefix="-")
    fake: Any = SimpleNamespace()

    def of(platform: str, **options: Any) -> Any:
        to = ConversationId("acme", platform, "bot", "7")
        return module._channel(OPTIONS._replace(**options), credentials, fake, to)

    assert type(of("telegram")).__name__ == "TelegramChannel"
    assert of("generic") is of("custom") is fake
    assert of("telegram", channel="fake") is fake
    assert of("instagram") is None
    with pytest.raises(CallRefused, match=r"has no twilio\.accountSid"):
        of("twilio")
    with pytest.raises(CallRefused, match=r"has no openai\.apiKey"):
        module._assistant(OPTIONS._replace(assistant="openai"), credentials, "acme")


# -- what is not logged ----------------------------------------------------------------------------

WORDS = ("zebra", "giraffe", "s3cret")


@pytest.mark.parametrize("step", range(15))
def test_nothing_that_people_wrote_and_no_secret_is_in_logs_or_metrics(
    step: int, new_table: Tables, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Powertools keeps one logger a service, which writes where the first test's output went.
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", f"responder-{step}")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "MessageBuffer/test")
    monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", "DEBUG")
    telemetry = Telemetry()
    world = World(new_table(), telemetry=telemetry, gate="interrupt", typing_indicator=True)
    world.assistant.says = "a giraffe"
    world.emit("b-1", 1, "a zebra")

    def blow_up(_text: str) -> None:
        world.sender.before_send = lambda _text: None
        raise ValueError("a zebra and a giraffe and s3cret")

    world.sender.before_send = blow_up
    world.steps.fail_at = (step, "after", False)
    world.run()
    world.put('{"detail": "zebra"}')
    world.run()
    telemetry.flush()
    written = capsys.readouterr()
    assert "tried again" in written.out
    assert "given up" in written.out
    for word in WORDS:
        assert word not in written.out + written.err


@pytest.mark.parametrize(
    ("conversation", "fields", "recipient"),
    [
        ("acme/whatsapp/555/491", {"author": "US.aBc"}, "US.aBc"),
        ("acme/whatsapp/555/491", {}, "491"),
        ("acme/whatsapp/555/G1", {"author": "492", "chat": {"type": "group"}}, "G1"),
        ("acme/twilio/whatsapp:1555/491", {"author": "whatsapp:+492"}, "492"),
        ("acme/twilio/1555/491", {"author": "+492"}, "491"),
        ("acme/telegram/bot/-100:42", {"author": "7"}, "-100:42"),
        ("acme/custom/whatsapp:7/chat-17", {"author": "491"}, "chat-17"),
    ],
)
def test_a_reply_goes_to_the_name_by_which_the_author_wrote_last(
    conversation: str, fields: dict[str, Any], recipient: str
) -> None:
    """Use the newest name: the conversation keeps the author's first number, which may be another person's by now."""
    body = json.loads(event("b-1", 1, "Hey"))
    body["detail"]["conversationId"] = conversation
    body["detail"]["messages"][-1] |= fields
    batch = read_batch(json.dumps(body), FakeObjects())
    assert (str(batch.conversation), batch.recipient.user) == (conversation, recipient)
    assert batch.recipient._replace(user="") == batch.conversation._replace(user="")
