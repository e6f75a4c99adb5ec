"""The operators' requests, on the real engine."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lambdas.admin.conversations import (
    MAX_MESSAGES_SHOWN,
    MAX_PAGES_IN_A_LISTING,
    Conversations,
)
from lambdas.admin.dead_letters import (
    BUFFER,
    DEAD_LETTER_HIDDEN_SECONDS,
    MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS,
    DeadLetters,
)
from lambdas.admin.forgetting import Forgetting, Places
from lambdas.admin.handler import ACTED, audited, operations_of
from lambdas.admin.rules import MAX_DOORS, MIN_MS_LEFT_TO_RETIME, RulesAdmin
from lambdas.admin.tuning import MAX_FACTOR, MAX_SCOPES, MIN_SILENCE_MS, Tuning
from lambdas.operations import Operation, Operations
from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.aws.functions import Functions
from message_buffer.errors import RulesConflict, SendFailed, StoreUnavailable
from message_buffer.events.dead_letters import DeadLetterQueue, Letter
from message_buffer.events.hand_offs import HandOffs
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.limits import DAY_MS, MAX_HOLD_MS
from message_buffer.messages.conversation_id import ConversationId, parse_conversation_id
from message_buffer.messages.message import MAX_MESSAGE_BYTES, Message, encode
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.rules.rules_table import RulesTable, StoredRules
from message_buffer.tuning.curve import MIN_BATCHES, WITHIN_MS, recommend
from message_buffer.tuning.tuning_table import STAGE, TuningTable
from tests.support.engine import SETTINGS, Engine, payload
from tests.support.fakes import (
    CONVERSATION_PROCESSOR,
    FakeBus,
    FakeFunctions,
    FakeObjects,
    RecordedTelemetry,
    valkey_lane,
)
from tests.support.gaps import counts_of
from tests.support.learned import MODEL
from tests.support.takeovers import FakeTakeovers

INGEST = "ingest"
ME = "arn:aws:iam::111122223333:user/ada"
REQUEST = "8f5077c9-6f29-4bd2-a8cc-0d1f3b0f3a3c"
# The largest payload that Lambda passes on.
ANSWER_BYTES = 6_291_556
NAME = "default/generic/shop/c1"
AGES_OUT = [{"place": "logs", "days": 14}]


class FakeLetters(DeadLetterQueue):
    """SQS: a received message is hidden until it is given back."""

    def __init__(self, *bodies: str) -> None:
        super().__init__("dead-letters")
        self.letters = [Letter(f"receipt-{number}", body) for number, body in enumerate(bodies)]
        self.hidden: set[str] = set()
        self.hidden_seconds = 0
        self.refusals = False

    def receive(self, *, hidden_seconds: int) -> list[Letter]:
        self.hidden_seconds = hidden_seconds
        received = [letter for letter in self.letters if letter.receipt not in self.hidden][:2]
        self.hidden |= {letter.receipt for letter in received}
        return received

    def give_back(self, letters: list[Letter]) -> None:
        if self.refusals:
            raise SendFailed("give dead letters back: Throttling")
        assert set(letters) <= set(self.letters), "AWS refuses to give back what is gone"
        self.hidden -= {letter.receipt for letter in letters}

    def delete(self, letter: Letter) -> None:
        self.letters.remove(letter)
        self.hidden.remove(letter.receipt)

    def count(self) -> int:
        return len(self.letters)


class FakeConversationProcessor(Functions):
    """The conversation processor: answers as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Mapping[str, object]]] = []
        self.answer: Callable[[Any], Json] = lambda letter: {"redriven": letter["batchId"]}

    def call(self, function: str, payload: Mapping[str, object], *, response_seconds: float) -> Json:
        self.calls.append((function, payload))
        return self.answer(payload["redrive"])


class FakeTable(RulesTable):
    """DynamoDB, as far as the admin function uses it."""

    def __init__(self) -> None:
        super().__init__("rules")
        self.items: dict[str, StoredRules] = {}
        self.before: dict[str, StoredRules | None] = {}
        self.writes = 0

    def read_all(self) -> list[StoredRules]:
        return list(self.items.values())

    def put(self, scope: str, rules: Mapping[str, Any], *, by: str, at_ms: int, expected_version: int | None) -> int:
        self._expect(scope, expected_version)
        self.writes += 1
        self.before[scope] = self.items.get(scope)
        self.items[scope] = StoredRules(scope, dict(rules), self.writes, by, at_ms)
        return self.writes

    def delete(self, scope: str, *, by: str, at_ms: int, expected_version: int | None) -> int | None:
        self._expect(scope, expected_version)
        if scope not in self.items:
            return None
        self.writes += 1
        self.before[scope] = self.items.pop(scope)
        return self.writes

    def erase(self, scope: str, *, by: str, at_ms: int) -> bool:
        self.before.pop(scope, None)
        return self.items.pop(scope, None) is not None

    def last_change(self, scope: str) -> list[StoredRules | None]:
        return [self.before[scope], self.items.get(scope)] if scope in self.before else []

    def _expect(self, scope: str, version: int | None) -> None:
        found = self.items[scope].version if scope in self.items else 0
        if version not in (None, found):
            raise RulesConflict(f"the rules of {scope} have changed since they were read")


class FakeCounts(TuningTable):
    """The table of counts, by scope and the time of their week."""

    def __init__(self) -> None:
        super().__init__("tuning")
        self.weeks: dict[int, dict[str, Counter[str]]] = {}

    def sums(self, *, since_ms: int) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for at_ms, scopes in self.weeks.items():
            for scope, counts in scopes.items() if at_ms >= since_ms else ():
                found.setdefault(scope, Counter()).update(counts)
        return found


class FakeAliases(AliasesTable):
    """The table of aliases: each name of an author that has two leads to the other."""

    def __init__(self) -> None:
        super().__init__("aliases")
        self.others: dict[str, str] = {}

    def link(self, one: str, other: str) -> None:
        self.others |= {one: other, other: one}

    def other_name(self, conversation: ConversationId, *, now_ms: int) -> ConversationId | None:
        del now_ms
        other = self.others.get(str(conversation))
        return parse_conversation_id(other) if other else None

    def count(self, conversation: ConversationId, *, now_ms: int) -> int:
        return 2 if self.other_name(conversation, now_ms=now_ms) else 0

    def forget(self, conversation: ConversationId, *, now_ms: int) -> int:
        count = self.count(conversation, now_ms=now_ms)
        self.others.pop(self.others.pop(str(conversation), ""), None)
        return count


