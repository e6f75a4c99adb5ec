"""A batch goes to the bus and to its queue, or to neither, and the messages alone say which queue that is."""

import json
from collections.abc import Iterator
from threading import Barrier, Event
from typing import Any

import pytest

from message_buffer.aws import clients as aws
from message_buffer.errors import SendFailed
from message_buffer.events.batch_queues import BatchQueues
from message_buffer.events.emission import TimeLeft, open_emission
from message_buffer.lanes.holds import NO_END_MS, Hold
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import MIN_RETRY_MS
from message_buffer.messages.conversation_id import TRIAL_TENANT, ConversationId
from message_buffer.messages.message import Message, encode
from message_buffer.rules.queues import Queues, queue_of, unknown_queues
from message_buffer.settings import EmissionSettings
from tests.support.engine import Engine
from tests.support.fakes import RecordedTelemetry
from tests.support.web_server import Request, WebServer, web_server
from tests.unit.test_conversation_processor import AMPLE, CONVERSATION, MAX_ATTEMPTS, NOW, Scene

QUEUES: Queues = {
    "vip": {"tenant": ["acme"], "platform": ["whatsapp", "sms"]},
    "whatsapp": {"platform": ["whatsapp"]},
    "sales": {"agent": ["sales"]},
    "shop": {"account": ["shop"]},
    "default": {},
    "handoff": {},
}
EMISSION = EmissionSettings("bus", 256_000, "bucket", 20, "https://sqs.example.org/letters", "takeovers", "tuning")
REFUSED = SendFailed("send batch: ServiceUnavailable")


def body(message_id: str, queue: str | None = None, text: str = "Hey") -> bytes:
    return encode(Message(id=message_id, text=text, received_at=1, platform="generic", queue=queue))


def taken(*queues: str | None, handoff: Hold | None = None, attempt: int = 1) -> BatchTaken:
    payloads = [body(f"m{number}", each) for number, each in enumerate(queues)]
    return BatchTaken("b-1", attempt, 1, 1, 2, 3, "silence", "silenceMs", 0, payloads, handoff=handoff)


@pytest.fixture
def scene(fake: Engine) -> Scene:
    return Scene(fake, queues=("default", "whatsapp", "handoff"))


# -- which queue -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conversation", "agent", "rule", "queue"),
    [
        (("acme", "whatsapp", "1", "2"), "sales", None, "vip"),
        (("default", "whatsapp", "1", "2"), "sales", None, "whatsapp"),
        (("acme", "telegram", "1", "2"), "sales", None, "sales"),
        (("acme", "telegram", "1", "2"), None, None, "default"),
        (("acme", "generic", "shop", "2"), None, None, "shop"),
        (("acme", "custom", "shop:eu", "2"), None, None, "shop"),
        (("acme", "generic", "shop:eu", "2"), None, None, "default"),
        (("acme", "whatsapp", "1", "2"), "sales", "sales", "sales"),
        (("acme", "whatsapp", "1", "2"), "sales", "handoff", "handoff"),
    ],
)
def test_the_first_queue_all_of_whose_conditions_are_met_gets_a_message_unless_a_rule_names_another(
    conversation: tuple[str, str, str, str], agent: str | None, rule: str | None, queue: str
) -> None:
    assert queue_of(QUEUES, ConversationId(*conversation), agent=agent, rule=rule) == queue


def test_without_a_default_what_no_condition_matches_has_no_queue() -> None:
    conversation = ConversationId("acme", "telegram", "1", "2")
    queues: Queues = {"whatsapp": {"platform": ["whatsapp"]}, "handoff": {}}
    assert queue_of(queues, conversation, agent=None, rule=None) is None
    assert queue_of({}, conversation, agent=None, rule="whatsapp") is None


def test_rules_that_name_a_queue_of_another_stage_are_told_the_queues_of_this_one() -> None:
    overrides = {"sms": {"queue": "text"}, "whatsapp": {"queue": "default"}}
    rules = {"queue": "whatsap", "platformOverrides": overrides}
    assert list(unknown_queues(rules, ("whatsapp", "default"))) == [
        "queue: there is no queue 'whatsap'; use one of default, whatsapp",
        "platformOverrides.sms.queue: there is no queue 'text'; use one of default, whatsapp",
    ]
    assert list(unknown_queues({"queue": "default"}, ())) == [
        "queue: there is no queue 'default'; this stage has no queues, so remove the rule"
    ]
    assert not list(unknown_queues({"queue": None, "platformOverrides": {"sms": None}}, ()))


