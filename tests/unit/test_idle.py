"""The customers who fell silent: a property of any history of both lanes, and what the events cost."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from fakeredis import FakeServer, FakeStrictRedis
from hypothesis import example, given
from hypothesis import strategies as st

from lambdas.conversation_processor.service import ConversationProcessor
from lambdas.gate.service import Gate
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.events.emission import Emission
from message_buffer.events.idle import IDLE, MAX_STEP_EARLY_MS, IdleTable
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.holds import NO_END_MS
from message_buffer.lanes.outcomes import LaneName
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import DAY_MS, MINUTE_MS, REMEMBERED_MS
from message_buffer.messages.message import Message, encode
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.takeovers.takeover import Takeover
from tests.support.engine import Engine
from tests.support.fakes import FakeBus, FakeFunctions, FakeObjects, FakeQueue, NoCounts, RecordedTelemetry, valkey_lane
from tests.support.takeovers import make_takeovers_table
from tests.support.window import AMPLE, MAX_ATTEMPTS, WindowScene, make_message_table

NAME = "takeovers"
ANN = "acme/whatsapp/106540352242922/4917012345678"
RULES = Rules(silence_ms=1_000, typing_inference_ms=0)
STEPS = {"none": None, "one": [60_000], "two": [90_000, 150_000], "days": [2 * DAY_MS]}
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.conversation.idle.json").read_text())


class Killed(BaseException):
    """Lambda kills the function's process."""


class Record(NamedTuple):
    """What happened: a `message`, a `reply` that was noted, a `cancel`, or a published event."""

    at_ms: int
    what: str
    event: Json


class Bus(FakeBus):
    def __init__(self, scene: "Scene") -> None:
        super().__init__()
        self._scene = scene

    def publish(self, detail_type: str, detail: str) -> None:
        self._scene.write()
        super().publish(detail_type, detail)
        self._scene.note(detail_type, json.loads(detail))
        self._scene.write()


class Table(IdleTable):
    """The real table, whose caller may be killed before and after each write."""

    def __init__(self, scene: "Scene") -> None:
        super().__init__(NAME)
        self._scene = scene

    def _asked(self, doing: str, call: str, request: dict[str, Any]) -> Any:
        self._scene.write()
        done = super()._asked(doing, call, request)
        self._scene.write()
        return done

    def _transact(self, doing: str, writes: Any) -> bool:
        self._scene.write()
        done = super()._transact(doing, writes)
        self._scene.write()
        return done


