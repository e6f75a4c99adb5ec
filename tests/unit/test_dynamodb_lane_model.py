"""The DynamoDB lane under any interleaving: several of each function at work, dying, refused, their answers lost."""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from threading import get_ident
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.events.emission import TimeLeft
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.holds import NO_END_MS, Holder, handoff_of
from tests.conftest import PROFILE
from tests.support.actors import FATES, GO, KILL, LOSE, Actor, take_turns
from tests.support.engine import payload
from tests.support.window import AMPLE, RULES, WINDOW_MS, Killed, WindowScene, WiredClient, dynamodb, make_message_table

CONVERSATIONS = ("default/generic/shop/ann", "default/generic/shop/ben")
MOST_ACTORS = 4
TO_THE_END = 60
EDITED = "edited"
LONG_ENOUGH_MS = 1_800_000


names = st.sampled_from(CONVERSATIONS)
# A processor makes seven requests in all, ingest three.
some_steps = st.sampled_from((0, 1, 2, 3, 4, 5, 6, TO_THE_END, TO_THE_END))


PROCESSOR_STEPS, INGEST_STEPS = range(7), range(3)
MEANWHILE = (
    "nothing",
    "deliver",
    "redeliver",
    "edit",
    "delete",
    "stop",
    "forget",
    "hold",
    "two hold, one resumes",
    "mark",
    "type",
    "window ends",
    "lock ends",
)

ORDERS = (
    "stop", "forget", "flush", "hold", "consumer holds", "resume", "consumer resumes", "mark", "mark ends", "type",
    "retime",
)  # fmt: skip
# The holds in spite of which messages leave after an order; `handoff` if the order ends the mark.
ENDED_BY: dict[str, tuple[Holder, ...]] = {
    **dict.fromkeys(("forget", "resume"), ("people", "consumers", "handoff")),
    "flush": ("people", "consumers"),
    "consumer resumes": ("consumers",),
    "mark ends": ("handoff",),
}
HOLDERS: dict[str, Holder] = {
    "hold": "people", "consumer holds": "consumers", "consumer resumes": "consumers", "mark": "handoff",
    "mark ends": "handoff",
}  # fmt: skip
# The consumers' hold is the longer one, so that its early end leaves the people's.
HOLD_MS: dict[Holder, int] = {"people": 20_000, "consumers": 35_000}
EVERY_HOLDER: tuple[Holder, ...] = (*HOLD_MS, "handoff")