@pytest.mark.parametrize(
    ("stored", "queue"),
    [
        (["whatsapp"], "whatsapp"),
        (["default", "whatsapp"], "whatsapp"),
        (["whatsapp", "default"], "default"),
        (["whatsapp", None], "default"),
        (["gone"], "default"),
    ],
)
def test_the_newest_messages_queue_counts_and_one_that_is_gone_gives_way_to_the_default(
    scene: Scene, stored: list[str | None], queue: str
) -> None:
    for number, each in enumerate(stored):
        scene.send_bytes(f"m{number}", body(f"m{number}", each))
    scene.run()
    (sent,), (event,) = scene.queues.sent, scene.events()
    assert (sent.queue, sent.batch_id, sent.detail) == (queue, event["batchId"], event)
    assert event["queue"] == queue
    assert not [message for message in event["messages"] if "queue" in message]
    assert scene.telemetry.said("emitted")[0]["queue"] == queue
    assert "BatchesWithoutQueue" not in scene.telemetry.counts


@pytest.mark.parametrize(("until_ms", "until"), [(9_000, 9_000), (NO_END_MS, None)])
def test_a_batch_of_a_handed_off_conversation_goes_to_people(scene: Scene, until_ms: int, until: int | None) -> None:
    scene.emission.send(CONVERSATION, taken("whatsapp", handoff=Hold("handoff", until_ms, "answer")), AMPLE)
    (sent,), (event,) = scene.queues.sent, scene.events()
    assert (sent.queue, sent.detail) == ("handoff", event)
    assert (event["queue"], event["handoff"]) == ("handoff", {"cause": "answer", "until": until})


def test_without_a_queue_for_people_a_batch_keeps_its_queue(fake: Engine) -> None:
    scene = Scene(fake, queues=("whatsapp", "default"))
    scene.emission.send(CONVERSATION, taken("whatsapp", handoff=Hold("handoff", 9_000, "operator")), AMPLE)
    assert [sent.queue for sent in scene.queues.sent] == ["whatsapp"]


def test_a_batch_that_no_queue_is_for_is_published_and_counted(fake: Engine) -> None:
    scene = Scene(fake, queues=("whatsapp", "handoff"))
    scene.send_bytes("m1", body("m1"))
    scene.run()
    (event,) = scene.events()
    assert "queue" not in event
    assert scene.queues.sent == []
    assert scene.is_idle()
    assert scene.telemetry.counts["BatchesWithoutQueue"] == 1
    assert scene.telemetry.said("batch without queue") == [{"conversation": CONVERSATION, "batch": event["batchId"]}]


def test_a_trial_goes_to_the_bus_alone(scene: Scene) -> None:
    trial = f"{TRIAL_TENANT}/generic/verify/a-trial"
    scene.engine.send(trial, "m1", "Hey", rules=NOW)
    scene.run()
    assert len(scene.events()) == 1
    assert scene.queues.sent == []
    assert not scene.telemetry.counts


def test_in_a_stage_without_queues_nothing_changes(fake: Engine) -> None:
    scene = Scene(fake)
    scene.conversation_processor.warm_up()
    scene.emission.send(CONVERSATION, taken("whatsapp"), AMPLE)
    (event,) = scene.events()
    assert (scene.queues.sent, scene.queues.connections) == ([], 0)
    assert not {"queue", "handoff"} & event.keys()
    assert "queue" not in scene.telemetry.said("emitted")[0]
    assert "BatchesWithoutQueue" not in scene.telemetry.counts


# -- both, or again --------------------------------------------------------------------------------


def test_bus_and_queue_are_called_at_the_same_time(scene: Scene) -> None:
    both = Barrier(2, timeout=20)

    def meet() -> None:
        both.wait()

    scene.bus.on_publish = scene.queues.on_send = meet
    scene.send("m1")
    scene.run()
    assert len(scene.events()) == len(scene.queues.sent) == 1
    assert scene.is_idle()