class Desk:
    """The whole admin function; only AWS is replaced."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.functions, self.bus, self.telemetry = FakeFunctions(), FakeBus(), RecordedTelemetry()
        self.queue, self.conversation_processor, self.table = FakeLetters(), FakeConversationProcessor(), FakeTable()
        self.queue_letters = FakeLetters()
        """The dead letters of one of the stage's queues."""
        self.of_queues: dict[str, DeadLetterQueue] = {}
        self.objects = FakeObjects()
        self.takeovers = FakeTakeovers()
        self.aliases = FakeAliases()
        self.time_left_ms = 60_000
        self.fallback: list[DynamoDbLane] = []
        self.has_handoff_queue = False
        self.counts = FakeCounts()
        self.deployed: Json = {"silenceMs": 2_000}

    def operations(self) -> Mapping[str, Operation]:
        lane = valkey_lane(self.engine.store, self.functions, self.telemetry)
        rules = RulesAdmin(
            table=self.table,
            book_of=partial(RuleBook, stage_rules=self.deployed, telemetry=self.telemetry),
            queues=("default", "whatsapp"),
            valkey_lane=lane,
            dynamodb_lane=self.fallback[0] if self.fallback else None,
            time_left=lambda: self.time_left_ms,
            clock=self.engine.clock,
        )
        hand_offs = HandOffs(
            [lane], self.bus, self.takeovers, has_queue=self.has_handoff_queue, clock=self.engine.clock
        )
        operations = operations_of(
            Conversations(lane, self.bus, hand_offs, agent_of=rules.agent_of, clock=self.engine.clock),
            rules,
            DeadLetters(
                {BUFFER: self.queue, **self.of_queues},
                self.conversation_processor,
                (CONVERSATION_PROCESSOR, INGEST),
                lambda: self.time_left_ms,
            ),
            forgetting=Forgetting(
                [lane, *self.fallback],
                Places(
                    self.table, self.objects, [self.queue, self.queue_letters], self.takeovers, AGES_OUT, self.aliases
                ),
                bus=self.bus,
                time_left=lambda: self.time_left_ms,
                clock=self.engine.clock,
            ),
            tuning=Tuning(self.counts, rules, self.telemetry, lambda: self.time_left_ms, self.engine.clock),
            idle_pass=lambda _request: {},
            telemetry=self.telemetry,
        )
        return audited(operations, self.bus, self.telemetry, clock=self.engine.clock)

    def ask(self, operation: object, **fields: object) -> Json:
        return Operations(self.operations(), self.telemetry).answer(
            {"operation": operation, "by": ME, **fields}, request_id=REQUEST
        )

    def result(self, operation: str, **fields: object) -> Json:
        answer = self.ask(operation, **fields)
        assert answer["ok"], answer
        result: Json = answer["result"]
        return result

    def error(self, operation: object, **fields: object) -> tuple[str, str]:
        answer = self.ask(operation, **fields)
        assert not answer["ok"], answer
        return answer["error"]["code"], answer["error"]["message"]


@pytest.fixture
def desk(fake: Engine) -> Desk:
    return Desk(fake)


def letter(batch_id: str, *texts: str, **more: object) -> str:
    return json.dumps(
        {
            "version": 1, "reason": "put event: ThrottlingException", "batchId": batch_id, "conversationId": NAME,
            "attempt": 20, "generation": 3, "firstAt": 1, "lastAt": 2, "dueAt": 3, "flushReason": "silence",
            "rule": "silenceMs", "appliedWaitMs": 1,
            "payloads": [payload(f"m{n}", text).decode() for n, text in enumerate(texts)], **more,
        }
    )  # fmt: skip


# -- the list of conversations ---------------------------------------------------------------------


def listed(desk: Desk, **fields: object) -> list[Json]:
    """All answers' conversations, as a program asks for them."""
    found: list[Json] = []
    cursor = None
    for _ in range(1_000):
        answer = desk.result("conversation.list", cursor=cursor, **fields)
        found += answer["conversations"]
        cursor = answer["next"]
        assert answer["more"] is (cursor is not None)
        if cursor is None:
            return found
    raise AssertionError("the list has no end")


def test_conversations_are_listed_with_what_they_wait_for_and_no_words(desk: Desk) -> None:
    desk.engine.send(NAME, "m1")
    waiting = desk.engine.send(NAME, "m2")
    assert listed(desk) == [
        {
            "conversation": NAME, "lane": "valkey", "shard": desk.engine.store.shard_of(NAME), "state": "pending",
            "count": 2, "frozen": 0, "reason": "silence", "rule": "typingInferenceMs", "appliedWaitMs": 3_000,
            "dueAt": waiting.due_at_ms,
        }
    ]  # fmt: skip


def test_the_list_can_be_narrowed_to_a_tenant_and_a_platform(desk: Desk) -> None:
    names = ["acme/twilio/+1/+2", "acme/whatsapp/1/2", "acme2/twilio/+1/+2", "a%2Fb/twilio/+1/+2"]
    for name in names:
        desk.engine.send(name, "m1")

    def found(**fields: object) -> list[str]:
        return sorted(row["conversation"] for row in listed(desk, **fields))

    assert found() == sorted(names)
    assert found(tenant="acme") == names[:2]
    assert found(platform="twilio") == sorted([names[0], *names[2:]])
    assert found(tenant="acme", platform="twilio") == names[:1]
    assert found(tenant="a/b") == names[3:]
    assert found(tenant="nobody") == []


def test_all_shards_are_listed_page_by_page(fake: Engine) -> None:
    desk = Desk(fake)
    fake.store = fake.another_store(SETTINGS._replace(shards=3))
    names = {f"acme/twilio/+1/{n}" for n in range(40)}
    for name in names:
        fake.send(name, "m1")
    rows = listed(desk, limit=1)
    assert sorted(row["conversation"] for row in rows) == sorted(names)
    assert {row["shard"] for row in rows} == {0, 1, 2}