class Scene:
    """A Valkey lane and its fallback, whose emissions begin steps, with a pass that looks into both."""

    tick_ms = 5_000
    """How often the processors work."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.clock, self.telemetry = engine, engine.clock, RecordedTelemetry()
        self.kill_at, self.records, self.sent = 0, list[Record](), 0
        self.steps: dict[str, list[int] | None] = {}
        self.window = WindowScene(engine.clock)
        self.bus, self.idle = Bus(self), Table(self)
        self.window.bus = self.bus  # type: ignore[assignment]
        self.window.idle = self.idle
        self.window.processor = self.window.new_processor()
        self.valkey = valkey_lane(engine.store, FakeFunctions(), self.telemetry)
        self.lanes: list[ValkeyLane | DynamoDbLane] = [self.valkey, self.window.lane]
        self.letters = FakeQueue()
        self.emission = Emission(
            self.bus, FakeObjects(), self.letters, self.telemetry, queues=self.window.queues, idle=self.idle,
            gap_counts=NoCounts(), max_event_bytes=256_000, max_attempts=MAX_ATTEMPTS, clock=self.clock,
        )  # fmt: skip
        self.processor = ConversationProcessor(
            lane=self.valkey, emission=self.emission, telemetry=self.telemetry, clock=self.clock, random=lambda: 0.0
        )

    def write(self) -> None:
        """Kill the caller if its time has come."""
        self.kill_at -= 1
        if self.kill_at == 0:
            raise Killed

    def note(self, what: str, event: Json | None = None) -> None:
        self.records.append(Record(self.clock(), what, event or {}))

    def repeated(self, call: Callable[[], Any]) -> Any:
        """Call again if a call is killed, or a minute later if a killed processor's lock is in its way."""
        while True:
            try:
                return call()
            except Killed:
                continue
            except StoreUnavailable:
                self.pass_time(MINUTE_MS)

    def message(self, steps: str, lane: LaneName = "valkey") -> None:
        self.clock.advance(5)
        self.sent += 1
        name = f"m{self.sent}"
        self.steps[name] = STEPS[steps]
        body = Message(
            id=name, text="x", platform="whatsapp", received_at=self.clock(), agent="sales", idle_after_ms=STEPS[steps]
        )
        self.lanes[lane == "dynamodb"].buffer_message(ANN, name, payload=encode(body), timing=RULES.timing)
        self.note("message")

    def gate(self, verb: str, **fields: Any) -> Json:
        # A new instance each time, because an instance looks only twice a minute whether the stage has any steps.
        self.idle._looked_at_ms = 0
        gate = Gate(self.valkey, self.bus, self.idle, dynamodb_lane=self.window.lane, has_queue=True, clock=self.clock)
        answer: Json = self.repeated(lambda: getattr(gate, verb)({"by": "bot", "conversation": ANN, **fields}))
        return answer

    def reply(self) -> None:
        lane = max(self.lanes, key=lambda each: each.peek_conversation(ANN).last_at_ms or 0)
        generation = lane.generation_and_holds(ANN).generation
        asked = {
            "generation": generation,
            "lane": "dynamodb" if lane is self.window.lane else "valkey",
            "sending": True,
        }
        if generation and not self.gate("ask", **asked)["holds"]:
            self.note("reply")

    def cancel(self, how: str) -> None:
        if how == "hold":
            self.gate("hold", holdMs=20_000)
        elif how == "handoff":
            self.gate("hand_off", holdMs=20_000)
        elif how == "complete":
            self.gate("complete")
        elif how == "forget":
            self.repeated(self._forget)
            assert self.idle.count(ANN) == 0
        else:
            self.repeated(self._stop)
        self.note("cancel")

    def _forget(self) -> None:
        for lane in self.lanes:
            lane.forget_conversation(ANN)
        self.idle.forget(ANN)

    def _stop(self) -> None:
        for lane in self.lanes:
            lane.cancel_buffer(ANN)
        self.idle.end_steps(ANN)

    def work(self) -> None:
        """Let the processors work, and make a pass if it is time, in processes of their own."""
        for conversation in self.engine.claim():
            with suppress(Killed):
                self.processor.process(conversation, AMPLE)
        with suppress(Killed):
            self.window.run()
        if self.clock() % MINUTE_MS < self.tick_ms:
            with suppress(Killed):
                self.run_pass()

    def run_pass(self) -> None:
        self.idle.run_pass(self.lanes, self.bus, self.telemetry, clock=self.clock)

    def pass_time(self, ms: int) -> None:
        until_ms = self.clock() + ms
        self.work()
        while self.clock() < until_ms:
            self.clock.advance(min(self.tick_ms - self.clock() % self.tick_ms, until_ms - self.clock()))
            self.work()

    def events(self, what: str = IDLE) -> list[Json]:
        return [each.event for each in self.records if each.what == what]

    def idle_steps(self) -> list[int]:
        return [each["step"] for each in self.events()]


def engine_of_fakes() -> Engine:
    client = FakeStrictRedis(server=FakeServer())
    return Engine(client, client)


@pytest.fixture
def scene(database: Any) -> Scene:
    make_message_table(database)
    make_takeovers_table(database, NAME)
    return Scene(engine_of_fakes())


# -- any history -------------------------------------------------------------------------------------------


class Act(NamedTuple):
    after_ms: int
    what: str
    kill_at: int
    """The function's next write at which it is killed, counted with both sides of each; 0 if it is not killed."""