def test_a_warm_up_connects_to_the_queues(scene: Scene) -> None:
    scene.conversation_processor.warm_up()
    assert (scene.bus.connections, scene.queues.connections) == (1, 1)


@pytest.mark.promise("P3")
@pytest.mark.parametrize("fails", ["bus", "queue", "both"])
@pytest.mark.parametrize("error", [REFUSED, RuntimeError("the text of a customer")])
def test_if_either_fails_the_whole_batch_is_sent_again_under_its_id(scene: Scene, fails: str, error: Exception) -> None:
    scene.bus.failures = [error] if fails != "queue" else []
    scene.queues.failures = [error] if fails != "bus" else []
    scene.send("m1")
    scene.run()
    assert (len(scene.events()), len(scene.queues.sent)) == (fails == "queue", fails == "bus")
    assert not scene.is_idle()
    assert "Batches" not in scene.telemetry.counts
    scene.engine.clock.advance(MIN_RETRY_MS)
    scene.run()
    assert scene.is_idle()
    assert {event["batchId"] for event in scene.events()} == {sent.batch_id for sent in scene.queues.sent}
    assert scene.events()[-1] == scene.queues.sent[-1].detail
    assert scene.events()[-1]["attempt"] == 2
    assert "the text of a customer" not in str(scene.telemetry.lines)


def test_a_call_that_fails_waits_for_the_other(scene: Scene) -> None:
    """If one of the two calls fails, wait for the other: a batch that is put back must not still be on its way."""
    failed, ended = Event(), list[bool]()

    def fail() -> None:
        failed.set()
        raise REFUSED

    def end_after_the_failure() -> None:
        is_set = failed.wait(20)
        Event().wait(0.05)
        ended.append(is_set)

    scene.bus.on_publish, scene.queues.on_send = fail, end_after_the_failure
    with pytest.raises(SendFailed):
        scene.emission.send(CONVERSATION, taken("whatsapp"), AMPLE)
    assert ended == [True]


@pytest.mark.parametrize("done", ["bus", "queue"])
def test_a_run_that_is_killed_between_the_two_calls_is_followed_by_one_that_makes_both(scene: Scene, done: str) -> None:
    class Killed(BaseException):
        """The end of the process, which nothing handles."""

    scene.bus.failures, scene.queues.failures = ([], [Killed()]) if done == "bus" else ([Killed()], [])
    scene.send("m1")
    with pytest.raises(Killed):
        scene.run()
    scene.engine.clock.advance(scene.engine.store.settings.token_ms)
    scene.engine.store.recover_expired(0)
    scene.run_until_idle()
    calls = [event["batchId"] for event in scene.events()], [sent.batch_id for sent in scene.queues.sent]
    assert sorted(map(len, calls)) == [1, 2]
    assert len({*calls[0], *calls[1]}) == 1


