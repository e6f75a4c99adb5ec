"""Both lanes of a stage with a fallback, and everything that may go wrong between them, on a clock of the test.

DynamoDB is moto's, the scripts run on fakeredis, the services are the real ones. Every request to the table, the queue,
the bus and Valkey passes through one wire. Before or after a request its maker can be killed, be answered with an
error, or be stopped while another actor does something.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, count
from typing import Any, Literal, NamedTuple

from fakeredis import FakeServer, FakeStrictRedis
from redis.exceptions import TimeoutError as NoAnswer

from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.errors import SendFailed, StoreError
from message_buffer.events.emission import Emission, TimeLeft
from message_buffer.lanes.fallback import LaneWithFallback
from message_buffer.lanes.outcomes import BatchTaken, MessageBuffered
from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS as STAGE_SETTINGS
from tests.support.engine import Engine, ManualClock, payload
from tests.support.fakes import NoCounts, valkey_lane
from tests.support.takeovers import FakeTakeovers
from tests.support.window import AMPLE, CONVERSATION, Killed, WindowScene

RULES = Rules(silence_ms=2_000, typing_inference_ms=0, max_wait_ms=8_000)
SETTINGS = STAGE_SETTINGS._replace(token_ms=20_000, claim_ms=20_000)
# However long a history is, its batches are tried again to the end.
MAX_ATTEMPTS = 1_000
INGESTERS = 2
# The script that stores a message, as it is called.
STORING = {load_script("buffer_message").sha, load_script("buffer_message").source}

Role = Literal["ingest", "conversation_processor"]
Cut = Literal["swallowed", "unanswered", "late"]
Do = Literal["kill", "fail"]


class Interruption(NamedTuple):
    """A fault at the nth request of a step."""

    at: int
    when: Literal["before", "after"]
    do: "Do | list[Step]"


class Step(NamedTuple):
    name: str
    args: tuple[Any, ...] = ()
    interruption: Interruption | None = None


class OnItsWay(NamedTuple):
    """A request to Valkey that its sender gave up. It takes effect when it arrives."""

    send: Callable[[], Any]
    is_stop: bool


class Line:
    """A role's connection to Valkey, and the fate of each request on it."""

    def __init__(self, world: "TwoLanes", role: Role) -> None:
        self._world, self._role = world, role

    def execute_command(self, *args: Any) -> Any:
        try:
            return self._send(*args)
        except NoAnswer:
            if self._role == "ingest" and args[1] in STORING:
                self._world.note_lost_answer()
            raise

    def _send(self, *args: Any) -> Any:
        world, send = self._world, partial(self._world.server.execute_command, *args)
        match world.cuts.get(self._role):
            case None:
                return world.scene.wire.call("valkey", send)
            case "late":
                world.on_their_way.append(OnItsWay(send, is_stop=world.is_stopping))
            case "unanswered":
                world.scene.wire.call("valkey", send)
        raise NoAnswer("Timeout reading from socket")

    def close(self) -> None: ...


@dataclass
class _Frame:
    interruption: Interruption | None
    made: list[str] = field(default_factory=list)
    """Requests of this step alone; requests of an interrupting step do not count."""
    is_stop: bool = False
    marked: int | None = None
    """The number of the hand-off mark that the conversation had at the beginning of this step, if it had one."""


@dataclass
class Accepted:
    """A message's first acceptance: which ingester took it, and between which events."""

    lane: str
    ingester: int
    asked: int
    answered: int


@dataclass
class Delivery:
    """A call of an ingester that stores a message."""

    ingester: int
    message_id: str
    is_alone: bool
    """False if the same ingester is in the middle of another call, which is possible only in a model."""