LANES: tuple[LaneName, ...] = ("valkey", "dynamodb")
WHAT = st.sampled_from(
    [f"message {steps} {lane}" for steps in ("none", "one", "two") for lane in LANES] * 2
    + ["message two valkey", "message two dynamodb", "reply", "reply", "reply", "nothing"]
    + ["hold", "handoff", "complete", "forget", "stop"]
)
AFTER_MS = st.one_of(st.integers(1, 3_000), st.integers(1, 200_000), st.sampled_from([60_000, 90_000, 150_000]))
ACTS = st.lists(st.builds(Act, AFTER_MS, WHAT, st.one_of(st.just(0), st.integers(0, 12))), max_size=12)


def require_no_false_step(records: list[Record]) -> None:
    """Every step comes after its batch, in order and not too early, and nothing has ended the steps before it."""
    ids: dict[Any, str] = {}
    for place, record in enumerate(records):
        if record.what != IDLE:
            continue
        jsonschema.Draft4Validator(SCHEMA).validate(record.event)
        last_at_ms, step = record.event["lastMessageAt"], record.event["step"]
        assert ids.setdefault((last_at_ms, step), record.event["id"]) == record.event["id"]
        assert step == 1 or (last_at_ms, step - 1) in ids, "a step was left out"
        first = next(
            n for n, each in enumerate(records)
            if each.what == "messages.batch.ready" and each.event["metadata"]["lastMessageAt"] == last_at_ms
        )  # fmt: skip
        between = records[first:place]
        assert not any(each.what == "message" and each.at_ms > last_at_ms for each in between), "a newer message came"
        assert not any(each.what == "cancel" for each in between), "the steps were ended"
        batches = [each for each in between if each.what == "messages.batch.ready"]  # each attempt counts anew
        emitted = [each.at_ms for each in batches if each.event["metadata"]["lastMessageAt"] == last_at_ms]
        since_ms = max([*emitted, *(each.at_ms for each in between if each.what == "reply")])
        # A reply that came after the step was published once belongs to the next step.
        is_repeat = any(each.what == IDLE and each.event["id"] == record.event["id"] for each in between)
        waits = record.event["steps"], step
        wait_ms = {(1, 1): 60_000, (2, 1): 90_000, (2, 2): 150_000}[waits]
        assert is_repeat or record.at_ms >= since_ms + wait_ms - MAX_STEP_EARLY_MS, "too early"


def require_the_last_steps(scene: Scene, *, is_exact: bool) -> None:
    """Require that each step after the last message came near its time, unless something ended them."""
    arrivals = [each.at_ms for each in scene.records if each.what == "message"]
    batches = [each for each in scene.records if each.what == "messages.batch.ready"]
    batches = [each for each in batches if each.event["metadata"]["lastMessageAt"] >= max(arrivals, default=0)]
    if not batches:
        return
    event = batches[0].event
    steps, due_ms = (
        scene.steps[event["messages"][-1]["id"]],
        (event["metadata"]["firstMessageAt"] + event["metadata"]["waitMs"]),
    )
    if not steps or any(each.what == "cancel" and each.at_ms >= due_ms for each in scene.records):
        return
    if any("handoff" in each.event for each in batches):
        return
    last_at_ms = event["metadata"]["lastMessageAt"]
    found = [each for each in scene.records if each.what == IDLE and each.event["lastMessageAt"] == last_at_ms]
    assert {each.event["step"] for each in found} == {*range(1, len(steps) + 1)}, "a step is missing"
    replies = [each.at_ms for each in scene.records if each.what == "reply"]
    if is_exact:
        for each in found:
            since_ms = max([batches[-1].at_ms, *(at for at in replies if at <= each.at_ms)])
            assert each.at_ms <= since_ms + steps[each.event["step"] - 1] + MAX_STEP_EARLY_MS + MINUTE_MS, "too late"


