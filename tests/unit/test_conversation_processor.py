"""The conversation processor: whatever fails around it, a batch comes out under one id, in order, or becomes a dead
letter.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.settings_and_defaults import StageConfig
from infra.valkey_lane import CONVERSATION_PROCESSOR_TIMEOUT_SECONDS
from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.aws import clients as aws
from message_buffer.errors import InvalidInput, ScriptInvariantBroken, SendFailed, StoreUnavailable
from message_buffer.events import batch_ready as batch
from message_buffer.events.emission import (
    MAX_DEAD_LETTER_BYTES,
    RELEASE_MS,
    Emission,
    TimeLeft,
    back_off_ms,
    longest_pause_ms,
)
from message_buffer.events.event_bus import entry_bytes
from message_buffer.json_object import to_json
from message_buffer.lanes.outcomes import BatchTaken, Renewed
from message_buffer.limits import DAY_MS, MAX_CALL_MS, MAX_RETRY_MS, MIN_RETRY_MS, MINUTE_MS
from message_buffer.messages.conversation_id import TRIAL_TENANT
from message_buffer.messages.message import Attachment, Message, encode
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine
from tests.support.fakes import (
    FakeBatchQueues,
    FakeBus,
    FakeFunctions,
    FakeObjects,
    FakeQueue,
    NoCounts,
    RecordedTelemetry,
    valkey_lane,
)
from tests.support.invariants import assert_invariants
from tests.support.takeovers import FakeTakeovers

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.batch.ready.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)

CONVERSATION = "default/generic/shop/c"
NOW = Rules(silence_ms=0, typing_inference_ms=0)
MAX_ATTEMPTS = 3
LIFE_MS = 24_000
AMPLE = TimeLeft(lambda: LIFE_MS)


def raising(error: Exception) -> Callable[..., Any]:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    return raise_it


class Scene:
    """A conversation processor on an engine, with fakes of everything it calls."""

    def __init__(self, engine: Engine, *, max_event_bytes: int = 256_000, queues: Sequence[str] = ()) -> None:
        self.engine = engine
        self.bus, self.objects, self.queue = FakeBus(), FakeObjects(), FakeQueue()
        self.functions, self.telemetry = FakeFunctions(), RecordedTelemetry()
        self.queues = FakeBatchQueues(*queues)
        self.idle = FakeTakeovers()
        self.emission = Emission(
            self.bus,
            self.objects,
            self.queue,
            self.telemetry,
            queues=self.queues,
            idle=self.idle,
            gap_counts=NoCounts(),
            max_event_bytes=max_event_bytes,
            max_attempts=MAX_ATTEMPTS,
            clock=engine.clock,
        )
        self.conversation_processor = ConversationProcessor(
            lane=valkey_lane(engine.store, self.functions, self.telemetry),
            emission=self.emission,
            telemetry=self.telemetry,
            clock=engine.clock,
            random=lambda: 0.0,
        )

    def send(self, message_id: str, text: str | None = None) -> None:
        self.engine.send(CONVERSATION, message_id, text, rules=NOW)

    def send_bytes(self, message_id: str, payload: bytes) -> None:
        self.engine.store.buffer_message(CONVERSATION, message_id, payload=payload, timing=NOW.timing)

    def run(self) -> None:
        """Make one pass of the processor, and run the conversation processors that it starts."""
        for conversation in self.engine.claim():
            self.conversation_processor.process(conversation, AMPLE)

    def pause_after_take(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let each run pause between take and emission, until its token has ended."""
        take = self.engine.store.take_batch

        def take_then_pause(conversation: str, token: str) -> Any:
            taken = take(conversation, token)
            self.engine.clock.advance(self.engine.store.settings.token_ms)
            return taken

        monkeypatch.setattr(self.engine.store, "take_batch", take_then_pause)

    def fail_once(
        self,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        error: Exception,
    ) -> None:
        """Claim the conversation, and run a conversation processor in which this call of the store fails."""
        self.engine.claim()
        with monkeypatch.context() as patched:
            patched.setattr(self.engine.store, call, raising(error))
            with pytest.raises(type(error)):
                self.conversation_processor.process(CONVERSATION, AMPLE)

    def run_until_idle(self) -> None:
        for _ in range(30):
            self.run()
            self.engine.clock.advance(MAX_RETRY_MS)
            if not self.engine.store.recover_expired(0).pending:
                return
        raise AssertionError("the conversation does not come to rest")

    def scripts(self) -> set[str]:
        return set(self.engine.store._loaded)

    def events(self) -> list[dict[str, Any]]:
        events = []
        for detail_type, detail in self.bus.published:
            assert detail_type == "messages.batch.ready"
            events.append(json.loads(detail))
            VALIDATOR.validate(events[-1])
        return events

    def ids(self) -> list[list[str]]:
        return [[message["id"] for message in event["messages"]] for event in self.events()]

    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.queue.bodies]

    def is_idle(self) -> bool:
        return self.engine.store.peek_conversation(CONVERSATION).state == "IDLE"