@pytest.mark.promise("P6")
def test_a_run_whose_token_has_ended_calls_neither(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.pause_after_take(monkeypatch)
    scene.send("m1")
    scene.run()
    assert (scene.events(), scene.queues.sent) == ([], [])
    assert len(scene.telemetry.said("token ended")) == 1


def test_a_run_without_time_calls_neither(scene: Scene) -> None:
    left = iter([30_000])  # the time-out, then nothing
    with pytest.raises(SendFailed):
        scene.emission.send(CONVERSATION, taken("whatsapp"), TimeLeft(lambda: next(left, 0)))
    assert (scene.events(), scene.queues.sent) == ([], [])


@pytest.mark.promise("P1")
def test_a_batch_whose_queue_always_fails_becomes_a_dead_letter_and_a_redrive_sends_it_to_both(scene: Scene) -> None:
    scene.queues.failures = [REFUSED] * MAX_ATTEMPTS
    scene.send_bytes("m1", body("m1", "whatsapp"))
    scene.run_until_idle()
    (letter,) = scene.letters()
    assert (letter["reason"], scene.queues.sent) == (str(REFUSED), [])
    published = len(scene.events())
    assert scene.emission.redrive(letter, AMPLE) == letter["batchId"]
    (sent,) = scene.queues.sent
    assert (sent.queue, sent.batch_id) == ("whatsapp", letter["batchId"])
    assert scene.events()[published:] == [sent.detail]
    scene.queues.failures = [REFUSED]
    with pytest.raises(SendFailed):
        scene.emission.redrive(letter, AMPLE)


def test_what_cannot_be_read_goes_to_no_queue(scene: Scene) -> None:
    scene.send_bytes("m1", b'"m1"\n{"v":1,"queue":"whatsapp"}')
    scene.run()
    assert (len(scene.letters()), scene.queues.sent) == (1, [])


def test_a_batch_too_large_for_an_event_goes_to_its_queue_by_the_same_reference(fake: Engine) -> None:
    scene = Scene(fake, max_event_bytes=2_000, queues=["default"])
    for number in range(4):
        scene.send_bytes(f"m{number}", body(f"m{number}", text="x" * 600))
    scene.run()
    (event,), (sent,) = scene.events(), scene.queues.sent
    assert sent.detail == event
    assert list(scene.objects.kept) == [event["messagesRef"]["key"]]
    kept = json.loads(scene.objects.kept[event["messagesRef"]["key"]])
    assert not [message for message in kept["messages"] if "queue" in message]


# -- the calls -------------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server that answers in place of AWS."""
    with web_server() as server:
        given = {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "REGION": "us-east-1", "ENDPOINT_URL": server.url}
        for name, value in given.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        aws._made.cache_clear()
        yield server
        for service in ("events", "sqs"):
            aws.client(service)._drop_idle()
        aws._made.cache_clear()


def test_the_emitter_makes_two_calls_and_reads_no_table(server: WebServer) -> None:
    url = "https://sqs.us-east-1.amazonaws.com/1/default.fifo"
    emission = open_emission(EMISSION._replace(queues={"default": url}), RecordedTelemetry())
    emission.send(CONVERSATION, taken("whatsapp"), AMPLE)
    assert len(server.requests) == 2
    calls = {request.headers["x-amz-target"]: request.json for request in server.requests}
    sent, (entry,) = calls["AmazonSQS.SendMessage"], calls["AWSEvents.PutEvents"]["Entries"]
    assert (sent["QueueUrl"], sent["MessageDeduplicationId"]) == (url, "b-1")
    assert json.loads(sent["MessageBody"]) == {
        "source": entry["Source"], "detail-type": entry["DetailType"], "detail": json.loads(entry["Detail"]),
    }  # fmt: skip


def test_a_group_is_one_conversation_whatever_its_id(server: WebServer) -> None:
    shop, queues = "default/generic/shop/", BatchQueues({"default": "u"})
    for user in ("c1", "c2", "ü" * 400, "c1"):
        queues.send("default", "t", "{}", conversation=shop + user, batch_id="b-1")
    groups = [request.json["MessageGroupId"] for request in server.requests]
    assert len(set(groups)) == 3
    assert groups[0] == groups[3]
    assert all(each.isascii() and each.isalnum() and len(each) <= 128 for each in groups)


def test_characters_that_sqs_refuses_are_escaped_before_the_size_is_measured(fake: Engine) -> None:
    scene = Scene(fake, queues=["default"])
    text = "a\ufffeb\uffffc\x7f\x01é👋"
    scene.send_bytes("m1", body("m1", text=text))
    scene.run()
    ((_, detail),) = scene.bus.published
    assert "\ufffe" not in detail
    assert "\uffff" not in detail
    assert scene.events()[0]["text"] == scene.queues.sent[0].detail["text"] == text
    assert all(ord(each) >= 32 for each in detail)


@pytest.mark.parametrize("refused", ["AWSEvents.PutEvents", "AmazonSQS.SendMessage"])
def test_a_refusal_of_either_service_is_a_failure(server: WebServer, refused: str) -> None:
    def answer(request: Request) -> Any:
        failed = request.headers["x-amz-target"] == refused
        return (400, {"__type": "com.amazonaws#AccessDenied"}) if failed else (200, {})

    server.answer = answer
    emission = open_emission(EMISSION._replace(queues={"default": "u"}), RecordedTelemetry())
    with pytest.raises(SendFailed, match="AccessDenied"):
        emission.send(CONVERSATION, taken(None), AMPLE)
