"""The counts of gaps are those of a brute-force replay, and counting costs no call between a batch and its event."""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from fakeredis import FakeServer, FakeStrictRedis
from hypothesis import given, settings
from hypothesis import strategies as st

from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.errors import SendFailed
from message_buffer.events.emission import Emission
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import DAY_MS, HOUR_MS, MINUTE_MS
from message_buffer.messages.message import Message, encode
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.tuning.counts import FOLDS, MAX_SCOPES, MAX_TURNS, GapCounts, counts_of, gaps_of
from message_buffer.tuning.curve import BINS_MS, Counts, curve, field, going_on, mean_wait_ms
from message_buffer.tuning.tuning_table import COUNTS_KEPT_MS, TURNS, TuningTable, week_of
from message_buffer.tuning.turns import UNKNOWN, Gap
from tests.support.engine import Engine, ManualClock
from tests.support.fakes import FakeBatchQueues, FakeBus, FakeFunctions, FakeObjects, FakeQueue, RecordedTelemetry
from tests.support.fakes import valkey_lane as lane_of
from tests.support.table_service import empty
from tests.support.takeovers import FakeTakeovers
from tests.support.window import AMPLE

ANN = "acme/whatsapp/1065/491"
ASSUMED_MS = 2_000
RULES = Rules(silence_ms=1_000, typing_inference_ms=3_000, max_wait_ms=200_000, max_messages=5)
MAX_GAP_MS = BINS_MS[-1]


class FakeTable(TuningTable):
    """Keeps the sums in memory, and fails `failures` times."""

    def __init__(self) -> None:
        super().__init__("tuning")
        self.kept: dict[str, Counter[str]] = {}
        self.calls: list[str] = []
        self.kept_turns: list[str] = []
        self.failures = 0
        self.refuses_turns = False

    def keep_turns(self, turns: Sequence[str], *, hour: int) -> None:
        if self.refuses_turns:
            raise SendFailed("keep turns: Throttling")
        self.calls.append(TURNS)
        self.kept_turns = [*turns]

    def add(self, scope: str, counts: Counts, *, now_ms: int) -> Counts:
        self.calls.append(scope)
        if self.failures:
            self.failures -= 1
            raise SendFailed("add counts: Throttling")
        self.kept.setdefault(scope, Counter()).update(counts)
        return self.kept[scope]


class Scene:
    """A Valkey lane, and a processor that counts the gaps of its batches."""

    def __init__(self, engine: Engine, table: TuningTable) -> None:
        self.engine, self.clock = engine, engine.clock
        self.bus, self.queues, self.telemetry = FakeBus(), FakeBatchQueues(), RecordedTelemetry()
        self.lane: ValkeyLane = lane_of(engine.store, FakeFunctions(), self.telemetry)
        self.counts = GapCounts(table, self.telemetry, clock=engine.clock)
        emission = Emission(
            self.bus, FakeObjects(), FakeQueue(), self.telemetry,
            queues=self.queues, max_event_bytes=256_000, max_attempts=20, gap_counts=self.counts, clock=engine.clock,
            idle=FakeTakeovers(),
        )  # fmt: skip
        self.processor = ConversationProcessor(
            lane=self.lane, emission=emission, telemetry=self.telemetry, clock=engine.clock, random=lambda: 0.0
        )
        self.sent: dict[str, int] = {}

    def send(self) -> None:
        message = Message(
            id=f"m{len(self.sent)}", text="hidden", author="491", platform="whatsapp", received_at=self.clock()
        )
        self.sent[message.id] = self.clock()
        self.lane.buffer_message(ANN, message.id, payload=encode(message), timing=RULES.timing)

    def pass_time(self, ms: int, *, fails: bool = False) -> None:
        until_ms = self.clock() + ms
        while True:
            for conversation in self.engine.claim():
                self.bus.failures = [SendFailed("put event: Throttling")] if fails else []
                fails = False
                self.processor.process(conversation, AMPLE)
            if self.clock() >= until_ms:
                return
            pending = self.engine.keys().get("{b0}:pending")
            next_ms = min(map(int, pending.pairs.values())) if pending else until_ms
            self.clock.advance(max(min(next_ms, until_ms) - self.clock(), 1))