@pytest.fixture
def scene(fake: Engine) -> Scene:
    return Scene(fake)


def test_a_warm_up_opens_what_a_batch_needs_and_changes_nothing(scene: Scene) -> None:
    scene.send("m1")
    before = scene.engine.settle()
    scene.conversation_processor.warm_up()
    assert scene.engine.settle() == before
    assert scene.bus.connections == 1
    loaded = scene.scripts()
    scene.run()
    assert scene.ids() == [["m1"]]
    assert scene.scripts() - loaded <= {"acquire_lease", "claim_due"}, "only the processor's scripts"


def test_the_batch_of_a_trial_is_emitted_and_not_counted(scene: Scene) -> None:
    trial = f"{TRIAL_TENANT}/generic/verify/a-trial"
    scene.engine.send(trial, "m1", "Hey", rules=NOW)
    scene.run()
    assert [event["conversationId"] for event in scene.events()] == [trial]
    assert not scene.telemetry.counts


def test_a_batch_becomes_one_event(scene: Scene) -> None:
    scene.send("m1", "Hey")
    scene.engine.clock.advance(10)
    scene.send("m2", "I have a question")
    scene.run()
    (event,) = scene.events()
    peeked = scene.engine.store.peek_conversation(CONVERSATION)
    assert event["text"] == "Hey\nI have a question"
    assert event["messageCount"] == len(event["messages"]) == 2
    assert event["generation"] == peeked.generation
    assert (event["tenant"], event["attempt"], event["lane"]) == ("default", 1, "valkey")
    assert event["metadata"]["lastMessageAt"] - event["metadata"]["firstMessageAt"] == 10
    assert scene.is_idle()
    assert scene.telemetry.counts["Batches"] == 1
    assert scene.telemetry.counts[f"FlushReasons {event['flushReason']}"] == 1


