"""The window lane under any interleaving: several of each function at work, dying, refused, their answers lost."""

from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lambdas.shared.errors import SendFailed, StoreUnavailable
from lambdas.shared.store import outcomes as o
from tests.support.actors import FATES, GO, Actor, take_turns
from tests.support.engine import payload
from tests.support.window import AMPLE, RULES, WINDOW_MS, Killed, WindowScene, dynamodb, make_holding_table

CONVERSATIONS = ("default/generic/shop/ann", "default/generic/shop/ben")
MOST_ACTORS = 5
LONG_ENOUGH_MS = 1_800_000


class WindowMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        make_holding_table(self.client)
        self.scene = WindowScene()
        take_turns(self.scene.wire)
        self.lanes = [self.scene.new_lane() for _ in range(2)]
        self.actors: list[Actor] = []
        self.sent = dict.fromkeys(CONVERSATIONS, 0)
        # What was answered 2xx, in the order of the answers; with when it was asked, to know what was after what.
        self.accepted: dict[str, list[tuple[str, int, int]]] = {name: [] for name in CONVERSATIONS}
        self.may_be_gone: set[tuple[str, str]] = set()
        self.must_be_gone: set[tuple[str, str]] = set()
        self.now = 0

    # -- what happens ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule(name=st.sampled_from(CONVERSATIONS), lane=st.integers(0, 1), again=st.booleans())
    def deliver(self, name: str, lane: int, again: bool) -> None:
        if not again or not self.sent[name]:
            self.sent[name] += 1
        self._deliver(name, f"m{self.sent[name]}", lane)

    def _deliver(self, name: str, message_id: str, lane: int) -> None:
        self.tick()
        asked = self.now

        def work() -> None:
            buffer = self.lanes[lane].buffer_message
            buffer(name, message_id, payload=payload(message_id), timing=RULES.timing)
            if message_id not in [each for each, _, _ in self.accepted[name]]:
                self.accepted[name].append((message_id, asked, self.now))

        self._act(f"deliver {message_id}", work)

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule()
    def receive(self) -> None:
        trigger = self.scene.triggers.receive()
        if trigger is None:
            return

        def work() -> None:
            if self.scene.new_processor(beat_seconds=3_600).process(trigger, AMPLE):
                self.scene.triggers.delete(trigger)

        self._act("processor", work)

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule(name=st.sampled_from(CONVERSATIONS), number=st.integers(1, 6), delete=st.booleans())
    def change(self, name: str, number: int, delete: bool) -> None:
        message_id = f"m{number}"
        lane = self.lanes[0]

        def work() -> None:
            if delete:
                self.may_be_gone.add((name, message_id))
                if isinstance(lane.delete_message(name, message_id), o.Deleted):
                    self.must_be_gone.add((name, message_id))
            else:
                lane.edit_message(name, message_id, payload=payload(message_id, f"edited at {self.now}"))

        self._act("change", work)

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule(name=st.sampled_from(CONVERSATIONS), what=st.sampled_from(("stop", "flush", "hold", "resume")))
    def order(self, name: str, what: str) -> None:
        lane = self.lanes[1]

        def work() -> None:
            match what:
                case "stop":
                    self.may_be_gone |= {(name, f"m{n}") for n in range(1, self.sent[name] + MOST_ACTORS)}
                    lane.cancel_buffer(name)
                case "flush":
                    lane.flush_buffer(name)
                case "hold":
                    lane.hold_buffer(name, hold_ms=20_000)
                case "resume":
                    lane.resume_buffer(name)

        self._act(what, work)

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, MOST_ACTORS - 1), steps=st.integers(1, 4), fate=st.sampled_from((GO, GO, GO, *FATES)))
    def step(self, which: int, steps: int, fate: str) -> None:
        actor = self.actors[which % len(self.actors)]
        for _ in range(steps - 1):
            if not actor.done:
                actor.step()
        if not actor.done:
            actor.step(fate)
        self._look_at_the_dead()

    @rule(ms=st.sampled_from((100, 3_000, WINDOW_MS, 31_000)))
    def wait(self, ms: int) -> None:
        self.scene.clock.advance(ms)

    @rule()
    def sweep(self) -> None:
        if len(self.actors) < MOST_ACTORS:
            self._act("sweep", self.scene.processor.sweep)

    # -- how -----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.now += 1
        self.scene.clock.advance(1)

    def _act(self, name: str, work: Any) -> None:
        self.tick()
        self.actors.append(Actor(name, work))
        self._look_at_the_dead()

    def _look_at_the_dead(self) -> None:
        for actor in self.actors:
            if actor.done:
                error = actor.error
                assert error is None or isinstance(error, (Killed, SendFailed, StoreUnavailable)), repr(error)
        self.actors = [each for each in self.actors if not each.done]

    # -- and what is left in the end -----------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "scene"):
            return
        for actor in self.actors:
            actor.finish()
        scene = self.scene
        for _ in range(LONG_ENOUGH_MS // 60_000):
            scene.pass_time(60_000, step_ms=15_000)
            with suppress(SendFailed):
                scene.processor.sweep()
            if not scene.triggers.waiting and all(map(scene.is_at_rest, CONVERSATIONS)):
                break
        for name in CONVERSATIONS:
            self.judge(name)

    def judge(self, name: str) -> None:
        batches = self.scene.batches(name)
        came = [message_id for batch in batches for message_id in batch]
        accepted = self.accepted[name]
        lost = [each for each, _, _ in accepted if each not in came and (name, each) not in self.may_be_gone]
        assert not lost, f"lost: {lost} of {batches}"
        back = [each for each in came if (name, each) in self.must_be_gone]
        assert not back, f"deleted, and came out: {back}"
        # A message that was answered before another one was even sent comes before it.
        place = {message_id: number for number, message_id in enumerate(came)}
        for first, _, answered in accepted:
            for second, asked, _ in accepted:
                if answered < asked and first in place and second in place:
                    assert place[first] < place[second], f"{first} came after {second} in {batches}"
        texts: dict[str, set[str]] = {}
        for event in self.scene.events():
            texts.setdefault(event["batchId"], set()).add(event["text"])
        assert all(len(each) == 1 for each in texts.values()), f"one batch, two contents: {texts}"
        waiting = [each.name for each in self.scene.table.read(name).held]
        assert not set(waiting) & {each for each, _, _ in accepted}, f"never emitted: {waiting}"


def test_nothing_is_lost_doubled_renamed_or_reordered_whoever_dies_when() -> None:
    with dynamodb() as client:
        WindowMachine.client = client  # type: ignore[attr-defined]
        machine = WindowMachine.TestCase
        machine.settings = settings(
            max_examples=max(settings.default.max_examples // 2, 1),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        machine().runTest()