def engine_of_fakes() -> Engine:
    client = FakeStrictRedis(server=FakeServer())
    return Engine(client, client)


# -- what is counted ---------------------------------------------------------------------------------------


class Act(NamedTuple):
    after_ms: int
    what: str  # `write`, `reply`, `fail`: the first attempt of the next batch fails


AFTER_MS = st.one_of(
    st.integers(1, 5_000), st.integers(1, 30_000), st.sampled_from((119_999, 120_000, 120_001, 150_000))
)
ACTS = st.lists(st.builds(Act, AFTER_MS, st.sampled_from(("write",) * 5 + ("reply",) * 3 + ("fail",))), max_size=40)


def bins(kind: str, gaps_ms: list[int]) -> Counter[str]:
    """Count the gaps by bin, with a linear search."""
    return Counter(f"{kind}{next(n for n, edge in enumerate(BINS_MS) if gap <= edge):02}" for gap in gaps_ms)


def replayed(events: list[Json], sent: dict[str, int], replies: list[tuple[int, int]]) -> Counter[str]:
    """Return the expected counts of these events. Each of `replies` is a time, and how many batches had been taken
    by then."""
    went_on, censored, waits, resolved = list[int](), list[int](), list[int](), 0
    ends = [0, *(sent[event["messages"][-1]["id"]] for event in events)]
    for number, event in enumerate(events, start=1):
        noted = 0
        for at_ms, batches in replies:
            # A reply is noted unless another one is noted already that came after the last batch.
            if 0 < batches < number and at_ms > ends[batches] >= noted:
                noted = at_ms
        if event["attempt"] > 1:
            continue
        times = [sent[message["id"]] for message in event["messages"]]
        wait_ms, before_ms = event["metadata"]["appliedWaitMs"], ends[number - 1]
        waits.append(wait_ms)
        resolved += number > 1
        replied_ms = noted if noted or number == 1 else before_ms + wait_ms + ASSUMED_MS
        for earlier, later in pairwise([before_ms, *times] if number > 1 else times):
            watched_ms = replied_ms - earlier if replied_ms > earlier else MAX_GAP_MS + 1
            if later - earlier < watched_ms and later - earlier <= MAX_GAP_MS:
                went_on.append(later - earlier)
            else:
                censored.append(min(watched_ms, MAX_GAP_MS))
    sums = {"batches": len(waits), "waited_ms": sum(waits), "resolved": resolved}
    return bins("g", went_on) + bins("c", censored) + bins("e", waits) + Counter(sums)


@settings(max_examples=60, deadline=None)
@given(acts=ACTS)
def test_the_counts_are_those_of_a_replay_of_the_history(acts: list[Act]) -> None:
    table, replies, fails = FakeTable(), list[tuple[int, int]](), False
    scene = Scene(engine_of_fakes(), table)
    for act in acts:
        before = len(scene.bus.published)
        scene.pass_time(act.after_ms, fails=fails)
        fails = fails and len(scene.bus.published) == before
        if act.what == "write":
            scene.send()
        elif act.what == "reply":
            scene.lane.note_reply(ANN, at_ms=scene.clock())
            # A batch whose first attempt failed is taken, and not yet emitted.
            taken = scene.engine.store.peek_conversation(ANN).batch_id is not None
            replies.append((scene.clock(), len(scene.bus.published) + taken))
        fails = fails or act.what == "fail"
    scene.pass_time(400_000, fails=fails)
    scene.clock.advance(MINUTE_MS)
    scene.counts.write(lambda: True)
    expected = replayed([json.loads(detail) for _, detail in scene.bus.published], scene.sent, replies)
    assert +table.kept.get("*", Counter()) == expected
    assert table.kept.get("acme/whatsapp/", Counter()) == table.kept.get("*", Counter())


def taken_of(*arrivals: int, previous_at_ms: int | None = None, replied_at_ms: int | None = None, **more: Any) -> Any:
    facts = {"batch_id": "b", "attempt": 1, "generation": 1, "flush_reason": "silence", "rule": "silenceMs", **more}
    return BatchTaken(
        first_at_ms=arrivals[0], last_at_ms=arrivals[-1], due_at_ms=arrivals[-1] + 1_000, applied_wait_ms=1_000,
        payloads=[], previous_at_ms=previous_at_ms, replied_at_ms=replied_at_ms, **facts,
    )  # fmt: skip