@dataclass
class TwoLanes:
    skew_ms: int = 0
    scene: WindowScene = field(default_factory=WindowScene)
    server: Any = field(default_factory=lambda: FakeStrictRedis(server=FakeServer()))
    cuts: dict[Role, Cut] = field(default_factory=dict)
    on_their_way: list[OnItsWay] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    unanswered: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    accepted: dict[str, Accepted] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    """It may come out, or not."""
    stops: int = 0
    wipes: int = 0
    in_table: set[str] = field(default_factory=set)
    """A delivery was accepted by the DynamoDB lane, which must not lose it, whatever happens to Valkey."""
    perhaps_lost: set[str] = field(default_factory=set)
    """Only Valkey had it when Valkey was wiped, and nobody has accepted it since."""
    perhaps_twice: set[str] = field(default_factory=set)
    """It may have come out before Valkey forgot it."""
    lost_answers: set[str] = field(default_factory=set)
    """Valkey may have stored it, or may store it yet, but ingest has no answer."""
    sent_again: set[str] = field(default_factory=set)
    outages: int = 0
    marked: int | None = None
    """The number of the hand-off mark, from the answer to ingest until something may have ended it."""
    ends_of_marks: int = 0
    was_marked: bool = False
    wrong_marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock: ManualClock = self.scene.clock
        for path in LUA_DIRECTORY.glob("*.lua"):
            self.server.script_load(load_script(path.stem).source)
        self.engine = Engine(self.server, self.server, settings=SETTINGS)
        self.engine.clock = self.clock
        self.engine.store = Store(Connection(lambda: self.server), SETTINGS, clock=self.clock)
        self.ingesters = [self._ingester(number * self.skew_ms) for number in range(INGESTERS)]
        self._deliveries: list[Delivery] = []
        self._lost: Counter[tuple[int, int]] = Counter()
        self.conversation_processor = self._conversation_processor()
        self._frames = [_Frame(None)]
        self._events = count()
        self.scene.wire.before = lambda request: self._interrupt("before", request)
        self.scene.wire.after = lambda request: self._interrupt("after", request)

    def _store(self, role: Role, clock: Callable[[], int]) -> Store:
        line = Line(self, role)
        return Store(Connection(lambda: line, attempts=1), SETTINGS, clock=clock)

    def _ingester(self, skew_ms: int) -> LaneWithFallback:
        def clock() -> int:
            return self.clock() + skew_ms

        window = self.scene.new_lane()
        window._clock = clock
        return LaneWithFallback(valkey_lane(self._store("ingest", clock)), window, self.scene.telemetry, clock=clock)

    def _conversation_processor(self) -> ConversationProcessor:
        destinations = (self.scene.bus, self.scene.objects, self.scene.letters)
        telemetry = self.scene.telemetry
        emission = Emission(
            *destinations, telemetry,
            queues=self.scene.queues, idle=FakeTakeovers(), gap_counts=NoCounts(),
            max_event_bytes=256_000, max_attempts=MAX_ATTEMPTS, clock=self.clock,
        )  # fmt: skip
        for each in (emission, self.scene.processor._emission):
            self._watch(each)
        return ConversationProcessor(
            lane=valkey_lane(self._store("conversation_processor", self.clock)),
            emission=emission,
            telemetry=telemetry,
            clock=self.clock,
            random=lambda: 0.0,
        )

    def _watch(self, emission: Emission) -> None:
        """Note each batch that has no mark although it should, or has one although it should not."""
        send = emission.send

        def watched(conversation: str, taken: BatchTaken, time: TimeLeft) -> str:
            must_have = self.marked is not None and self._frames[-1].marked == self.marked
            if (must_have and taken.handoff is None) or (taken.handoff is not None and not self.was_marked):
                self.wrong_marks.append(f"{taken.batch_id} has the mark {taken.handoff}")
            return send(conversation, taken, time)

        setattr(emission, "send", watched)  # noqa: B010 - mypy refuses an assignment

    # -- steps -------------------------------------------------------------------------------------------------

    def do(self, step: Step) -> None:
        """Make a step as far as it gets."""
        self._frames.append(_Frame(step.interruption, marked=self.marked))
        try:
            getattr(self, step.name)(*step.args)
        except (Killed, StoreError, SendFailed):
            pass
        finally:
            self._frames.pop()

    def _interrupt(self, when: str, request: str) -> None:
        frame = self._frames[-1]
        if when == "before":
            frame.made.append(request)
        interruption = frame.interruption
        if interruption is None or (interruption.at, interruption.when) != (len(frame.made), when):
            return
        frame.interruption = None
        match interruption.do:
            case "kill":
                raise Killed
            case "fail":
                if request == "valkey":
                    self.outages += 1
                    raise NoAnswer
                raise SendFailed("ReadTimeoutError")
            case list() as steps:
                for step in steps:
                    self.do(step)

    def deliver(self, ingester: int) -> None:
        self.sent.append(f"m{len(self.sent)}")
        self._deliver(ingester, self.sent[-1])

    def redeliver(self, ingester: int, pick: int) -> None:
        if self.sent:
            self._deliver(ingester, self.sent[pick % len(self.sent)])

    def deliver_past_valkey(self, ingester: int, how: Cut, pick: int | None = None) -> None:
        """Deliver as if Valkey could not be reached for this delivery alone."""
        before = self.cuts.get("ingest")
        self.cut("ingest", how)
        try:
            self.deliver(ingester) if pick is None else self.redeliver(ingester, pick)
        finally:
            self.cuts.pop("ingest", None)
            if before is not None:
                self.cuts["ingest"] = before

    def _deliver(self, ingester: int, message_id: str) -> None:
        lane, made = self.ingesters[ingester], self._frames[-1].made
        if message_id in self.unanswered | self.answered:
            self.sent_again.add(message_id)
        self.unanswered.add(message_id)
        before, asked, wipes = len(made), next(self._events), self.wipes
        is_alone = all(each.ingester != ingester for each in self._deliveries)
        self._deliveries.append(Delivery(ingester, message_id, is_alone))
        try:
            taken = lane.buffer_message(CONVERSATION, message_id, payload=payload(message_id), timing=RULES.timing)
        finally:
            self._deliveries.pop()
        self.unanswered.discard(message_id)
        self.answered.add(message_id)
        which = "dynamodb" if "put_item" in made[before:] else "valkey"
        if which == "dynamodb":
            self.in_table.add(message_id)
        if self.wipes == wipes or message_id in self.in_table:
            self.perhaps_lost.discard(message_id)
        else:
            self.perhaps_lost.add(message_id)
        if isinstance(taken, MessageBuffered):
            self.accepted.setdefault(message_id, Accepted(which, ingester, asked, next(self._events)))

    def delete(self, ingester: int, pick: int) -> None:
        if self.sent:
            message_id = self.sent[pick % len(self.sent)]
            self.withdrawn.add(message_id)
            self.ingesters[ingester].delete_message(CONVERSATION, message_id)

    def stop(self, ingester: int) -> None:
        """Drop whatever waits. The word takes effect at some moment between its first request and its end."""
        self.stops += 1
        frame = self._frames[-1]
        frame.is_stop = True
        try:
            self.ingesters[ingester].cancel_buffer(CONVERSATION, cancel_id=f"stop{self.stops}")
        finally:
            frame.is_stop = False
            self._may_have_stopped()

    @property
    def is_stopping(self) -> bool:
        return self._frames[-1].is_stop

    def _may_have_stopped(self) -> None:
        """Record which messages a stop may have dropped: all that were sent before this moment, the last at which the
        stop can take effect.
        """
        self.withdrawn |= set(self.sent)

    def hand_off(self, ingester: int) -> None:
        self.was_marked, ends = True, self.ends_of_marks
        self.ingesters[ingester].hold_buffer(CONVERSATION, holder="handoff", cause="answer", hold_ms=None)
        if ends == self.ends_of_marks:
            self.marked = ends

    def hand_back(self, ingester: int) -> None:
        self._may_be_unmarked()
        try:
            self.ingesters[ingester].resume_buffer(CONVERSATION, holder="handoff")
        finally:
            self._may_be_unmarked()

    def _may_be_unmarked(self) -> None:
        self.ends_of_marks += 1
        self.marked = None

    def execute(self) -> None:
        """Run the processor and its conversation processors."""
        for conversation in self.engine.claim():
            self.conversation_processor.process(conversation, AMPLE)

    def recover(self) -> None:
        """Let the watchdog put back the claims of conversation processors that died."""
        self.engine.store.recover_expired(0)

    def empty_windows(self) -> None:
        self.scene.run()

    def wipe(self) -> None:
        """Empty Valkey, and record which messages this may lose or double."""
        self.wipes += 1
        self._may_be_unmarked()
        self.perhaps_lost |= set(self.sent) - self.in_table
        self.perhaps_twice |= set(self.sent)
        self.accepted.clear()
        # Batch ids contain the time of the last arrival. Wait, so that no later arrival has a time before the wipe.
        self.wait(2 * max(abs(self.skew_ms), 1_000))
        self.server.flushall()
        for path in LUA_DIRECTORY.glob("*.lua"):
            self.server.script_load(load_script(path.stem).source)

    def let_windows_end(self) -> None:
        self.wait(RULES.silence_ms + 3_000)
        self.empty_windows()

    def take_over(self) -> None:
        """Let other instances do the work again of an instance that they believe dead."""
        self.wait(31_000)
        self.recover()
        self.execute()
        self.empty_windows()

    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    def cut(self, role: Role, how: Cut) -> None:
        self.outages += 1
        self.cuts[role] = how

    def note_lost_answer(self) -> None:
        """Note that ingest has no answer to the message that it has sent to Valkey."""
        if self._deliveries:
            delivery = self._deliveries[-1]
            self.lost_answers.add(delivery.message_id)
            self._lost[self.outages, delivery.ingester] += delivery.is_alone

    def mend(self, role: Role) -> None:
        self.cuts.pop(role, None)

    def arrive(self) -> None:
        """Let a request arrive at Valkey that its sender had given up."""
        for request in self.on_their_way:
            request.send()
            self._may_be_unmarked()
            if request.is_stop:
                self._may_have_stopped()
        self.on_their_way.clear()

    # -- the end -----------------------------------------------------------------------------------------------

    def become_idle(self) -> None:
        self.cuts.clear()
        self.arrive()
        for turn in range(100):
            self.wait(10_000)
            self._frames[-1].marked = self.marked
            for message_id in sorted(self.unanswered):
                self._deliver(0, message_id)
            if turn % 7 == 6:
                self.scene.processor.sweep(AMPLE)
            self.recover()
            self.execute()
            self.empty_windows()
            if self._is_idle():
                return
            if self._is_left_over():
                self.deliver_past_valkey(0, "swallowed")
        raise AssertionError("the lanes do not come to rest")

    def _is_idle(self) -> bool:
        idle = self.engine.store.peek_conversation(CONVERSATION).state == "IDLE"
        return idle and not self.unanswered and self.scene.is_idle()

    def _is_left_over(self) -> bool:
        """Return whether a message was stored without a window; the next window finds it."""
        contents = self.scene.table.messages.read(CONVERSATION)
        return not self.unanswered and bool(contents.stored) and not contents.window.is_open

    def judge(self) -> int:
        """Fail unless the promises hold. Return how many messages came out of both lanes."""
        batches = self._batches()
        out = [message_id for _, ids in batches.values() for message_id in ids]
        for lane in ("valkey", "dynamodb"):
            of_lane = [each for its, ids in batches.values() if its == lane for each in ids]
            again = {each for each in of_lane if of_lane.count(each) > 1}
            forgotten = self.perhaps_twice if lane == "valkey" else set()
            assert not again - forgotten, f"a message under two batch ids of the {lane} lane: {batches}"
            self._judge_order(lane, of_lane)
        doubled = {each for each in out if out.count(each) > 1}
        unexplained = doubled - self.lost_answers - self.sent_again
        assert not unexplained, f"in both lanes, though Valkey answered and nobody sent it again: {unexplained}"
        assert max(self._lost.values(), default=0) <= 1, "an ingester lost more than one answer in an outage"
        lost = set(self.sent) - set(out) - self.withdrawn - self.perhaps_lost
        assert not lost, f"lost: {lost}"
        assert not self.wrong_marks
        assert not self.scene.letters.bodies
        return len(doubled)

    def _batches(self) -> dict[str, tuple[str, list[str]]]:
        seen: dict[str, tuple[str, list[str]]] = {}
        for event in self.scene.events():
            content = event["lane"], [message["id"] for message in event["messages"]]
            before = seen.setdefault(event["batchId"], content)
            assert before == content, f"one batch id, two contents: {before} and {content}"
        return seen

    def _judge_order(self, lane: str, out: list[str]) -> None:
        """Check the order among the messages that one ingester gave to the lane that emitted them."""
        taken = [self.accepted[each] for each in out if each in self.accepted and self.accepted[each].lane == lane]
        for earlier, later in combinations(taken, 2):
            turned = later.ingester == earlier.ingester and later.answered < earlier.asked
            assert not turned, f"out of order in the {lane} lane: {out}"