@pytest.mark.timeout(300)
@given(acts=ACTS)
@example([Act(1, "message two dynamodb", 4), Act(1_444, "message none valkey", 0), Act(1, "forget", 0)])
def test_each_step_that_is_reached_is_published_and_no_other(database: Any, acts: list[Act]) -> None:
    make_message_table(database)
    make_takeovers_table(database, NAME)
    scene = Scene(engine_of_fakes())
    scene.tick_ms = 20_000  # as few as suffice, because each tick costs milliseconds
    for act in acts:
        scene.pass_time(act.after_ms)
        scene.kill_at = act.kill_at
        verb, *rest = act.what.split()
        if verb == "message":
            scene.message(*rest)  # type: ignore[arg-type]
        elif verb == "reply":
            scene.reply()
        elif verb != "nothing":
            scene.cancel(verb)
    scene.kill_at = 0
    scene.pass_time(900_000)
    require_no_false_step(scene.records)
    require_the_last_steps(scene, is_exact=not any(act.kill_at for act in acts))


# -- one thing at a time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", LANES)
def test_the_steps_count_from_the_emission_and_then_from_the_reply(scene: Scene, lane: LaneName) -> None:
    scene.message("two", lane)
    scene.pass_time(60_000)
    scene.reply()
    scene.pass_time(70_000)
    assert scene.idle_steps() == []
    scene.pass_time(50_000)
    assert scene.idle_steps() == [1]
    scene.pass_time(60_000)
    assert scene.idle_steps() == [1, 2]
    (first, _) = scene.events()
    assert (first["agent"], first["steps"], first["replyUntil"]) == ("sales", 2, scene.records[0].at_ms + DAY_MS)
    scene.pass_time(300_000)
    assert scene.idle_steps() == [1, 2]
    assert not scene.idle.is_used(scene.clock()), "no pass looks at the conversation again"


@pytest.mark.parametrize("how", ["hold", "handoff", "complete", "forget", "stop"])
def test_what_ends_the_steps_ends_them_even_if_the_batch_is_emitted_again(scene: Scene, how: str) -> None:
    scene.message("two")
    scene.pass_time(995)
    scene.kill_at = 4  # after the batch is published, and before it is completed
    scene.pass_time(1_000)
    assert len(scene.events("messages.batch.ready")) == 1
    scene.cancel(how)
    scene.pass_time(600_000)
    assert scene.idle_steps() == []


@pytest.mark.parametrize("how", ["hold", "handoff", "complete", "forget", "stop"])
def test_what_ends_the_steps_ends_them_for_good(scene: Scene, how: str) -> None:
    scene.message("two")
    scene.pass_time(10_000)
    scene.cancel(how)
    scene.pass_time(600_000)
    assert scene.idle_steps() == []


def test_no_step_is_published_while_its_batch_is_still_being_emitted(scene: Scene) -> None:
    scene.message("one")
    scene.pass_time(995)
    scene.kill_at = 2  # after the steps have begun, and before the batch is published
    scene.pass_time(5)
    scene.clock.advance(60_000)
    scene.run_pass()
    assert scene.idle_steps() == []
    scene.pass_time(60_000)
    assert scene.idle_steps() == [1]


@pytest.mark.parametrize("lane", LANES)
def test_the_steps_count_from_the_attempt_that_has_emitted_the_batch(scene: Scene, lane: LaneName) -> None:
    scene.message("one", lane)
    scene.bus.failures = [SendFailed("put event: Throttling")] * 2
    scene.pass_time(1_000)
    scene.clock.advance(70_000)  # no function runs meanwhile
    scene.pass_time(10_000)
    (batch,) = [each for each in scene.records if each.what == "messages.batch.ready"]
    assert batch.at_ms > scene.records[0].at_ms + 60_000
    scene.pass_time(batch.at_ms + 60_000 - MAX_STEP_EARLY_MS - scene.clock() - 1)
    assert scene.idle_steps() == []
    scene.pass_time(120_000)
    assert scene.idle_steps() == [1]


@pytest.mark.parametrize("lane", LANES)
def test_a_batch_that_nobody_got_has_no_steps_until_it_is_redriven(scene: Scene, lane: LaneName) -> None:
    scene.message("one", lane)
    scene.bus.failures = [SendFailed("put event: Throttling")] * MAX_ATTEMPTS
    scene.pass_time(400_000)
    assert scene.idle_steps() == []
    (letter,) = [json.loads(each) for each in [*scene.letters.bodies, *scene.window.letters.bodies]]
    scene.emission.redrive(letter, AMPLE)
    scene.pass_time(120_000)
    assert scene.idle_steps() == [1]