def messages_of(*arrivals: int, **fields: object) -> list[Json]:
    return [{"receivedAt": at, "author": "491", "text": "yes", **fields} for at in arrivals]


@pytest.fixture
def table() -> FakeTable:
    return FakeTable()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def counting(table: TuningTable, clock: Callable[[], int]) -> GapCounts:
    return GapCounts(table, RecordedTelemetry(), clock=clock)


def count(counts: GapCounts, *, conversation: str = ANN, agent: str | None = None, **more: Any) -> None:
    counts.add(conversation, taken_of(1_000, 3_000, **more), messages_of(1_000, 3_000), agent=agent)


@pytest.mark.parametrize(
    ("gap_ms", "replied_ms", "counter"),
    [
        (5_000, 3_000, field("c", 3_000)),
        (5_000, 6_000, field("g", 5_000)),
        (5_000, 5_000, field("c", 5_000)),
        (5_000, -1, field("g", 5_000)),
        (5_000, None, field("c", 1_000 + ASSUMED_MS)),
        (MAX_GAP_MS, -1, field("g", MAX_GAP_MS)),
        (MAX_GAP_MS + 1, -1, field("c", MAX_GAP_MS)),
    ],
    ids=[
        "went on after the reply", "before it", "at the same time", "no reply since then, though there was one earlier",
        "no reply was ever noted, so it is assumed", "a long gap", "too long a gap",
    ],
)  # fmt: skip
def test_a_gap_is_censored_when_a_reply_was_sent(gap_ms: int, replied_ms: int | None, counter: str) -> None:
    replied_at_ms = None if replied_ms is None else 1_000_000 + replied_ms
    taken = taken_of(1_000_000 + gap_ms, previous_at_ms=1_000_000, replied_at_ms=replied_at_ms)
    assert counts_of(taken, gaps_of(taken, messages_of(1_000_000 + gap_ms))) == {
        "batches": 1, "waited_ms": 1_000, "e04": 1, "resolved": 1, counter: 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("conversation", "messages", "attempt"),
    [
        ("message-buffer-trial/generic/canary/1", messages_of(1, 2), 1),
        (ANN, messages_of(1, 2), 2),
        (ANN, [*messages_of(1), *messages_of(2, author="492")], 1),
        ("acme/whatsapp/1065/group", messages_of(1, 2, chat={"type": "group"}), 1),
    ],
    ids=["a trial", "a later attempt", "two authors", "a group"],
)
def test_what_is_no_turn_of_one_author_is_not_counted(
    table: FakeTable, clock: ManualClock, conversation: str, messages: list[Json], attempt: int
) -> None:
    counts = counting(table, clock)
    counts.add(conversation, taken_of(1, 2, attempt=attempt), messages, agent=None)
    counts.write(lambda: True)
    assert table.calls == []


def test_an_author_of_a_group_who_has_a_conversation_alone_is_counted(table: FakeTable, clock: ManualClock) -> None:
    counts, messages = counting(table, clock), messages_of(1, 2, chat={"type": "group"})
    conversation = "acme/whatsapp/1065/group%2F491"
    counts.add(conversation, taken_of(1, 2), messages, agent="sales/eu")
    counts.write(lambda: True)
    assert table.calls == ["*", "acme/whatsapp/sales%2Feu"]


# -- what it costs -----------------------------------------------------------------------------------------