def test_a_run_that_was_paused_until_its_token_had_ended_does_not_emit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pause a run between take and emission, until another run has emitted the batch."""
    take = scene.engine.store.take_batch
    tokens: list[str] = []

    def take_then_pause(conversation: str, token: str) -> Any:
        taken = take(conversation, token)
        tokens.append(token)
        if len(tokens) == 1:
            scene.engine.clock.advance(scene.engine.store.settings.token_ms)
            scene.run()
        return taken

    monkeypatch.setattr(scene.engine.store, "take_batch", take_then_pause)
    scene.send("m1")
    scene.run()
    assert [(event["attempt"], event["messageCount"]) for event in scene.events()] == [(2, 1)]
    assert len(scene.telemetry.said("token ended")) == 1
    assert scene.is_idle()


def test_a_run_whose_token_ended_puts_the_batch_back_if_no_other_run_came(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.pause_after_take(monkeypatch)
    scene.send("m1")
    scene.run()
    assert scene.events() == []
    monkeypatch.undo()
    scene.engine.clock.advance(MIN_RETRY_MS)
    scene.run()
    assert scene.ids() == [["m1"]]


def test_a_long_run_renews_its_token(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed, renew, outcomes = Event(), scene.engine.store.renew_token, list[object]()

    def renew_token(conversation: str, token: str) -> Any:
        outcome = renew(conversation, token)
        outcomes.append(outcome)
        renewed.set()
        return outcome

    scene.engine.store.settings = scene.engine.store.settings._replace(token_ms=200)
    monkeypatch.setattr(scene.engine.store, "renew_token", renew_token)
    scene.bus.on_publish = lambda: assert_set(renewed)
    scene.send("m1")
    scene.run()
    assert isinstance(outcomes[0], Renewed)
    assert scene.is_idle()


def assert_set(event: Event) -> None:
    assert event.wait(timeout=30)


def test_a_batch_that_is_taken_late_is_logged_with_its_claim_and_others_are_not(scene: Scene) -> None:
    for late_ms in (249, 250):
        scene.send(f"m{late_ms}")
        scene.engine.clock.advance(100)
        (conversation,) = scene.engine.claim()
        claim = {"claimedAt": scene.engine.clock.now_ms, "waitedForSlot": True}
        scene.engine.clock.advance(late_ms - 100)
        scene.conversation_processor.process(conversation, AMPLE, claim=claim)
    (line,) = scene.telemetry.said("taken late")
    assert (line["late_ms"], line["claimed_late_ms"], line["waited_for_slot"]) == (250, 100, True)


def test_a_message_keeps_everything_its_platform_said(scene: Scene) -> None:
    message = Message.model_validate(
        {
            "id": "m1", "text": "", "type": "image", "author": "491", "replyTo": "m0", "sentAt": 5, "receivedAt": 6,
            "platform": "whatsapp", "attachments": [Attachment(type="image", id="media")], "mood": {"new": True},
        }
    )  # fmt: skip
    scene.send_bytes("m1", encode(message))
    scene.run()
    assert scene.events()[0]["messages"] == [
        {
            "id": "m1", "text": "", "type": "image", "author": "491", "replyTo": "m0", "sentAt": 5, "receivedAt": 6,
            "platform": "whatsapp", "attachments": [{"type": "image", "id": "media"}], "mood": {"new": True},
            "timestamp": "1970-01-01T00:00:00.005Z",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("agents", "agent"),
    [([None, None], None), (["sales", None], "sales"), (["sales", "support"], "support"), ([None, "sales"], "sales")],
)
def test_the_event_names_the_agent_of_the_newest_message_that_has_one(
    scene: Scene, agents: list[str | None], agent: str | None
) -> None:
    """Include messages of accounts without an agent."""
    for number, each in enumerate(agents):
        message = Message(id=f"m{number}", received_at=1, platform="generic", agent=each)
        scene.send_bytes(f"m{number}", encode(message))
    scene.run()
    (event,) = scene.events()
    assert event.get("agent") == agent
    assert ("agent" in event) == (agent is not None)
    assert not [message for message in event["messages"] if "agent" in message]


def test_a_batch_says_when_it_was_emitted_and_its_retry_says_when_that_was(scene: Scene) -> None:
    began_at_ms = scene.engine.clock.now_ms
    scene.send("m1")
    scene.bus.failures = [SendFailed("put event: Throttling")]
    scene.run()
    scene.engine.clock.advance(MAX_RETRY_MS)
    scene.run()
    (event,) = scene.events()
    assert event["attempt"] == 2
    assert event["bufferedAt"] == scene.engine.clock.now_ms
    assert event["metadata"]["firstMessageAt"] == began_at_ms == event["bufferedAt"] - MAX_RETRY_MS


@pytest.mark.parametrize(
    ("conversation", "times", "expected"),
    [
        ("default/whatsapp/555/491", [(5_000, 9_000), (4_000, 9_500)], 5_000 + DAY_MS),
        ("default/messenger/page/ada", [(None, 9_000)], 9_000 + DAY_MS),
        ("default/instagram/shop/ada", [(5_000, 9_000)], 5_000 + DAY_MS),
        ("default/twilio/whatsapp:555/491", [(None, 9_000), (None, 9_500)], 9_500 + DAY_MS),
        ("default/twilio/555/491", [(None, 9_000)], None),
        ("default/telegram/bot/ada", [(5_000, 9_000)], None),
        ("default/generic/whatsapp:shop/c1", [(5_000, 9_000)], None),
    ],
)
def test_the_reply_window_ends_a_day_after_the_customers_last_message(
    conversation: str, times: list[tuple[int | None, int]], expected: int | None
) -> None:
    payloads = [
        encode(Message(id=f"m{n}", platform=conversation.split("/")[1], sent_at=sent, received_at=received))
        for n, (sent, received) in enumerate(times)
    ]
    taken = BatchTaken("b", 1, 1, 0, 0, 0, "silence", "silenceMs", 0, payloads)
    content, reference = batch.content_of(payloads), {"bucket": "b", "key": "k", "bytes": 1}
    whole = batch.event_of(conversation, taken, content, emitted_at_ms=1)
    referring = batch.event_of(conversation, taken, content, emitted_at_ms=1, reference=reference)
    assert whole.get("replyUntil") == referring.get("replyUntil") == expected
    assert ("replyUntil" in whole) == (expected is not None)


def test_the_texts_of_messages_without_one_leave_no_empty_lines(scene: Scene) -> None:
    for message_id, text in (("m1", "look"), ("m2", ""), ("m3", "nice")):
        scene.send(message_id, text)
    scene.run()
    assert scene.events()[0]["text"] == "look\nnice"


# -- failures --------------------------------------------------------------------------------------


def test_retries_come_later_and_later_up_to_a_bound() -> None:
    waits = [back_off_ms(attempt, lambda: 0.0) for attempt in range(1, 100)]
    assert waits == sorted(waits)
    assert (waits[0], waits[1], waits[-1]) == (1_000, 2_000, MAX_RETRY_MS)


def test_an_error_nobody_expected_is_a_retry_too_and_does_not_escape(scene: Scene) -> None:
    scene.bus.failures = [RuntimeError("the text of a customer")]
    scene.send("m1")
    scene.run()
    assert scene.bus.published == []
    assert "the text of a customer" not in str(scene.telemetry.lines)
    scene.run_until_idle()
    assert scene.ids() == [["m1"]]


@pytest.mark.case(5)
def test_a_crash_between_publish_and_completion_repeats_the_event_under_its_id(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    scene.send("m1")
    with monkeypatch.context() as patched:
        patched.setattr(scene.engine.store, "complete_batch", fail)
        with pytest.raises(StoreUnavailable):
            scene.run()
    scene.engine.clock.advance(scene.engine.store.settings.token_ms)
    scene.engine.store.recover_expired(0)
    scene.run_until_idle()
    first, second = scene.events()
    of_the_attempt = {"attempt": 0, "bufferedAt": 0}
    assert first | of_the_attempt == second | of_the_attempt
    assert first["bufferedAt"] < second["bufferedAt"]


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), ScriptInvariantBroken("bug")])
def test_a_run_that_fails_before_its_take_uses_up_no_attempt(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    scene.send("m1")
    for _ in range(MAX_ATTEMPTS + 1):
        scene.fail_once(monkeypatch, "take_batch", error)
        scene.engine.clock.advance(scene.engine.store.settings.claim_ms)
        scene.engine.store.recover_expired(0)
    scene.run()
    assert [event["attempt"] for event in scene.events()] == [1]


def test_messages_that_came_meanwhile_start_a_processor_if_none_lives(scene: Scene) -> None:
    scene.send("m1")
    scene.engine.claim()

    def a_message_comes_and_the_processor_dies() -> None:
        scene.send("m2")
        scene.engine.clock.advance(scene.engine.store.settings.lease_ms + 1)

    scene.bus.on_publish = a_message_comes_and_the_processor_dies
    scene.conversation_processor.process(CONVERSATION, AMPLE)
    assert scene.functions.processors() == [0]
    assert_invariants(scene.engine)


# -- over-size -------------------------------------------------------------------------------------


def test_what_is_too_large_for_the_bus_goes_by_reference(fake: Engine) -> None:
    scene = Scene(fake, max_event_bytes=2_000)
    for n in range(4):
        scene.send(f"m{n}", "x" * 600)
    scene.run()
    (event,) = scene.events()
    assert (event["messages"], event["text"], event["messageCount"]) == ([], None, 4)
    reference = event["messagesRef"]
    content = scene.objects.kept[reference["key"]]
    assert (reference["bucket"], reference["bytes"]) == ("the-bucket", len(content))
    kept = json.loads(content)
    assert [message["id"] for message in kept["messages"]] == ["m0", "m1", "m2", "m3"]
    assert kept["text"] == "\n".join(["x" * 600] * 4)


@pytest.mark.parametrize("spare", [0, -1])
def test_the_size_limit_is_met_to_the_byte(fake: Engine, spare: int) -> None:
    probe = Scene(fake)
    for message_id in ("m0", "m1"):
        probe.send(message_id, "ü" * 1_000)
        probe.run()
    size = entry_bytes("messages.batch.ready", probe.bus.published[-1][1].encode())
    scene = Scene(fake, max_event_bytes=size + spare)
    scene.send("m2", "ü" * 1_000)
    scene.run()
    assert ("messagesRef" in scene.events()[0]) == (spare < 0)


# -- dead letters ----------------------------------------------------------------------------------


@pytest.mark.case(30)
def test_after_its_last_attempt_a_batch_is_put_aside_and_the_lane_goes_on(scene: Scene) -> None:
    scene.bus.failures = [SendFailed("put event: AccessDenied")] * MAX_ATTEMPTS
    scene.send("m1", "precious")
    scene.run()
    scene.send("m2")
    scene.run_until_idle()
    (letter,) = scene.letters()
    assert (letter["conversationId"], letter["attempt"]) == (CONVERSATION, MAX_ATTEMPTS)
    assert letter["reason"] == "put event: AccessDenied"
    assert "precious" in letter["payloads"][0]
    assert scene.ids() == [["m2"]]
    assert len(scene.telemetry.said("dead letter")) == 1


def die(scene: Scene) -> None:
    """Let a run take the batch and die. Advance the clock until the batch has been put back."""
    assert scene.engine.claim() == [CONVERSATION]
    taken = scene.engine.store.take_batch(CONVERSATION, f"dies-{scene.engine.clock.now_ms}")
    assert isinstance(taken, BatchTaken)
    scene.engine.clock.now_ms = taken.until_ms
    scene.engine.store.recover_expired(0)


def test_a_batch_whose_conversation_processors_all_died_is_put_aside(scene: Scene) -> None:
    scene.send("m1")
    for _ in range(MAX_ATTEMPTS):
        die(scene)
    scene.run_until_idle()
    assert scene.events() == []
    assert scene.letters()[0]["reason"] == "attempts exhausted"
    assert scene.is_idle()


def test_a_batch_whose_runs_die_waits_longer_each_time_but_not_after_the_first_death(scene: Scene) -> None:
    scene.send("m1")
    token_ms, lasted_ms = scene.engine.store.settings.token_ms, []
    for _ in range(9):
        taken_at_ms = scene.engine.clock.now_ms
        die(scene)
        lasted_ms.append(scene.engine.clock.now_ms - taken_at_ms - token_ms)
    assert lasted_ms == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, MAX_RETRY_MS, MAX_RETRY_MS]


def test_ten_minutes_of_any_failures_do_not_use_up_the_default_attempts() -> None:
    attempts = StageConfig.model_fields["limits"].get_default().max_attempts
    refused_ms = sum(back_off_ms(attempt, lambda: 1.0) for attempt in range(1, attempts))
    # The token of an attempt is longer by the pause after the attempt before it.
    died_ms = sum(SETTINGS.token_ms + longest_pause_ms(attempt - 1) for attempt in range(1, attempts + 1))
    assert min(refused_ms, died_ms) > 10 * MINUTE_MS


@pytest.mark.parametrize(
    "poison",
    [
        b"no line end",
        b'"m1"\nnot json',
        b'"m1"\n[]',
        b'"m1"\n{"v":1,"platform":"generic"}',
        b'7\n{"v":1,"platform":"generic","receivedAt":1}',
        b'"m1"\n{"v":1,"platform":"generic","receivedAt":"1"}',
        b"\xff\xfe\n\x80",
    ],
)
def test_what_cannot_be_read_is_put_aside_at_once_with_all_its_bytes(scene: Scene, poison: bytes) -> None:
    scene.send("m0", "well")
    scene.send_bytes("m1", poison)
    scene.run()
    scene.send("m2")
    scene.run()
    (letter,) = scene.letters()
    assert letter["reason"].startswith("unreadable: ")
    assert batch.taken_from_letter(letter, letter["payloads"])[1].payloads[1] == poison
    assert scene.ids() == [["m2"]]


def test_a_dead_letter_that_cannot_be_sent_is_no_reason_to_forget_the_batch(scene: Scene) -> None:
    scene.queue.failures = [SendFailed("send dead letter: Throttling")] * 3
    scene.bus.failures = [SendFailed("put event: AccessDenied")] * MAX_ATTEMPTS
    scene.send("m1")
    scene.run_until_idle()
    assert len(scene.letters()) == 1
    assert scene.is_idle()


# -- time ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of the process, which no conversation processor can catch."""