class WindowMachine(RuleBasedStateMachine):
    client: Any

    @initialize()
    def begin(self) -> None:
        make_message_table(self.client)
        self.scene = WindowScene()
        take_turns(self.scene.wire)
        self.lanes = [self.scene.new_lane() for _ in range(2)]
        self.actors: list[Actor] = []
        self.sent = dict.fromkeys(CONVERSATIONS, 0)
        self.sent_before_a_forget = dict.fromkeys(CONVERSATIONS, 0)
        # The messages that were answered 2xx, in the order of the answers, each with the time of its first request,
        # from which the test knows which came after which. A request that was never answered may have taken effect, so
        # a repeat of it does not begin anew.
        self.accepted: dict[str, list[tuple[str, int, int]]] = {name: [] for name in CONVERSATIONS}
        # (conversation, typed message) -> when it arrived, and when its request was answered, by the clock.
        self.times: dict[tuple[str, str], tuple[int, int]] = {}
        self.first_asked: dict[tuple[str, str], int] = {}
        self.may_be_gone: set[tuple[str, str]] = set()
        self.must_be_gone: set[tuple[str, str]] = set()
        self.must_be_edited: set[tuple[str, str]] = set()
        # When the holds of a conversation end. A hold counts once its request is answered, and until an order begins
        # that makes messages leave in spite of it.
        self.held_until: dict[tuple[str, Holder], int] = {}
        self.hurried = {(name, holder): 0 for name in CONVERSATIONS for holder in EVERY_HOLDER}
        self.frozen_on_hold: list[str] = []
        self.may_be_marked: set[str] = set()
        self.marked_at_read: dict[int, set[str]] = {}  # by the thread of a processor
        self.wrong_marks: list[str] = []
        watch_freezes(self.scene, self.note_freeze, self.note_read)
        self.now = 0

    # -- what happens: each begins, goes on for some requests, and is left there while others are at work -------

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule(name=names, lane=st.integers(0, 1), again=st.booleans(), is_pressed=st.booleans(), steps=some_steps)
    def deliver(self, name: str, lane: int, again: bool, steps: int, is_pressed: bool = False) -> None:
        # After a forget, a message that is delivered again is a new message.
        again = again and self.sent[name] > self.sent_before_a_forget[name]
        self.sent[name] += not again
        message_id = f"m{self.sent[name]}"
        self.tick()
        asked = self.first_asked.setdefault((name, message_id), self.now)

        def work() -> None:
            arrived_at_ms = self.scene.clock()
            timing = RULES.timing_of(is_pressed=is_pressed)
            outcome = self.lanes[lane].buffer_message(name, message_id, payload=payload(message_id), timing=timing)
            if isinstance(outcome, o.MessageBuffered) and not is_pressed:
                self.times[name, message_id] = arrived_at_ms, self.scene.clock()
            if message_id not in [each for each, _, _ in self.accepted[name]]:
                self.accepted[name].append((message_id, asked, self.now))

        self._act(f"redeliver {name}" if again else "deliver", work, steps)

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule(wait_ms=st.sampled_from((0, WINDOW_MS, 31_000)), steps=some_steps)
    def receive(self, wait_ms: int, steps: int) -> None:
        self.scene.clock.advance(wait_ms)
        trigger = self.scene.triggers.receive()
        if trigger is None:
            return

        def work() -> None:
            processor = self.scene.new_processor(beat_seconds=3_600)
            send = processor._emission.send

            def watched(conversation: str, taken: o.BatchTaken, time: TimeLeft) -> str:
                self.note_taken(conversation, taken)
                return send(conversation, taken, time)

            with patch.object(processor._emission, "send", watched):
                if processor.process(trigger, AMPLE):
                    self.scene.triggers.delete(trigger)

        self._act("processor", work, steps)

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule(name=names, age=st.integers(0, 2), delete=st.booleans(), steps=some_steps)
    def change(self, name: str, age: int, delete: bool, steps: int) -> None:
        message_id, lane = f"m{max(self.sent[name] - age, 1)}", self.lanes[0]

        def work() -> None:
            if delete:
                self.may_be_gone.add((name, message_id))
                if isinstance(lane.delete_message(name, message_id), o.MessageDeleted):
                    self.must_be_gone.add((name, message_id))
            elif isinstance(lane.edit_message(name, message_id, payload=payload(message_id, EDITED)), o.MessageEdited):
                self.must_be_edited.add((name, message_id))

        self._act("change", work, steps)

    @precondition(lambda self: len(self.actors) < MOST_ACTORS)
    @rule(
        name=names,
        what=st.sampled_from(ORDERS),
        steps=some_steps,
    )
    def order(self, name: str, what: str, steps: int) -> None:
        lane = self.lanes[1]
        if what == "forget" and any(actor.name == f"redeliver {name}" for actor in self.actors):
            return

        def work() -> None:
            match what:
                case "stop":
                    self.drop(name, lane.cancel_buffer)
                case "forget":
                    self.sent_before_a_forget[name] = self.sent[name]
                    self.drop(name, lane.forget_conversation)
                case "flush":
                    lane.flush_buffer(name)
                case "hold" | "consumer holds" | "mark":
                    self.hold(name, HOLDERS[what])
                case "resume" | "consumer resumes" | "mark ends":
                    lane.resume_buffer(name, holder=HOLDERS.get(what))
                case "type":
                    lane.extend_wait(name, extend_ms=15_000, max_wait_ms=RULES.max_wait_ms)
                case "retime":
                    lane.retime_buffer(name, timing=RULES.timing._replace(silence_ms=2 * RULES.silence_ms))

        self._act(what, self.hurrying(name, work, ENDED_BY.get(what, ())), steps)

    def drop(self, name: str, drop: Callable[[str], object]) -> None:
        waiting = {each for each, _, _ in self.accepted[name]} - set(self._out(name))
        try:
            drop(name)
        finally:
            # The order may have begun long ago: it drops what it finds when it gets there.
            self.may_be_gone |= {(name, f"m{n}") for n in range(1, self.sent[name] + 1)}
        # A processor whose lock ran out while it emits may still finish that.
        if not any(actor.name == "processor" for actor in self.actors):
            self.must_be_gone |= {(name, each) for each in waiting - set(self._out(name))}

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, MOST_ACTORS - 1), steps=some_steps, fate=st.sampled_from((GO, GO, *FATES)))
    def go_on(self, which: int, steps: int, fate: str) -> None:
        actor = self.actors[which % len(self.actors)]
        actor.step(fate)
        self._go(actor, steps)

    # -- what chance brings about too rarely: something else happens between two requests ----------------------

    @precondition(lambda self: len(self.actors) < MOST_ACTORS - 1)
    @rule(
        name=names,
        steps=st.sampled_from(PROCESSOR_STEPS),
        meanwhile=st.sampled_from(MEANWHILE),
        fate=st.sampled_from(FATES),
    )
    def cross_processor(self, name: str, steps: int, meanwhile: str, fate: str) -> None:
        for _ in range(2):
            self.deliver(name=name, lane=0, again=False, steps=TO_THE_END)
        self.receive(wait_ms=WINDOW_MS, steps=steps)
        self._cross(name, meanwhile, fate)

    @precondition(lambda self: len(self.actors) < MOST_ACTORS - 1)
    @rule(
        name=names,
        steps=st.sampled_from(INGEST_STEPS),
        meanwhile=st.sampled_from(MEANWHILE),
        fate=st.sampled_from(FATES),
    )
    def cross_ingest(self, name: str, steps: int, meanwhile: str, fate: str) -> None:
        self.deliver(name=name, lane=0, again=False, steps=steps)
        self._cross(name, meanwhile, fate)
        if meanwhile == "nothing":
            # A message whose request was not answered is sent again.
            self.deliver(name=name, lane=1, again=True, steps=TO_THE_END)

    def _cross(self, name: str, meanwhile: str, fate: str) -> None:
        at_work = self.actors[-1:]
        match meanwhile:
            case "deliver" | "redeliver":
                self.deliver(name=name, lane=1, again=meanwhile == "redeliver", steps=TO_THE_END)
            case "edit" | "delete":
                self.change(name=name, age=0, delete=meanwhile == "delete", steps=TO_THE_END)
            case "stop" | "forget" | "hold" | "mark" | "type":
                self.order(name=name, what=meanwhile, steps=TO_THE_END)
            case "two hold, one resumes":
                for what in ("hold", "consumer holds", "consumer resumes"):
                    self.order(name=name, what=what, steps=TO_THE_END)
            case "window ends":
                self.receive(wait_ms=WINDOW_MS, steps=TO_THE_END)
            case "lock ends":
                self.receive(wait_ms=31_000, steps=TO_THE_END)
        for actor in at_work:
            if not actor.done:
                actor.step(fate)
                self._go(actor, TO_THE_END)

    @rule(ms=st.sampled_from((100, 3_000, 31_000)))
    def wait(self, ms: int) -> None:
        self.scene.clock.advance(ms)

    @rule()
    def sweep(self) -> None:
        self._act("sweep", lambda: self.scene.processor.sweep(AMPLE), TO_THE_END)

    # -- how -----------------------------------------------------------------------------------------------------

    def hurrying(self, name: str, work: Callable[[], None], ended: tuple[Holder, ...]) -> Callable[[], None]:
        """Return the work of an order that makes messages leave in spite of these holds."""

        def hurry() -> None:
            for holder in ended:
                self.hurried[name, holder] += 1
                self.held_until.pop((name, holder), None)
            try:
                work()
            finally:
                for holder in ended:
                    self.hurried[name, holder] -= 1

        return hurry

    def hold(self, name: str, holder: Holder) -> None:
        hold_ms = HOLD_MS.get(holder)  # a mark has no limit
        until_ms = NO_END_MS if hold_ms is None else self.scene.clock() + hold_ms
        if holder == "handoff":
            self.may_be_marked.add(name)
        self.lanes[1].hold_buffer(name, holder=holder, cause=holder, hold_ms=hold_ms)
        if not self.hurried[name, holder]:
            self.held_until[name, holder] = until_ms

    def note_freeze(self, name: str) -> None:
        if any(self.held_until.get((name, holder), 0) > self.scene.clock() for holder in HOLD_MS):
            self.frozen_on_hold.append(name)

    @property
    def marked(self) -> set[str]:
        """Return the conversations that must have a mark."""
        return {name for name, holder in self.held_until if holder == "handoff"}

    def note_read(self) -> None:
        self.marked_at_read[get_ident()] = self.marked

    def note_taken(self, name: str, taken: o.BatchTaken) -> None:
        is_marked = taken.handoff is not None
        if name in self.marked_at_read[get_ident()] and name in self.marked and not is_marked:
            self.wrong_marks.append(f"{name} has a mark, and its batch does not")
        if is_marked and name not in self.may_be_marked:
            self.wrong_marks.append(f"{name} never had a mark, but its batch does")

    def tick(self) -> None:
        self.now += 1
        self.scene.clock.advance(1)

    def _act(self, name: str, work: Any, steps: int) -> None:
        self.tick()
        actor = Actor(name, work)
        self.actors.append(actor)
        self._go(actor, steps)

    def _go(self, actor: Actor, steps: int) -> None:
        for _ in range(steps):
            if not actor.done:
                actor.step()
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
            if not scene.triggers.waiting and all(map(scene.is_idle, CONVERSATIONS)):
                break
            with suppress(SendFailed):
                scene.processor.sweep(AMPLE)
        assert not self.frozen_on_hold, "frozen in spite of a hold"
        assert not self.wrong_marks
        for name in self.marked:
            assert handoff_of(scene.lane.generation_and_holds(name).holds, scene.clock()), f"{name} has lost its mark"
        for name in CONVERSATIONS:
            self.judge(name)

    def _out(self, name: str) -> list[str]:
        return [message_id for batch in self.scene.batches(name) for message_id in batch]

    def judge(self, name: str) -> None:
        batches, came = self.scene.batches(name), self._out(name)
        accepted = self.accepted[name]
        lost = [each for each, _, _ in accepted if each not in came and (name, each) not in self.may_be_gone]
        assert not lost, f"lost: {lost} of {batches}"
        back = [each for each in came if (name, each) in self.must_be_gone]
        assert not back, f"deleted, and came out: {back}"
        # If a message was answered before the next was even sent, it comes before it.
        place = {message_id: number for number, message_id in enumerate(came)}
        for first, _, answered in accepted:
            for second, asked, _ in accepted:
                if answered < asked and first in place and second in place:
                    assert place[first] < place[second], f"{first} came after {second} in {batches}"
        for event in self.scene.events():
            for message in event["messages"] if event["conversationId"] == name else ():
                assert message["text"] == EDITED or (name, message["id"]) not in self.must_be_edited, "edited too late"
        self.judge_waits(name)
        texts: dict[str, set[str]] = {}
        for event in self.scene.events():
            texts.setdefault(event["batchId"], set()).add(event["text"])
        assert all(len(each) == 1 for each in texts.values()), f"one batch, two contents: {texts}"
        waiting = [each.name for each in self.scene.table.messages.read(name).stored]
        assert not set(waiting) & {each for each, _, _ in accepted}, f"never emitted: {waiting}"

    def judge_waits(self, name: str) -> None:
        """Check that no batch was cut before silence.

        No typed message that was noted by its due time still waited, and neither did its first message.
        """
        for event in self.scene.events():
            if event["conversationId"] != name or event["flushReason"] not in {"silence", "max_wait"}:
                continue
            metadata = event["metadata"]
            due_at_ms = metadata["firstMessageAt"] + metadata["waitMs"]
            latest_at_ms = metadata["firstMessageAt"] + RULES.max_wait_ms
            for position, message in enumerate(event["messages"]):
                arrived_at_ms, answered_at_ms = self.times.get((name, message["id"]), (0, due_at_ms))
                # A message that joins an overdue window leaves with it, even if those before it were removed meanwhile.
                is_first = position == 0 and not any(gone == name for gone, _ in self.may_be_gone)
                if answered_at_ms < due_at_ms or (is_first and arrived_at_ms):
                    silent_at_ms = min(arrived_at_ms + RULES.silence_ms, latest_at_ms)
                    assert due_at_ms >= silent_at_ms, f"cut before silence: {message['id']} of {event}"