@pytest.mark.parametrize("lane", LANES)
def test_a_message_ends_the_steps_even_if_the_lanes_have_forgotten_it_when_they_come(
    scene: Scene, lane: LaneName
) -> None:
    scene.message("days", lane)
    scene.pass_time(10_000)
    scene.message("none", lane)  # the rule was removed meanwhile
    for _ in range(3 * 24):
        scene.clock.advance(60 * MINUTE_MS - scene.clock() % MINUTE_MS)
        scene.work()
        for each in scene.lanes:
            if scene.clock() - (each.peek_conversation(ANN).last_at_ms or 0) > REMEMBERED_MS:
                each.forget_conversation(ANN)  # this expires
    assert scene.idle_steps() == []


def test_a_run_that_dies_after_an_event_repeats_it_under_the_same_id(scene: Scene) -> None:
    scene.message("one")
    scene.pass_time(30_000)
    scene.kill_at = 2  # after the event is published
    scene.pass_time(120_000)
    first, second = scene.events()
    assert first == second


@pytest.mark.parametrize("lane", LANES)
def test_a_message_that_waits_in_either_lane_ends_the_steps(scene: Scene, lane: LaneName) -> None:
    scene.message("one")
    scene.pass_time(30_000)
    scene.message("none", lane)
    for each in scene.lanes:
        each.hold_buffer(ANN, holder="people", cause="x", hold_ms=1)
    scene.clock.advance(60_000)  # the message is due, and no function has emitted it
    scene.run_pass()
    scene.pass_time(600_000)
    assert scene.idle_steps() == []


def test_a_batch_behind_a_hold_that_is_over_begins_the_steps(scene: Scene) -> None:
    scene.message("one")
    scene.cancel("hold")
    scene.pass_time(120_000)
    assert scene.idle_steps() == [1]


def test_a_completion_leaves_the_steps_after_a_newer_message(scene: Scene) -> None:
    scene.message("one")
    scene.pass_time(10_000)
    scene.gate("complete", at=scene.records[0].at_ms - 1)
    scene.pass_time(120_000)
    assert scene.idle_steps() == [1]


def test_a_conversation_without_the_rule_costs_no_call(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("_asked", "_get", "_transact"):
        monkeypatch.setattr(IdleTable, name, lambda _self, doing, *_rest, **_named: calls.append(doing))
    monkeypatch.setattr(Table, "_asked", IdleTable._asked)
    for lane in LANES:
        scene.message("none", lane)
        scene.pass_time(10_000)
        scene.reply()
    assert len(scene.events("messages.batch.ready")) == 2
    assert calls == []


def test_trials_and_people_s_conversations_have_no_steps(scene: Scene) -> None:
    scene.gate("hand_off", holdMs=20_000)
    scene.message("one")
    scene.pass_time(300_000)
    assert "handoff" in scene.events("messages.batch.ready")[0]
    assert scene.idle_steps() == []


def test_an_item_has_at_most_200_bytes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STEPS, "most", [1_800_001, 3_600_001, 7_200_001, 86_400_001, 604_800_000])
    scene.message("most")
    scene.pass_time(10_000)
    item = scene.idle._get("read", {"conversation": ANN})
    assert {len(item), bytes_of(item) <= 200} == {10, True}


def bytes_of(value: Any) -> int:
    """Return the size of a value as DynamoDB bills it."""
    match value:
        case {"S": str() as text}:
            return len(text.encode())
        case {"N": str() as digits}:
            return len(digits.strip("0")) // 2 + 2
        case {"L": list() as values}:
            return 3 + sum(1 + bytes_of(each) for each in values)
    return sum(len(name) + bytes_of(each) for name, each in value.items())