class SlowAws:
    """Each call takes as long as it may, and the conversation processor is killed at its time-out."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.used_ms = scene, 0
        for destination, method in ((scene.bus, "publish"), (scene.objects, "put"), (scene.queue, "put")):
            setattr(destination, method, self._slow(getattr(destination, method)))

    def _slow(self, call: Callable[..., None]) -> Callable[..., None]:
        def slow(*args: Any) -> None:
            self.used_ms += MAX_CALL_MS
            if self.used_ms > LIFE_MS - RELEASE_MS:
                raise Killed
            call(*args)

        return slow

    def process(self) -> None:
        self.used_ms = 0
        time = TimeLeft(lambda: LIFE_MS - self.used_ms)
        for conversation in self.scene.engine.claim():
            self.scene.conversation_processor.process(conversation, time)
        self.scene.engine.clock.advance(MAX_RETRY_MS)


def test_a_conversation_processor_whose_calls_all_fail_late_puts_its_batch_back_each_time_and_gives_up_in_the_end(
    fake: Engine,
) -> None:
    scene = Scene(fake, max_event_bytes=1_024)
    scene.bus.failures = [SendFailed("put event: ReadTimeoutError")] * MAX_ATTEMPTS
    slow = SlowAws(scene)
    scene.send("m1", "x" * 2_000)
    for _ in range(MAX_ATTEMPTS):
        slow.process()
        assert scene.engine.store.peek_conversation(CONVERSATION).state == "PENDING"
    assert scene.telemetry.said("emit failed")[-1]["reason"] == "too little time is left for another call"
    slow.process()
    assert scene.letters()[0]["reason"] == "attempts exhausted"
    assert scene.is_idle()


def test_a_short_time_out_still_leaves_time_for_the_first_calls(fake: Engine) -> None:
    left = iter([4_000, 3_900, 3_700, 1_999])
    time = TimeLeft(lambda: next(left))
    time.require_a_call()
    time.require_a_call()
    with pytest.raises(SendFailed):
        time.require_a_call()


def test_two_of_the_slowest_calls_and_the_settling_fit_into_the_default_time_out() -> None:
    assert 1_000 * CONVERSATION_PROCESSOR_TIMEOUT_SECONDS >= 2 * MAX_CALL_MS + RELEASE_MS
    connect_seconds, answer_seconds, attempts = aws.PATIENT
    assert 1_000 * attempts * (connect_seconds + answer_seconds) + 1_000 <= MAX_CALL_MS


def test_a_dead_letter_too_large_for_its_queue_goes_by_reference_and_comes_back(scene: Scene) -> None:
    scene.bus.failures = [SendFailed("put event: AccessDenied")] * MAX_ATTEMPTS
    for n in range(5):
        scene.send(f"m{n}", "\u0001" * 10_000)
    scene.run_until_idle()
    (letter,) = scene.letters()
    assert "payloads" not in letter
    assert len(scene.queue.bodies[0]) <= MAX_DEAD_LETTER_BYTES
    assert scene.emission.redrive(letter, AMPLE) == letter["batchId"]
    assert scene.telemetry.said("emitted")


def test_a_dead_letter_is_redriven_under_its_batch_id(scene: Scene) -> None:
    scene.bus.failures = [SendFailed("put event: AccessDenied")] * MAX_ATTEMPTS
    scene.send("m1", "precious 😀")
    scene.run_until_idle()
    (letter,) = scene.letters()
    assert scene.emission.redrive(letter, AMPLE) == letter["batchId"]
    (event,) = scene.events()
    assert (event["batchId"], event["attempt"]) == (letter["batchId"], MAX_ATTEMPTS + 1)
    assert event["text"] == "precious 😀"


@pytest.mark.parametrize("letter", [{}, {"payloads": []}, {"payloads": ["x"]}, {"payloadsRef": 7}])
def test_what_is_no_dead_letter_is_not_redriven(scene: Scene, letter: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="this is not the body of a dead letter"):
        scene.emission.redrive(letter, AMPLE)
    assert scene.events() == []


# -- any message -----------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=50)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 2)
@given(st.lists(TEXT, min_size=1, max_size=5), st.booleans())
def test_whatever_people_write_the_event_is_valid(texts: list[str], oversize: bool) -> None:
    payloads = [
        encode(Message(id=f"m{n}", text=text, platform="generic", received_at=n)) for n, text in enumerate(texts)
    ]
    taken = BatchTaken("b-1", 1, len(texts), 1, 2, 3, "silence", "silenceMs", 0, payloads)
    content = batch.content_of(payloads)
    key = batch.object_key(batch.BATCHES, "acme/sms/1/2", taken)
    reference = {"bucket": "b", "key": key, "bytes": len(content.wire)} if oversize else None
    event = batch.event_of(CONVERSATION, taken, content, emitted_at_ms=4, reference=reference)
    VALIDATOR.validate(json.loads(to_json(event)))