def test_a_call_that_looks_through_many_pages_ends_with_a_cursor(fake: Engine) -> None:
    desk = Desk(fake)
    # Three pages a shard, of its open buffers, its batches in flight and its frozen ones.
    fake.store = fake.another_store(SETTINGS._replace(shards=MAX_PAGES_IN_A_LISTING // 3 + 1))
    answer = desk.result("conversation.list")
    assert (answer["conversations"], answer["more"]) == ([], True)
    assert desk.result("conversation.list", cursor=answer["next"])["next"] is None


def test_a_conversation_that_leaves_while_it_is_listed_is_left_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.engine.send(NAME, "m1")
    page = desk.engine.store.list_conversations(desk.engine.store.shard_of(NAME))
    desk.engine.cancel(NAME)
    monkeypatch.setattr(desk.engine.store, "list_conversations", lambda *_, **__: page)
    assert desk.result("conversation.list", limit=1)["conversations"] == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cursor": "1/open:0"}, "cursor: no earlier call returned '1/open:0'; leave it out to begin again"),
        ({"cursor": "windows"}, "cursor: no earlier call returned 'windows'; leave it out to begin again"),
        ({"limit": 0}, "limit: should be greater than or equal to 1."),
        ({"platform": "whatsap"}, "whatsap: unknown platform; did you mean whatsapp?"),
        (
            {"platform": "pigeon"},
            "pigeon: unknown platform; use one of custom, generic, instagram, messenger, telegram, twilio, whatsapp",
        ),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(desk: Desk, fields: Json, problem: str) -> None:
    assert desk.error("conversation.list", **fields) == ("invalid", problem)


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [None, [], "status", {}, {"operation": ["status"]}])
def test_what_is_no_request_is_refused_and_not_raised(desk: Desk, event: object) -> None:
    answer = Operations({}, desk.telemetry).answer(event, request_id=REQUEST)
    assert (answer["ok"], answer["error"]["code"]) == (False, "invalid")


@pytest.mark.parametrize(
    ("operation", "fields", "message"),
    [
        ("conversation.show", {"conversation": "c1"}, "a conversation id reads tenant/platform/account/user"),
        ("dead.show", {"batch_id": "b"}, "batchId is missing. batch_id is unknown here; valid: by, batchId, payloads."),
        ("status", {"by": ""}, "by: String should have at least 1 character."),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_a_sentence(
    desk: Desk, operation: str, fields: Json, message: str
) -> None:
    assert desk.error(operation, **fields) == ("invalid", message)


def test_who_did_what_is_told_without_what_people_wrote(desk: Desk) -> None:
    desk.engine.send(NAME, "m1", "my secret")
    desk.result("conversation.show", conversation=NAME, messages=True)
    desk.error("conversation.resume", conversation=NAME)
    # Lambda tells nobody's name: only the request's id leads to the caller that IAM knew, in CloudTrail.
    caller = {"claimedBy": ME, "requestId": REQUEST}
    assert desk.telemetry.said("operator") == [
        {"operation": "conversation.show", "outcome": "ok", **caller, "conversation": NAME},
        {"operation": "conversation.resume", "outcome": "not_found", **caller, "conversation": NAME},
    ]
    assert "my secret" not in str(desk.telemetry.lines)


WORDS = "what somebody wrote"
# Every operation, with a request. Those that change something are in an order in which each finds something to do.
CHANGES: dict[str, Json] = {
    "dead.redrive": {"batchId": "b1"},
    "conversation.flush": {"conversation": NAME},
    "conversation.hold": {"conversation": NAME, "holdMs": 60_000},
    "conversation.resume": {"conversation": NAME, "reason": "Solved."},
    "conversation.handoff": {"conversation": NAME, "holdMs": 60_000, "reason": "She asked."},
    "conversation.complete": {"conversation": NAME, "summary": WORDS},
    "conversation.cancel": {"conversation": NAME},
    "conversation.forget": {"conversation": NAME},
    "rules.set": {"scope": "tenant:default", "rules": {"stopWords": [WORDS]}, "expectedVersion": 0},
    "rules.delete": {"scope": "tenant:default"},
    "rules.undo": {"scope": "tenant:default"},
    "tune.weekly": {"scope": "stage", "cutShare": 0.2},
}
QUESTIONS: dict[str, Json] = {
    "status": {},
    "conversation.list": {},
    "conversation.show": {"conversation": NAME, "messages": True},
    "id.look_up": {"id": NAME},
    "rules.list": {},
    "rules.get": {"scope": "stage"},
    "rules.explain": {"conversation": NAME},
    "dead.list": {},
    "dead.show": {"batchId": "b1", "payloads": True},
    "tune.read": {},
    "idle.pass": {},
}


def test_each_command_that_changes_something_publishes_once_who_did_it_and_no_words(desk: Desk) -> None:
    assert {*CHANGES, *QUESTIONS} == {*desk.operations()}, "a new operation is missing here"
    desk.engine.send(NAME, "m1", WORDS)
    desk.queue = FakeLetters(letter("b1", WORDS))
    desk.result("rules.set", scope="stage", rules={"silenceMs": 1_000})
    desk.bus.published.clear()
    for operation, fields in QUESTIONS.items():
        desk.result(operation, **fields)
    desk.result("conversation.forget", conversation=NAME, dryRun=True)
    assert desk.error("conversation.hold", conversation=NAME, holdMs=0)[0] == "invalid"
    assert desk.bus.published == [], "nothing has changed"
    for operation, fields in CHANGES.items():
        desk.bus.published.clear()
        desk.result(operation, **fields)
        (event,) = events(desk, ACTED)
        small: Json = {name: fields[name] for name in ("holdMs", "expectedVersion", "reason") if name in fields}
        subject = fields.get("conversation") or fields.get("scope") or fields["batchId"]
        what = {"version": 1, "operation": operation, "subject": subject}
        small |= Json(moves=[]) if operation == "tune.weekly" else {}
        assert event == what | small | {"by": ME, "at": desk.engine.clock.now_ms}


def test_a_command_that_took_effect_succeeds_though_its_event_was_not_published(desk: Desk) -> None:
    desk.bus.failures = [SendFailed("put event: ThrottlingException")]
    assert "heldUntil" in desk.result("conversation.hold", conversation=NAME, holdMs=60_000)
    failed = {"operation": "conversation.hold", "reason": "put event: ThrottlingException"}
    assert desk.telemetry.said("command not published") == [failed]


def test_a_bug_is_told_and_answered_without_its_words(desk: Desk) -> None:
    def broken(**_: object) -> list[Letter]:
        raise KeyError("what somebody wrote")

    desk.queue.receive = broken  # type: ignore[method-assign]
    code, message = desk.error("dead.list")
    assert (code, message) == ("failed", "Something went wrong here; the function's log says where.")
    assert desk.telemetry.said("admin failed") == [{"operation": "dead.list", "error": "KeyError"}]


# -- conversations ---------------------------------------------------------------------------------


def test_a_conversation_is_shown_without_its_messages_unless_they_are_asked_for(desk: Desk) -> None:
    buffered = desk.engine.send(NAME, "m1", "hello")
    now = desk.engine.clock.now_ms
    shown = desk.result("conversation.show", conversation=NAME)
    assert shown == {
        "conversation": NAME, "known": True, "shard": 0, "state": "pending", "count": 1, "dueAt": buffered.due_at_ms,
        "reason": "silence", "rule": "silenceMs", "appliedWaitMs": 1_000,
        "firstAt": now, "lastAt": now, "generation": 1, "heldUntil": None, "holds": [], "batch": None,
    }  # fmt: skip
    with_words = desk.result("conversation.show", conversation=NAME, messages=True)
    assert [(each["id"], each["text"]) for each in with_words["messages"]] == [("m1", "hello")]


def test_a_conversation_is_known_while_any_lane_remembers_it(desk: Desk) -> None:
    def known() -> bool:
        return bool(desk.result("conversation.show", conversation=NAME)["known"])

    assert not known()
    desk.result("conversation.hold", conversation=NAME, holdMs=60_000)
    assert known()
    desk.result("conversation.resume", conversation=NAME)
    assert not known()
    desk.engine.send(NAME, "m1")
    desk.result("conversation.cancel", conversation=NAME)
    assert known(), "its generation is remembered"
    desk.result("conversation.forget", conversation=NAME)
    assert not known()


def test_a_frozen_batch_is_shown_by_its_id(desk: Desk) -> None:
    desk.engine.send(NAME, "m1")
    desk.engine.clock.advance(60_000)
    desk.engine.claim()
    taken = desk.engine.store.take_batch(NAME, "token")
    shown = desk.result("conversation.show", conversation=NAME)
    assert shown["state"] == "inflight"
    assert shown["batch"] == {"batchId": taken.batch_id, "attempt": 1, "count": 1}  # type: ignore[union-attr]


def test_the_longest_messages_fit_into_an_answer(desk: Desk) -> None:
    # This JSON grows the most on its way: a blank is added behind each of its signs.
    grows = {"data": [1] * (MAX_MESSAGE_BYTES // 2 - 100)}
    longest = encode(Message.model_validate({"id": "m", "platform": "generic", "receivedAt": 0} | grows))
    assert len(longest) > MAX_MESSAGE_BYTES - 1_000
    for n in range(MAX_MESSAGES_SHOWN + 1):
        desk.engine.store.buffer_message(NAME, f"m{n}", payload=longest, timing=Rules().timing)
    shown = desk.result("conversation.show", conversation=NAME, messages=True)
    assert len(shown["messages"]) == MAX_MESSAGES_SHOWN
    assert len(json.dumps(shown)) < ANSWER_BYTES


def test_a_payload_that_nobody_can_read_does_not_hide_the_others(desk: Desk) -> None:
    desk.engine.store.buffer_message(NAME, "m1", payload=b"by hand", timing=Rules().timing)
    desk.engine.send(NAME, "m2")
    shown = desk.result("conversation.show", conversation=NAME, messages=True)["messages"]
    assert [each.get("id", "unreadable") for each in shown] == ["unreadable", "m2"]


def test_a_flush_makes_it_due_now(desk: Desk) -> None:
    desk.engine.send(NAME, "m1")
    assert desk.result("conversation.flush", conversation=NAME) == {"dueAt": desk.engine.clock.now_ms, "count": 1}
    assert desk.engine.claim() == [NAME]


def test_nothing_to_flush_is_said(desk: Desk) -> None:
    assert desk.error("conversation.flush", conversation=NAME) == ("not_found", "Nothing waits in this conversation.")


def test_a_cancel_drops_what_waits_and_tells_the_bus(desk: Desk) -> None:
    desk.engine.send(NAME, "m1")
    desk.engine.send(NAME, "m2")
    cancelled = desk.result("conversation.cancel", conversation=NAME)
    assert cancelled == {"generation": 3, "dropped": 2, "frozen": 0, "leaving": False}
    (event,) = events(desk, "messages.buffer.cancelled")
    assert event == {
        "version": 1, "conversationId": NAME, "tenant": "default", **cancelled, "messageId": None,
        "reason": "operator", "at": desk.engine.clock.now_ms, "lane": "valkey", "metadata": {"platform": "generic"},
    }  # fmt: skip
    assert desk.result("conversation.show", conversation=NAME)["state"] == "idle"


def test_a_cancel_under_a_hold_says_how_long_that_remains(desk: Desk) -> None:
    desk.engine.send(NAME, "m1")
    until_ms = desk.result("conversation.hold", conversation=NAME, holdMs=60_000)["heldUntil"]
    assert desk.result("conversation.cancel", conversation=NAME)["heldUntil"] == until_ms


def test_a_cancel_names_the_agent_of_the_account(desk: Desk) -> None:
    desk.result("rules.set", scope="account:generic/shop", rules={"tenant": "default", "agent": "sales"})
    desk.result("conversation.cancel", conversation=NAME)
    assert events(desk, "messages.buffer.cancelled")[0]["agent"] == "sales"


def test_a_cancel_is_published_without_an_agent_if_the_rules_cannot_be_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise SendFailed("read rules: Throttling")

    desk.engine.send(NAME, "m1")
    monkeypatch.setattr(desk.table, "read_all", fail)
    assert desk.result("conversation.cancel", conversation=NAME)["dropped"] == 1
    assert "agent" not in events(desk, "messages.buffer.cancelled")[0]


# -- the platform's reply window ---------------------------------------------------------------------

OF_WHATSAPP = "default/whatsapp/555/491"


def sent(engine: Engine, message_id: str, *, sent_ms_ago: int | None) -> None:
    """Let a customer's message arrive now that was sent this long ago."""
    now_ms = engine.clock.now_ms
    sent_at_ms = None if sent_ms_ago is None else now_ms - sent_ms_ago
    message = Message(id=message_id, platform="whatsapp", sent_at=sent_at_ms, received_at=now_ms)
    engine.store.buffer_message(OF_WHATSAPP, message_id, payload=encode(message), timing=Rules().timing)


def test_the_reply_window_counts_from_the_time_at_which_the_last_message_was_sent(desk: Desk) -> None:
    now_ms = desk.engine.clock.now_ms
    sent(desk.engine, "m1", sent_ms_ago=60_000)
    sent(desk.engine, "m2", sent_ms_ago=90_000)
    shown = desk.result("conversation.show", conversation=OF_WHATSAPP)
    assert shown["replyUntil"] == now_ms - 60_000 + DAY_MS
    assert "messages" not in shown, "they were read for their times alone"
    (row,) = desk.result("conversation.list")["conversations"]
    assert row["replyUntil"] == now_ms + DAY_MS, "a list reads no message"


def test_a_cancel_that_the_bus_did_not_take_says_so(desk: Desk) -> None:
    desk.engine.send(NAME, "m1")
    desk.bus.failures = [SendFailed("put event: ThrottlingException")]
    code, message = desk.error("conversation.cancel", conversation=NAME)
    assert code == "refused"
    assert message.startswith(
        "The buffer is cancelled, but the event was not published (put event: ThrottlingException)"
    )
    assert desk.result("conversation.show", conversation=NAME)["count"] == 0


def test_a_conversation_shows_who_holds_it_and_an_operators_resume_ends_all_holds_and_the_takeover(desk: Desk) -> None:
    now_ms = desk.engine.clock.now_ms
    desk.engine.store.hold_buffer(NAME, holder="people", cause="answer", hold_ms=1_000)
    desk.engine.store.hold_buffer(NAME, holder="consumers", cause="crm", hold_ms=7_200_000)
    peoples = {"holder": "people", "cause": "answer", "until": now_ms + 1_000}
    consumers = {"holder": "consumers", "cause": "crm", "until": now_ms + 7_200_000}
    assert desk.result("conversation.show", conversation=NAME)["holds"] == [peoples, consumers]
    desk.result("conversation.handoff", conversation=NAME, holdMs=3_600_000)
    peoples |= {"cause": "handoff", "until": now_ms + 3_600_000}
    shown = desk.result("conversation.show", conversation=NAME)
    assert (shown["holds"], shown["heldUntil"]) == ([peoples, consumers], now_ms + 7_200_000)
    assert desk.result("conversation.resume", conversation=NAME) == {"dueAt": None}
    assert desk.takeovers.read(NAME).resumed_at_ms == now_ms
    assert desk.result("conversation.show", conversation=NAME)["holds"] == []


def test_a_hand_off_and_its_end_are_published_with_the_reason_and_the_operator(desk: Desk) -> None:
    now_ms = desk.engine.clock.now_ms
    desk.table.put(
        "account:generic/shop", {"tenant": "default", "agent": "support"}, by=ME, at_ms=1, expected_version=0
    )
    for number in range(2):
        desk.engine.clock.now_ms = now_ms + number
        desk.result("conversation.handoff", conversation=NAME, holdMs=60_000, reason="She asked for a person.")
    (event,) = events(desk, "messages.conversation.handed_off")
    shared = {"version": 1, "conversationId": NAME, "tenant": "default", "agent": "support", "cause": "operator"}
    shared |= {"by": ME, "metadata": {"platform": "generic"}}
    until = {"messageId": None, "until": now_ms + 60_000}
    assert event == shared | until | {"reason": "She asked for a person.", "at": now_ms}
    desk.bus.failures = [SendFailed("put event: ThrottlingException")]
    assert desk.error("conversation.resume", conversation=NAME)[0] == "unavailable"
    assert desk.result("conversation.resume", conversation=NAME, reason="Solved.") == {"dueAt": None}
    (event,) = events(desk, "messages.conversation.handed_back")
    assert event == shared | {"reason": "Solved.", "handedOffAt": now_ms, "at": now_ms + 1}
    desk.result("conversation.hold", conversation=NAME, holdMs=60_000)
    desk.result("conversation.resume", conversation=NAME)
    assert len(events(desk, "messages.conversation.handed_back")) == 1, "a hold is no hand-off"


def test_a_hand_off_marks_the_conversation_if_the_stage_has_the_queue_and_holds_it_otherwise(desk: Desk) -> None:
    now_ms = desk.engine.clock.now_ms
    due_at_ms = desk.engine.send(NAME, "m1").due_at_ms
    desk.has_handoff_queue = True
    assert desk.result("conversation.handoff", conversation=NAME, holdMs=60_000) == {"handedOffUntil": now_ms + 60_000}
    assert desk.result("conversation.handoff", conversation=NAME) == {"handedOffUntil": None}
    shown = desk.result("conversation.show", conversation=NAME)
    assert shown["holds"] == [{"holder": "handoff", "cause": "operator", "until": None}]
    assert (shown["heldUntil"], shown["dueAt"]) == (None, due_at_ms)
    assert desk.result("conversation.resume", conversation=NAME) == {"dueAt": due_at_ms}
    assert desk.error("conversation.resume", conversation=NAME)[0] == "not_found"
    assert desk.error("conversation.hold", conversation=NAME)[0] == "invalid", "only a mark may be without a limit"
    desk.has_handoff_queue = False
    assert desk.result("conversation.handoff", conversation=NAME, holdMs=60_000)["heldUntil"] == now_ms + 60_000


def test_a_hand_off_without_a_queue_ends_within_a_day(desk: Desk) -> None:
    refused = "This stage has no queue handoff, so a hand-off is a hold, and needs an end within 24 h."
    for fields in ({}, {"holdMs": MAX_HOLD_MS + 1}):
        assert desk.error("conversation.handoff", conversation=NAME, **fields) == ("invalid", refused)
    assert (desk.takeovers.states, desk.bus.published) == ({}, [])


def test_a_completed_task_is_published_with_its_summary(desk: Desk) -> None:
    now_ms = desk.engine.clock.now_ms
    done = desk.result("conversation.complete", conversation=NAME, summary="Sold a bicycle.")
    (event,) = events(desk, "messages.conversation.completed")
    assert done == {"at": now_ms}
    assert (event["summary"], event["by"], event["cause"], event["at"]) == ("Sold a bicycle.", ME, "operator", now_ms)


def events(desk: Desk, name: str) -> list[Json]:
    """Return the events of this type, which its schema allows."""
    schema = json.loads((Path(__file__).parents[2] / f"docs/schema/{name}.json").read_text())
    found = [json.loads(detail) for detail_type, detail in desk.bus.published if detail_type == name]
    for each in found:
        jsonschema.Draft4Validator(schema).validate(each)
    return found


def test_a_resume_that_cannot_be_recorded_changes_nothing_and_may_be_repeated(desk: Desk) -> None:
    desk.result("conversation.hold", conversation=NAME, holdMs=3_600_000)
    desk.takeovers.failures = ["save"]
    assert desk.error("conversation.resume", conversation=NAME)[0] == "unavailable"
    assert desk.result("conversation.show", conversation=NAME)["heldUntil"] is not None
    assert desk.result("conversation.resume", conversation=NAME) == {"dueAt": None}


def test_status_counts_what_waits_and_says_what_is_late(desk: Desk) -> None:
    empty = {"shard": 0, "pending": 0, "inflight": 0, "nextDueAt": None, "overdueMs": 0, "heartbeatAt": None}
    nothing: Json = {
        "pending": 0, "inflight": 0, "nextDueAt": None, "overdueMs": 0, "shards": [empty],
    }  # fmt: skip
    assert desk.result("status") == nothing
    due_at_ms = desk.engine.send(NAME, "m1").due_at_ms
    assert due_at_ms is not None
    desk.engine.clock.now_ms = due_at_ms + 7_000
    desk.engine.work()
    status = desk.result("status")
    assert (status["pending"], status["nextDueAt"], status["overdueMs"]) == (1, due_at_ms, 7_000)
    assert status["shards"][0]["heartbeatAt"] == desk.engine.clock.now_ms


# -- rules -----------------------------------------------------------------------------------------


def test_rules_are_kept_with_who_set_them_and_when(desk: Desk) -> None:
    desk.result("rules.set", scope="tenant:acme", rules={"silenceMs": 3_000})
    desk.result("rules.set", scope="stage", rules={"preset": "quickSupport"})
    (stage, acme) = desk.result("rules.list")["rules"]
    assert (stage["scope"], acme["scope"]) == ("stage", "tenant:acme")
    assert desk.result("rules.list", prefix="tenant:") == {"rules": [acme], "more": False}
    assert desk.result("rules.get", scope="tenant:acme") == acme
    assert acme == {
        "scope": "tenant:acme", "rules": {"silenceMs": 3_000}, "version": 1, "updatedBy": ME,
        "updatedAt": desk.engine.clock.now_ms,
    }  # fmt: skip
    assert desk.error("rules.get", scope="tenant:other")[0] == "not_found"


def test_what_was_written_by_hand_is_listed_with_what_is_wrong_and_can_be_deleted(desk: Desk) -> None:
    desk.table.items["tenant:a/b"] = StoredRules("tenant:a/b", {"silenceM": 1}, 1, None, None)
    ((wrong),) = desk.result("rules.list")["rules"]
    assert wrong["problem"] == "silenceM: unknown field; did you mean silenceMs?"
    desk.result("rules.delete", scope="tenant:a/b")
    assert desk.error("rules.delete", scope="tenant:a/b")[0] == "not_found"


@pytest.mark.parametrize(
    ("scope", "rules", "problem"),
    [
        ("tenant:acme", {"silenceM": 1}, "silenceM: unknown field; did you mean silenceMs?"),
        ("agent:acme/bot", {"minMessages": 6}, "with the layers beneath, on any platform: minMessages: 6 is above"),
        ("conversation:acme/twilio/+1/+2", {"silenceMs": 25_000}, "with the layers beneath, twilio: silenceMs: 25000"),
        ("conversation:acme/sms/1/2", {}, "sms: unknown platform; use one of custom, generic, "),
        ("tenant:acme", {"queue": "whatsap"}, "queue: there is no queue 'whatsap'; use one of default, whatsapp"),
        ("tenant:acme", {"platformOverrides": {"twilio": {"queue": "sms"}}}, "platformOverrides.twilio.queue: there"),
        ("stage", {"queue": "Sales"}, "queue: "),
        ("door:crm", {"text": "x" * 20_000}, "A door's mapping has at most 16384 bytes."),
        ("door:CRM", {}, "A door's name has at most 31 lower-case letters, digits and single hyphens."),
    ],
)
def test_rules_that_would_be_skipped_are_not_stored(desk: Desk, scope: str, rules: Json, problem: str) -> None:
    desk.table.items["tenant:acme"] = StoredRules(
        "tenant:acme", {"maxMessages": 5, "platformOverrides": {"twilio": {"maxWaitMs": 20_000}}}, 1, ME, 1
    )
    before = dict(desk.table.items)
    code, message = desk.error("rules.set", scope=scope, rules=rules)
    assert code == "invalid"
    assert problem in message
    assert desk.table.items == before


def test_a_stage_has_a_bounded_number_of_doors_and_those_it_has_can_be_changed(desk: Desk) -> None:
    mapping = {"proof": {"type": "basic"}, "id": "item.id", "conversation": "item.chat"}
    for number in range(MAX_DOORS):
        desk.table.items[f"door:d{number}"] = StoredRules(f"door:d{number}", mapping, 1, None, None)
    code, problem = desk.error("rules.set", scope="door:more", rules=mapping)
    assert (code, problem) == ("invalid", f"A stage has at most {MAX_DOORS} doors: delete one.")
    assert desk.ask("rules.set", scope="door:d7", rules=mapping)["ok"]


@pytest.mark.parametrize("scope", ["stage:x", "tenant:", "tenant:a/b", "account:twilio", "!version", "tenant:a%20b"])
def test_a_scope_that_nothing_is_looked_up_under_is_refused(desk: Desk, scope: str) -> None:
    code, message = desk.error("rules.set", scope=scope, rules={})
    assert code == "invalid"
    assert message.startswith("A scope must be stage, tenant:<tenant>")


def test_whoever_read_older_rules_changes_nothing(desk: Desk) -> None:
    version = desk.result("rules.set", scope="stage", rules={"silenceMs": 500}, expectedVersion=0)["version"]
    desk.result("rules.set", scope="stage", rules={"silenceMs": 600}, expectedVersion=version)
    late: Json = {"scope": "stage", "expectedVersion": version}
    assert desk.error("rules.set", **late, rules={})[0] == desk.error("rules.delete", **late)[0] == "conflict"
    assert desk.result("rules.get", scope="stage")["rules"] == {"silenceMs": 600}


def test_an_undo_is_checked_like_any_change_and_retimes(desk: Desk) -> None:
    code, message = desk.error("rules.undo", scope="stage")
    assert (code, message) == ("not_found", "No earlier version of the rules under stage is known.")
    desk.result("rules.set", scope="tenant:acme", rules={"minMessages": 6})
    desk.result("rules.delete", scope="tenant:acme")
    desk.result("rules.set", scope="stage", rules={"maxMessages": 5})
    code, message = desk.error("rules.undo", scope="tenant:acme")
    assert code == "invalid"
    assert "minMessages: 6 is above" in message
    done = desk.result("rules.undo", scope="stage")
    assert (done["before"], done["after"], done["open"]["complete"]) == ({"maxMessages": 5}, None, True)
    done = desk.result("rules.undo", scope="tenant:acme")
    assert (done["before"], done["after"], done["version"]) == (None, {"minMessages": 6}, desk.table.writes)
    desk.table.before["tenant:acme"] = StoredRules("tenant:acme", None, 1)
    assert desk.error("rules.undo", scope="tenant:acme")[0] == "invalid", "somebody spoiled it by hand"


def test_a_rule_is_explained_by_value_layer_and_version(desk: Desk) -> None:
    desk.result("rules.set", scope="stage", rules={"maxMessages": 7, "queue": "whatsapp"})
    desk.result("rules.set", scope="account:twilio/+1", rules={"tenant": "acme", "agent": "bot"})
    desk.result("rules.set", scope="agent:acme/bot", rules={"platformOverrides": {"twilio": {"silenceMs": 900}}})
    desk.table.items["tenant:acme"] = StoredRules("tenant:acme", {"silenceM": 1}, 9, ME, 1)
    explained = desk.result("rules.explain", conversation="acme/twilio/+1/+2")
    assert explained["agent"] == "bot"
    rules = explained["rules"]
    assert rules["maxMessages"] == {"value": 7, "layer": "stage", "via": "set here", "version": 1}
    assert rules["queue"] == {"value": "whatsapp", "layer": "stage", "via": "set here", "version": 1}
    assert rules["silenceMs"] == {
        "value": 900, "layer": "agent:acme/bot", "via": "platformOverrides.twilio", "version": 3,
    }  # fmt: skip
    assert rules["minMessages"]["layer"] == "defaults"
    assert explained["skipped"] == [
        {"layer": "tenant:acme", "reason": "silenceM: unknown field; did you mean silenceMs?"}
    ]
    another = desk.result("rules.explain", conversation="acme/twilio/+1/+2", agent="other")
    assert another["rules"]["silenceMs"]["layer"] == "deployed"


def test_an_explanation_has_examples_of_waits(desk: Desk) -> None:
    desk.result("rules.set", scope="stage", rules={"silenceMs": 2_000, "typingInferenceMs": 4_000})
    desk.result("rules.set", scope="tenant:pairs", rules={"minMessages": 2, "pressedSilenceMs": 300})
    desk.result("rules.set", scope="tenant:great", rules={"priority": "vip"})
    desk.result("rules.set", scope="tenant:learned", rules={"wait": "learned", "learned": MODEL})

    def waits_of(tenant: str) -> list[tuple[int, str]]:
        explained = desk.result("rules.explain", conversation=f"{tenant}/generic/shop/c1")
        return [(each["waitMs"], each["rule"]) for each in explained["waits"]]

    second = (4_000, "typingInferenceMs")
    more = [(0, "pressedSilenceMs"), (2_000, "silenceMs"), (15_000, "transcriptWaitMs")]
    assert waits_of("default") == [(2_000, "silenceMs"), second, *more]
    assert waits_of("pairs") == [(30_000, "minMessages"), second] + [(30_000, "minMessages")] * 3
    assert waits_of("great") == [(0, "vipSilenceMs")] * 5
    assert waits_of("learned") == [(6_000, "learned")] * 2 + more


def test_a_silence_below_a_lower_layers_typing_time_is_told_that_time(desk: Desk) -> None:
    desk.result("rules.set", scope="stage", rules={"silenceMs": 3_000, "typingInferenceMs": 8_000})

    def told(rules: Json, scope: str = "agent:acme/bot") -> Any:
        return desk.result("rules.set", scope=scope, rules=rules).get("typingInferenceMs")

    assert told({"silenceMs": 2_000}) == told({"silenceMs": 2_000}, f"conversation:{NAME}") == 8_000
    assert told({"silenceMs": 9_000}) is told({"maxMessages": 9}) is None
    assert told({"silenceMs": 2_000, "typingInferenceMs": 4_000}) is None


def test_open_buffers_in_scope_wait_by_the_new_rules_and_others_as_before(desk: Desk) -> None:
    slow = Rules(silence_ms=20_000, typing_inference_ms=0)
    ours, theirs = "acme/twilio/+1/+2", "other/twilio/+1/+2"
    for name in (ours, theirs):
        desk.engine.send(name, "m1", rules=slow)
    now = desk.engine.clock.now_ms
    answer = desk.result("rules.set", scope="tenant:acme", rules={"silenceMs": 5_000})
    assert answer["open"] == {"looked": 1, "retimed": 1, "complete": True}
    due = {name: desk.result("conversation.show", conversation=name)["dueAt"] for name in (ours, theirs)}
    assert due == {ours: now + 5_000, theirs: now + 20_000}
    desk.result("rules.delete", scope="tenant:acme")
    assert desk.result("conversation.show", conversation=ours)["dueAt"] == now + 2_000


def test_an_open_buffer_keeps_its_wait_if_the_new_rules_have_a_learned_one(desk: Desk) -> None:
    ours = "acme/twilio/+1/+2"
    desk.engine.send(ours, "m1", rules=Rules(silence_ms=20_000))
    answer = desk.result("rules.set", scope="tenant:acme", rules={"wait": "learned", "learned": MODEL})
    assert answer["open"] == {"looked": 1, "retimed": 0, "complete": True}
    assert desk.result("conversation.show", conversation=ours)["dueAt"] == desk.engine.clock.now_ms + 20_000
    desk.result("rules.set", scope="tenant:acme", rules={"priority": "vip"})
    assert desk.result("conversation.show", conversation=ours)["dueAt"] == desk.engine.clock.now_ms


@pytest.mark.parametrize(
    ("scope", "rules"),
    [
        ("stage", {"silenceMs": 5_000}),
        ("agent:acme/bot", {"silenceMs": 5_000}),
        ("conversation:acme/twilio/+1/+2", {"silenceMs": 5_000}),
        ("account:twilio/+1", {"tenant": "acme", "agent": "slow bot"}),
    ],
)
def test_every_kind_of_scope_finds_its_open_buffers(desk: Desk, scope: str, rules: Json) -> None:
    desk.result("rules.set", scope="account:twilio/+1", rules={"tenant": "acme", "agent": "bot"})
    desk.result("rules.set", scope="agent:acme/slow bot", rules={"silenceMs": 5_000})
    desk.engine.send("acme/twilio/+1/+2", "m1", rules=Rules(silence_ms=20_000, typing_inference_ms=0))
    desk.result("rules.set", scope=scope, rules=rules)
    shown = desk.result("conversation.show", conversation="acme/twilio/+1/+2")
    assert shown["dueAt"] == desk.engine.clock.now_ms + 5_000


def test_retiming_ends_before_the_time_does_and_says_so(desk: Desk) -> None:
    desk.engine.send("acme/twilio/+1/+2", "m1")
    desk.time_left_ms = MIN_MS_LEFT_TO_RETIME - 1
    answer = desk.result("rules.set", scope="stage", rules={"silenceMs": 5_000})
    assert answer["open"]["complete"] is False
    assert desk.table.items["stage"].rules == {"silenceMs": 5_000}


def test_rules_stand_even_if_the_open_buffers_cannot_be_reached(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise StoreUnavailable("no connection")

    monkeypatch.setattr(desk.engine.store, "list_conversations", gone)
    answer = desk.result("rules.set", scope="stage", rules={"silenceMs": 5_000})
    assert answer["open"] == {"looked": 0, "retimed": 0, "complete": False, "problem": "no connection"}


# -- dead letters ----------------------------------------------------------------------------------


def test_letters_are_listed_without_words_and_given_back(desk: Desk) -> None:
    desk.queue = FakeLetters(*(letter(f"b{n}", "hello", "there") for n in range(5)))
    listed = desk.result("dead.list")
    assert [head["batchId"] for head in listed["letters"]] == ["b0", "b1", "b2", "b3", "b4"]
    assert listed["inQueue"] == 5
    assert {head["messages"] for head in listed["letters"]} == {2}
    assert "hello" not in str(listed)
    assert desk.queue.hidden == set()
    assert desk.queue.hidden_seconds == DEAD_LETTER_HIDDEN_SECONDS > 60, "hidden for as long as this function may run"


def test_no_more_letters_are_taken_than_asked_for(desk: Desk) -> None:
    desk.queue = FakeLetters(*(letter(f"b{n}") for n in range(5)))
    assert len(desk.result("dead.list", limit=3)["letters"]) == 3
    assert desk.queue.hidden == set()


def test_letters_of_the_queues_are_listed_with_their_reason_and_without_words(desk: Desk) -> None:
    assert desk.result("dead.list", replies=True) == {"letters": [], "inQueue": 0}
    detail = {"batchId": "b1", "conversationId": NAME, "generation": 2, "messageCount": 1, "text": WORDS}
    entry = json.dumps({"source": "message-buffer", "detail": detail | {"messages": [{"text": WORDS}]}})
    default, vip = FakeLetters("not an entry", *[entry] * 3), FakeLetters(*[entry] * 3)
    default.letters[1] = default.letters[1]._replace(reason="401: no such key")
    desk.of_queues = {"default": default, "vip": vip}
    shown = desk.result("dead.list", replies=True, limit=5)
    assert [(each["queue"], each["batchId"], each["reason"]) for each in shown["letters"]] == [
        ("default", None, "this is not the body of a dead letter"),
        ("default", "b1", "401: no such key"),
        *[("default", "b1", "it was delivered too often")] * 2,
        ("vip", "b1", "it was delivered too often"),
    ]
    assert shown["inQueue"] == 7
    assert (shown["letters"][1]["conversationId"], shown["letters"][1]["messages"]) == (NAME, 1)
    assert WORDS not in str(shown)
    assert (default.hidden, vip.hidden) == (set(), set())


def test_a_letter_shows_its_words_only_if_they_are_asked_for(desk: Desk) -> None:
    desk.queue = FakeLetters(letter("b0"), "not a letter", letter("b1", "hello"))
    assert "payloads" not in desk.result("dead.show", batchId="b1")
    assert "hello" in desk.result("dead.show", batchId="b1", payloads=True)["payloads"][0]
    assert desk.error("dead.show", batchId="b7")[0] == "not_found"
    assert desk.queue.hidden == set()


def test_what_is_no_letter_is_listed_as_such(desk: Desk) -> None:
    desk.queue = FakeLetters("not a letter", "[]", "[" * 100_000)
    heads = desk.result("dead.list")["letters"]
    assert [(head["batchId"], head["reason"]) for head in heads] == [
        (None, "this is not the body of a dead letter")
    ] * 3


def test_a_foreign_message_shows_no_object_as_an_id(desk: Desk) -> None:
    desk.queue = FakeLetters('{"batchId": {"text": "hello"}, "reason": ["hello"]}')
    (head,) = desk.result("dead.list")["letters"]
    assert set(head.values()) == {None}


def test_a_redriven_letter_goes_once_its_batch_is_out(desk: Desk) -> None:
    desk.queue = FakeLetters(letter("b0", "hello"), letter("b1", "hello"))
    assert desk.result("dead.redrive", batchId="b1") == {"redriven": "b1"}
    assert desk.conversation_processor.calls == [
        (CONVERSATION_PROCESSOR, {"redrive": json.loads(letter("b1", "hello"))})
    ]
    assert [json.loads(each.body)["batchId"] for each in desk.queue.letters] == ["b0"]
    assert desk.queue.hidden == set()


def test_the_message_of_a_redriven_letter_goes_to_ingest(desk: Desk) -> None:
    refused = json.dumps({**json.loads(letter("message-1", "hello")), "kind": "message"})
    desk.queue = FakeLetters(letter("b0", "hello"), refused)
    assert desk.result("dead.redrive", batchId="message-1") == {"redriven": "message-1"}
    assert desk.conversation_processor.calls == [(INGEST, {"redrive": json.loads(refused)})]
    assert [json.loads(each.body)["batchId"] for each in desk.queue.letters] == ["b0"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"errorType": "SendFailed", "errorMessage": "put event: Throttling"}, "SendFailed: put event: Throttling"),
        ({"errorType": "KeyError", "errorMessage": "'what somebody wrote'"}, "KeyError"),
        ({}, "no answer"),
    ],
)
def test_a_letter_whose_batch_did_not_go_out_stays(desk: Desk, answer: Json, problem: str) -> None:
    desk.queue = FakeLetters(letter("b0", "hello"))
    desk.conversation_processor.answer = lambda _letter: answer
    assert desk.error("dead.redrive", batchId="b0") == (
        "refused",
        f"The batch was not sent again, and its dead letter stays in the queue: {problem}.",
    )
    assert len(desk.queue.letters) == 1
    assert desk.queue.hidden == set()


def test_a_letter_without_messages_is_refused_in_a_sentence_and_stays(desk: Desk) -> None:
    desk.queue = FakeLetters(json.dumps({"batchId": "b0", "payloads": []}))
    assert desk.error("dead.redrive", batchId="b0") == (
        "refused",
        "The dead letter of this batch contains no messages, so the batch cannot be sent again; the dead letter stays.",
    )
    assert desk.conversation_processor.calls == []
    assert len(desk.queue.letters) == 1
    assert desk.queue.hidden == set()


def test_looking_ends_while_there_is_time_to_act(desk: Desk) -> None:
    desk.queue = FakeLetters(letter("b0"))
    desk.time_left_ms = MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS
    assert desk.error("dead.redrive", batchId="b0")[0] == "not_found"
    assert desk.conversation_processor.calls == []


def test_an_override_that_another_layers_platform_cannot_bear_is_refused(desk: Desk) -> None:
    desk.table.items["stage"] = StoredRules("stage", {"platformOverrides": {"twilio": {"maxWaitMs": 4_000}}}, 1, ME, 1)
    code, message = desk.error("rules.set", scope="tenant:acme", rules={"silenceMs": 5_000})
    assert (code, message.partition(":")[0]) == ("invalid", "with the layers beneath, twilio")
    assert desk.ask("rules.set", scope="tenant:acme", rules={"silenceMs": 3_999})["ok"]


def test_letters_that_cannot_be_given_back_are_listed_all_the_same(desk: Desk) -> None:
    desk.queue = FakeLetters(letter("b0"))
    desk.queue.refusals = True
    assert len(desk.result("dead.list")["letters"]) == 1


def test_a_conversation_whose_batch_is_on_its_way_is_listed_with_what_waits_behind_it(desk: Desk) -> None:
    desk.engine.send(NAME, "m1", rules=Rules(priority="vip"))
    desk.engine.claim()
    desk.engine.store.take_batch(NAME, "token")
    (row,) = listed(desk)
    assert (row["state"], row["count"], row["frozen"], row["dueAt"]) == ("inflight", 0, 1, None)
    desk.engine.send(NAME, "m2")
    (row,) = listed(desk)
    assert (row["state"], row["count"], row["frozen"]) == ("inflight", 1, 1)


# -- the waits, measured and tuned -----------------------------------------------------------------------------------

WEEK_MS = 7 * DAY_MS


def count(desk: Desk, scope: str = "acme/whatsapp/sales", *, turns: int = 2_000, weeks_ago: int = 0) -> Counter[str]:
    counts = Counter(counts_of(random.Random(scope), turns=turns, silence_ms=1_000, reply_ms=4_000))
    week = desk.counts.weeks.setdefault(desk.engine.clock() - weeks_ago * WEEK_MS, {STAGE: Counter()})
    week[scope] = counts
    week[STAGE] += counts
    return counts


def tune(desk: Desk, cut_share: float = 0.2) -> list[Json]:
    moves: list[Json] = desk.result("tune.weekly", scope="stage", cutShare=cut_share)["moves"]
    return moves


def silence_of(desk: Desk, name: str = "acme/whatsapp/1/u", agent: str | None = "sales") -> int:
    rule: int = desk.result("rules.explain", conversation=name, **({"agent": agent} if agent else {}))["rules"][
        "silenceMs"
    ]["value"]
    return rule


def test_the_counts_of_the_last_weeks_are_shown_by_scope(desk: Desk) -> None:
    few, many = count(desk, "acme/whatsapp/", turns=30), count(desk, turns=400)
    old = count(desk, turns=50, weeks_ago=3)
    assert desk.result("tune.read", weeks=3)["scopes"] == {"acme/whatsapp/sales": many, "acme/whatsapp/": few}
    assert desk.result("tune.read", weeks=4)["scopes"]["acme/whatsapp/sales"] == many + old


def test_even_very_many_scopes_fit_into_an_answer(desk: Desk) -> None:
    widest = Counter({f"{kind}{k:02d}": 10**9 for kind in "gce" for k in range(24)} | {"waited_ms": 10**13})
    scopes = {f"{'t' * 40}{n}/whatsapp/{'a' * 40}": widest | Counter(batches=n) for n in range(MAX_SCOPES + 5)}
    desk.counts.weeks[desk.engine.clock()] = scopes
    answer = desk.ask("tune.read")
    assert len(answer["result"]["scopes"]) == MAX_SCOPES
    assert len(json.dumps(answer)) < ANSWER_BYTES
    assert min(each["batches"] for each in answer["result"]["scopes"].values()) == 5


def test_each_week_moves_the_wait_by_a_factor_until_it_is_the_recommended_one(desk: Desk) -> None:
    best = recommend(count(desk), cut_share=0.2)
    assert not isinstance(best, str)
    waits = [silence_of(desk)]
    while moves := tune(desk):
        assert moves == [
            {"scope": "agent:acme/sales", "platform": "whatsapp", "before": waits[-1], "after": silence_of(desk)}
        ]
        waits.append(silence_of(desk))
    assert waits == [2_000, 3_000, best[0]]
    assert silence_of(desk, "acme/telegram/1/u") == 2_000
    assert silence_of(desk, agent=None) == 2_000


def test_a_move_is_stored_by_its_name_logged_and_published(desk: Desk) -> None:
    count(desk, "a%2Fb/whatsapp/")
    desk.table.put("tenant:a%2Fb", {"maxMessages": 5}, by=ME, at_ms=1, expected_version=None)
    answer = Operations(desk.operations(), desk.telemetry).answer(
        {"operation": "tune.weekly", "by": "tune", "scope": "stage", "cutShare": 0.2}, request_id=REQUEST
    )
    move = {"scope": "tenant:a%2Fb", "platform": "whatsapp", "before": 2_000, "after": 3_000}
    assert answer["result"] == {"moves": [move]}
    stored = desk.table.items["tenant:a%2Fb"]
    override = {"whatsapp": {"silenceMs": 3_000, "typingInferenceMs": 0}}
    assert (stored.updated_by, stored.rules) == ("tune", {"maxMessages": 5, "platformOverrides": override})
    assert ("info", "wait tuned", move) in desk.telemetry.lines
    (event,) = [json.loads(detail) for kind, detail in desk.bus.published if kind == ACTED]
    assert (event["operation"], event["by"], event["moves"]) == ("tune.weekly", "tune", [move])


@pytest.mark.parametrize("deployed", [0, 700, 2_000, 9_000])
def test_a_move_stays_within_its_bounds(deployed: int, desk: Desk) -> None:
    count(desk)
    desk.table.put("stage", {"silenceMs": deployed}, by=ME, at_ms=1, expected_version=None)
    for cut_share in (0.05, 0.2, 0.35, 0.9):
        for _ in range(6):
            before = silence_of(desk)
            tune(desk, cut_share)
            after = silence_of(desk)
            assert after >= MIN_SILENCE_MS
            assert after == MIN_SILENCE_MS or before / MAX_FACTOR - 1 <= after <= before * MAX_FACTOR
        assert silence_of(desk) <= WITHIN_MS


def test_nothing_moves_on_fewer_than_300_turns(desk: Desk) -> None:
    count(desk, turns=MIN_BATCHES - 1)
    count(desk, turns=5_000, weeks_ago=4)
    assert tune(desk) == []
    count(desk, turns=1, weeks_ago=3)
    assert len(tune(desk)) == 1


@pytest.mark.parametrize("rules", [{"wait": "window"}, {"wait": "learned", "learned": MODEL}, {"priority": "vip"}])
def test_a_scope_that_waits_in_another_way_is_left_alone(rules: Json, desk: Desk) -> None:
    count(desk)
    desk.table.put("tenant:acme", rules, by=ME, at_ms=1, expected_version=None)
    assert tune(desk) == []
    assert "agent:acme/sales" not in desk.table.items


@pytest.mark.parametrize("rules", [{"maxWaitMs": 2_500}, {"platformOverrides": "edited by hand"}])
def test_a_scope_whose_rules_cannot_be_changed_does_not_hold_up_the_others(rules: Json, desk: Desk) -> None:
    count(desk, "acme/whatsapp/", turns=3_000)
    count(desk, "beta/whatsapp/", turns=2_000)
    desk.table.put("tenant:acme", rules, by=ME, at_ms=1, expected_version=None)
    assert [each["scope"] for each in tune(desk)] == ["tenant:beta"]
    assert ("warning", "wait not tuned", "acme/whatsapp/") in [
        (level, line, fields.get("scope")) for level, line, fields in desk.telemetry.lines
    ]


def test_a_run_stops_before_lambda_ends_it(desk: Desk) -> None:
    count(desk)
    desk.time_left_ms = MIN_MS_LEFT_TO_RETIME
    assert tune(desk) == []


@pytest.mark.parametrize(
    ("platform", "account", "silence_ms"), [("custom", "email:1", 120_000), ("twilio", "whatsapp:+1", 1_000)]
)
def test_a_channel_behind_a_platform_keeps_its_own_wait_unless_a_rule_sets_one_for_all(
    platform: str, account: str, silence_ms: int, desk: Desk
) -> None:
    desk.deployed = {}
    count(desk, f"acme/{platform}/")
    assert tune(desk) == []
    assert silence_of(desk, f"acme/{platform}/{account}/u", agent=None) == silence_ms
    desk.deployed = {"silenceMs": 2_000}
    assert len(tune(desk)) == 1


def test_a_pass_over_silent_customers_is_logged_only_if_it_fails_and_then_with_the_reason(desk: Desk) -> None:
    request = {"operation": "idle.pass", "by": "schedule"}
    Operations({"idle.pass": lambda _fields: {}}, desk.telemetry).answer(request, request_id=REQUEST)
    assert desk.telemetry.lines == []

    def fail(_fields: Json) -> Json:
        raise SendFailed("list steps: AccessDeniedException")

    Operations({"idle.pass": fail}, desk.telemetry).answer(request, request_id=REQUEST)
    assert desk.telemetry.lines == [("warning", "idle pass failed", {"reason": "list steps: AccessDeniedException"})]