def test_a_pass_publishes_more_steps_than_a_page_has(scene: Scene) -> None:
    for number in range(30):
        times = {"at": 1, "since": 1, "last": 1, "step": 1}
        scene.idle._put("plant", {"conversation": f"{ANN}{number}", "idle": "yes", "steps": [60_000], **times})
    scene.run_pass()
    assert len(scene.events()) == 30


def test_a_gate_looks_for_steps_twice_a_minute_even_if_the_table_fails(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def fail(_self: object, doing: str, *_rest: object) -> Any:
        looks.append(doing)
        raise SendFailed(f"{doing}: ThrottlingException")

    monkeypatch.setattr(IdleTable, "_pages", fail)
    table = IdleTable(NAME)
    for _ in range(3):
        with suppress(SendFailed):
            table.is_used(scene.clock())
        scene.clock.advance(9_000)
    assert looks == ["list steps"]


def test_a_failure_fails_the_pass_and_leaves_the_steps_to_the_next_one(scene: Scene) -> None:
    scene.message("one")
    scene.pass_time(20_000)
    scene.clock.advance(40_000)
    scene.bus.failures = [SendFailed("put event: Throttling")]
    with pytest.raises(SendFailed):
        scene.run_pass()
    scene.pass_time(60_000)
    assert scene.idle_steps() == [1]


def test_a_batch_is_emitted_even_if_its_steps_cannot_begin(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_rest: Any) -> None:
        raise SendFailed("begin steps: AccessDeniedException")

    monkeypatch.setattr(IdleTable, "_asked", refuse)
    scene.message("one")
    scene.pass_time(30_000)
    (event,) = scene.events("messages.batch.ready")
    assert event["attempt"] == 1
    assert [each["reason"] for each in scene.telemetry.said("steps not begun")] == [
        "begin steps: AccessDeniedException"
    ]


def test_a_takeover_and_the_steps_share_an_item_and_neither_harms_the_other(scene: Scene) -> None:
    scene.gate("hand_off")
    scene.message("one")
    scene.pass_time(100_000)
    kept = scene.idle._get("read", {"conversation": ANN})
    assert "at" not in kept, "people have the conversation"
    scene.gate("hand_back")
    scene.message("one")
    scene.pass_time(10_000)
    assert scene.idle.read(ANN).resumed_at_ms
    scene.gate("hand_off")
    assert scene.idle.read(ANN).is_on(scene.clock() + 365 * DAY_MS)
    assert scene.idle._get("read", {"conversation": ANN})["expires_at"] == kept["expires_at"]
    scene.pass_time(300_000)
    assert scene.idle_steps() == []


def test_an_older_reply_that_is_reported_late_does_not_make_the_step_earlier(scene: Scene) -> None:
    scene.message("two")
    scene.pass_time(10_000)
    since_ms = int(scene.idle._get("read", {"conversation": ANN})["since"]["N"])
    for at_ms in (since_ms + 5_000, since_ms + 1_000, since_ms - 60_000):
        scene.idle.note_reply(ANN, at_ms=at_ms)
    assert int(scene.idle._get("read", {"conversation": ANN})["since"]["N"]) == since_ms + 5_000


def test_a_batch_that_a_takeover_overtook_begins_no_steps_and_keeps_the_takeover(scene: Scene) -> None:
    scene.idle.save(ANN, Takeover(version=1, until_ms=NO_END_MS), now_ms=scene.clock())
    kept = scene.idle._get("read", {"conversation": ANN})
    scene.message("one")
    scene.pass_time(100_000)
    assert scene.idle._get("read", {"conversation": ANN}) == kept


def test_forget_goes_on_with_the_steps_that_an_emission_began_meanwhile(scene: Scene) -> None:
    scene.message("one")
    scene.pass_time(10_000)
    last_at_ms = scene.records[0].at_ms
    scene.idle.forget_steps(ANN, until_ms=last_at_ms - 1)
    assert scene.idle.count(ANN) == 1
    scene.idle.forget_steps(ANN, until_ms=last_at_ms)
    assert scene.idle.count(ANN) == 0