@pytest.mark.promise("P1", "P2", "P3")
@pytest.mark.timeout(600)
def test_nothing_is_lost_doubled_renamed_or_reordered_whoever_dies_when() -> None:
    with dynamodb() as client:
        run_state_machine_as_test(
            type("Machine", (WindowMachine,), {"client": client}),
            settings=settings(
                # Every request goes to a service, if only in this process, so there are fewer examples.
                max_examples=settings().max_examples // 4,
                stateful_step_count=40,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_a_message_whose_first_request_was_never_answered_may_come_before_an_older_one() -> None:
    ann = CONVERSATIONS[0]
    with dynamodb() as client:
        machine = type("Machine", (WindowMachine,), {"client": client})()
        machine.begin()
        machine.deliver(name=ann, lane=0, again=False, steps=0)
        machine.deliver(name=ann, lane=1, again=False, steps=2)
        # The second message is stored and its trigger sent, but its sender gets an error and dies.
        machine.go_on(which=1, steps=0, fate=LOSE)
        machine.go_on(which=1, steps=0, fate=KILL)
        machine.receive(wait_ms=WINDOW_MS, steps=TO_THE_END)
        machine.go_on(which=0, steps=TO_THE_END, fate=GO)
        machine.deliver(name=ann, lane=1, again=True, steps=TO_THE_END)
        machine.teardown()
        assert machine.scene.batches(ann) == [["m2"], ["m1"]]


def watch_freezes(scene: WindowScene, note: Callable[[str], None], note_read: Callable[[], None]) -> None:
    """Call `note` with the conversation at the moment when DynamoDB freezes a batch, and `note_read` when a processor
    begins to read a conversation."""
    client = scene.table.client

    class Watched:
        exceptions = client.exceptions

        def __getattr__(self, name: str) -> Any:
            return getattr(client._client, name)

        def query(self, **request: Any) -> Any:
            note_read()
            return client._client.query(**request)

        def update_item(self, **request: Any) -> Any:
            answer = client._client.update_item(**request)
            if ":frozen" in request.get("ExpressionAttributeValues", {}):
                note(request["Key"]["conversation"]["S"])
            return answer

    scene.table.client = WiredClient(Watched(), scene.wire)


class Crossing(NamedTuple):
    """An event after this many requests of a function, and the fate of the next request."""

    rule: Literal["cross_processor", "cross_ingest"]
    steps: int
    meanwhile: str
    fate: str


CROSSINGS = [
    *(Crossing("cross_processor", *each) for each in product(PROCESSOR_STEPS, MEANWHILE, FATES)),
    *(Crossing("cross_ingest", *each) for each in product(INGEST_STEPS, MEANWHILE, FATES)),
]


def try_crossing(client: Any, crossing: Crossing) -> None:
    machine = type("Machine", (WindowMachine,), {"client": client})()
    machine.begin()
    cross = getattr(machine, crossing.rule)
    try:
        cross(name=CONVERSATIONS[0], steps=crossing.steps, meanwhile=crossing.meanwhile, fate=crossing.fate)
        machine.teardown()
    except AssertionError as error:
        raise AssertionError(f"{crossing}: {error}") from error


# Every fifth has each number of requests, each event and each fate; `make check` tries all.
TRIED = CROSSINGS[::5] if PROFILE == "test" else CROSSINGS


def test_the_crossings_that_make_test_tries_have_every_event_with_every_fate() -> None:
    tried = CROSSINGS[::5]
    assert {(each.meanwhile, each.fate) for each in tried} == set(product(MEANWHILE, FATES))
    assert {(each.rule, each.steps) for each in tried} == {(each.rule, each.steps) for each in CROSSINGS}


@pytest.mark.timeout(300)
def test_every_crossing_of_two_functions_keeps_every_promise() -> None:
    with dynamodb() as client:
        for crossing in TRIED:
            try_crossing(client, crossing)