def test_no_call_is_made_between_a_batch_and_its_event_and_one_a_scope_in_a_minute(
    table: FakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, made = Scene(engine_of_fakes(), table), list[str]()
    run = scene.engine.store._connection.run

    def noted(script: Any, *more: Any) -> Any:
        made.append(script.name)
        return run(script, *more)

    monkeypatch.setattr(scene.engine.store._connection, "run", noted)
    table.calls = made
    scene.bus.on_publish = lambda: made.append("publish")
    of_a_batch = ["take_batch", "publish", "complete_batch"]
    writes = ["*", "acme/whatsapp/"]
    later = [*of_a_batch, *writes, TURNS]
    for after_ms, expected in ((0, of_a_batch + writes), (10_000, of_a_batch), (MINUTE_MS, later)):
        scene.pass_time(after_ms)
        scene.send()
        scene.clock.advance(5_000)
        scene.engine.claim()
        made.clear()
        scene.processor.process(ANN, AMPLE)
        assert made == expected


def test_a_failed_write_is_logged_and_keeps_the_counts(table: FakeTable, clock: ManualClock) -> None:
    telemetry = RecordedTelemetry()
    counts = GapCounts(table, telemetry, clock=clock)
    count(counts)
    table.failures = 1
    counts.write(lambda: True)
    count(counts)
    counts.write(lambda: True)
    assert table.calls == ["*"], "the next try comes a minute later"
    assert table.kept == {}
    clock.advance(MINUTE_MS)
    counts.write(lambda: True)
    assert table.calls[-1] == "*", "what failed comes last"
    assert {scope: sums["batches"] for scope, sums in table.kept.items()} == {"*": 2, "acme/whatsapp/": 2}
    assert telemetry.said("counts not written") == [{"reason": "add counts: Throttling"}]
    assert telemetry.counts == {"GoingOnRate": round(100 * going_on(table.kept["*"]).share)}


def test_a_write_ends_when_the_time_does_and_the_next_one_writes_the_rest(table: FakeTable, clock: ManualClock) -> None:
    counts = counting(table, clock)
    for number in range(5):
        count(counts, agent=f"a{number}")
    counts.write(lambda: len(table.calls) < 3)
    assert len(table.calls) == 3
    clock.advance(MINUTE_MS)
    counts.write(lambda: True)
    assert {scope: sums["batches"] for scope, sums in table.kept.items()} == {
        "*": 5, **{f"acme/whatsapp/a{number}": 1 for number in range(5)},
    }  # fmt: skip


def test_few_scopes_are_counted_between_two_writes_and_all_batches_in_those_of_the_stage(
    table: FakeTable, clock: ManualClock
) -> None:
    counts = counting(table, clock)
    for writes in (1, 2):
        for number in range(2 * MAX_SCOPES):
            count(counts, agent=f"a{number}")
        counts.write(lambda: True)
        assert len(table.calls) == writes * MAX_SCOPES
        clock.advance(MINUTE_MS)
    assert table.kept["*"]["batches"] == 4 * MAX_SCOPES


@pytest.fixture
def real(database: Any) -> TuningTable:
    keys = {"scope": "HASH", "week": "RANGE"}
    if "tuning" not in database.list_tables()["TableNames"]:
        database.create_table(
            TableName="tuning",
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
            BillingMode="PAY_PER_REQUEST",
        )
    empty(database, "tuning")
    return TuningTable("tuning")


def test_the_counts_of_two_instances_add_up_and_each_week_has_its_own(
    real: TuningTable, clock: ManualClock, database: Any
) -> None:
    first, second = counting(real, clock), counting(real, clock)
    for instance in (first, second, second):
        count(instance, previous_at_ms=500, replied_at_ms=700)
    first.write(lambda: True)
    second.write(lambda: True)
    found = {each["scope"]["S"]: each for each in database.scan(TableName="tuning")["Items"]}
    assert found.keys() == {"*", "acme/whatsapp/"}
    expires = str((clock() + COUNTS_KEPT_MS) // 1_000)
    for item in found.values():
        assert item.pop("scope")
        assert item.pop("week") == {"S": week_of(clock())}
        assert {name: value["N"] for name, value in item.items()} == {
            "batches": "3", "waited_ms": "3000", "resolved": "3", "e04": "3", "g07": "3", "c00": "3",
            "expires_at": expires,
        }  # fmt: skip
    clock.advance(7 * DAY_MS)
    count(first)
    first.write(lambda: True)
    assert {each["week"]["S"] for each in database.scan(TableName="tuning")["Items"]} == {
        week_of(clock() - 7 * DAY_MS),
        week_of(clock()),
    }


@pytest.mark.parametrize(
    ("date_ms", "week"), [(1_795_132_800_000, "2026-W47"), (1_798_761_600_000, "2026-W53"), (0, "1970-W01")]
)
def test_a_week_is_named_as_iso_8601_does(date_ms: int, week: str) -> None:
    assert week_of(date_ms) == week


def test_the_sums_of_weeks_are_read_by_scope(real: TuningTable, clock: ManualClock) -> None:
    real.add("a/b/", {"g05": 500, "c04": 1_000}, now_ms=clock())
    clock.advance(7 * DAY_MS)
    real.add("a/b/", {"c04": 1_000}, now_ms=clock())
    real.add("*", {"batches": 1_000}, now_ms=clock())
    real.keep_turns([":000 /"], hour=clock() // HOUR_MS)
    sums = real.sums(since_ms=clock() - 7 * DAY_MS)
    assert sums == {"a/b/": {"g05": 500, "c04": 2_000}, "*": {"batches": 1_000}}


# -- the turns -----------------------------------------------------------------------------------------------


def test_each_batch_leaves_its_turn_to_the_next_one(table: FakeTable) -> None:
    scene = Scene(engine_of_fakes(), table)
    for after_ms in (0, 2_500, 130_000, MINUTE_MS):
        scene.pass_time(after_ms)
        scene.send()
    scene.pass_time(5_000)
    fold = crc32(ANN.encode()) % FOLDS
    assert table.kept_turns == [f"{fold} :103 25:103 /30", f"{fold} :103 /30"], "replies are assumed"


def test_turns_are_written_again_when_there_are_a_quarter_more_and_each_hour_begins_anew(
    table: FakeTable, clock: ManualClock
) -> None:
    counts, seen_turns = counting(table, clock), list[int]()
    for number in range(1, 13):
        count(counts, previous_at_ms=-50_000 * number)
        counts.add(ANN, taken_of(1_000, 50_000), messages_of(1_000, 50_000), agent=None)
        counts.write(lambda: True)
        seen_turns.append(len(table.kept_turns))
        clock.advance(MINUTE_MS)
    assert seen_turns == [1, 2, 3, 4, 4, 6, 6, 8, 8, 8, 11, 11]
    clock.advance(HOUR_MS)
    counts.add(ANN, taken_of(1_000, 50_000), messages_of(1_000, 50_000), agent=None)
    counts.write(lambda: True)
    assert len(table.kept_turns) == 1


def test_a_stage_keeps_at_most_a_thousand_turns_of_an_hour(table: FakeTable, clock: ManualClock) -> None:
    counts = counting(table, clock)
    for _ in range(40):
        arrivals = range(1_000, 50_000 * 50, 50_000)
        counts.add(ANN, taken_of(*arrivals), messages_of(*arrivals), agent=None)
    counts.write(lambda: True)
    assert len(table.kept_turns) == MAX_TURNS


def test_of_two_instances_the_larger_sample_is_kept_and_the_newest_hours_are_read_first(
    real: TuningTable, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = clock() // HOUR_MS
    for turns in (["1 :000 /"] * 2, ["2 :000 /"] * 3, ["3 :000 /"]):
        real.keep_turns(turns, hour=hour)
    real.keep_turns(["4 :000 /"], hour=hour - 1)
    real.keep_turns(["5 :000 /"], hour=hour - 5 * 7 * 24)
    since_ms = clock() - 3 * 7 * DAY_MS
    assert sorted(real.turns(since_ms=since_ms)) == ["2 :000 /"] * 3 + ["4 :000 /"]
    monkeypatch.setattr("message_buffer.tuning.tuning_table.MAX_TURNS_READ", 1)
    assert len(real.turns(since_ms=since_ms)) < 4


def test_the_newest_hours_of_each_week_are_read_first(real: TuningTable) -> None:
    monday = 1_795_392_000_000 // HOUR_MS
    hours = [monday - 1, *range(monday, monday + 7 * 24, 10), monday + 7 * 24]
    for hour in hours:
        real.keep_turns([f"{hour} :000 /"], hour=hour)
    assert real.turns(since_ms=(monday - 1) * HOUR_MS) == [f"{hour} :000 /" for hour in reversed(hours)]


def test_turns_that_cannot_be_written_are_logged(table: FakeTable, clock: ManualClock) -> None:
    telemetry = RecordedTelemetry()
    counts = GapCounts(table, telemetry, clock=clock)
    count(counts, previous_at_ms=-50_000)
    counts.add(ANN, taken_of(1_000, 50_000), messages_of(1_000, 50_000), agent=None)
    table.refuses_turns = True
    counts.write(lambda: True)
    assert table.kept_turns == []
    assert telemetry.said("counts not written") == [{"reason": "keep turns: Throttling"}]


def test_the_stage_has_all_batches_even_if_a_write_was_given_up_when_it_was_full(
    table: FakeTable, clock: ManualClock
) -> None:
    counts = counting(table, clock)
    for number in range(MAX_SCOPES):
        counts.add(f"acme/sms/1/{number}", taken_of(1_000), messages_of(1_000), agent=f"a{number}")
    counts.write(lambda: not table.calls)
    assert table.calls == ["*"]
    clock.advance(MINUTE_MS)
    count(counts)
    counts.write(lambda: True)
    assert table.kept["*"]["batches"] == MAX_SCOPES + 1


@pytest.mark.parametrize("rule", ["hold", "resume"])
def test_a_batch_on_hold_has_gaps_but_no_wait(rule: str) -> None:
    taken = taken_of(5_000, 7_000, previous_at_ms=1_000, replied_at_ms=500, rule=rule)
    taken = dataclasses.replace(taken, applied_wait_ms=12 * HOUR_MS)
    held = counts_of(taken, gaps_of(taken, messages_of(5_000, 7_000)))
    assert held == {"batches": 1, "resolved": 1, field("g", 4_000): 1, field("g", 2_000): 1}
    waits = Counter({"batches": 1, "resolved": 1, "waited_ms": 3_000, field("e", 3_000): 1, field("g", 4_000): 10})
    assert mean_wait_ms(waits + Counter(held)) == 3_000
    more = Counter({"batches": 9, field("c", 8_000): 9, "resolved": 9})
    assert going_on(waits + more).share == curve(waits + more)[3_000].share


def test_a_hold_does_not_say_when_the_batch_before_was_emitted() -> None:
    taken = dataclasses.replace(taken_of(90_000, previous_at_ms=1_000, rule="hold"), applied_wait_ms=12 * HOUR_MS)
    assert gaps_of(taken, messages_of(90_000)) == [Gap(89_000, ASSUMED_MS)]


def test_a_gap_inside_a_batch_is_censored_by_the_reply_to_the_batch_before() -> None:
    messages = messages_of(5_000, 5_900, 7_000, 7_500)
    noted = taken_of(5_000, 7_500, previous_at_ms=1_000, replied_at_ms=6_000)
    assert gaps_of(noted, messages) == [Gap(4_000, 5_000), Gap(900, 1_000), Gap(1_100, 100), Gap(500)]
    assumed = taken_of(5_000, 7_500, previous_at_ms=3_500)
    assert gaps_of(assumed, messages)[1:3] == [Gap(900, 1_500), Gap(1_100, 600)]


def test_the_gaps_beside_an_edited_message_are_not_known() -> None:
    messages = messages_of(1_000, 3_000, 4_000, 4_500)
    messages[1]["editedAt"] = 3_000
    assert gaps_of(taken_of(1_000, 4_500), messages) == [None, None, None, Gap(500)]


def test_what_was_written_on_hold_is_no_turn_because_somebody_may_have_answered(
    table: FakeTable, clock: ManualClock
) -> None:
    held = taken_of(1_000, 90_000, rule="hold")
    counts = counting(table, clock)
    assert counts.add(ANN, held, messages_of(1_000, 4_000, 90_000), agent=None) == UNKNOWN
    counts.write(lambda: True)
    assert table.kept_turns == []


def test_a_split_batch_does_not_begin_a_turn_if_the_turn_of_its_first_part_is_not_known(
    table: FakeTable, clock: ManualClock
) -> None:
    counts = counting(table, clock)
    assert counts.add(ANN, taken_of(1_000, 2_000, previous_at_ms=2_000), messages_of(2_000), agent=None) == UNKNOWN


def test_an_edit_which_comes_later_than_the_message_makes_no_gap() -> None:
    taken = taken_of(1_000, 4_000)
    assert counts_of(taken, gaps_of(taken, messages_of(1_000, 9_000, 4_000)))[field("g", -5_000)] == 0
    assert gaps_of(taken, messages_of(1_000, 9_000)) == [None, None], "the last message came at 4 s"
