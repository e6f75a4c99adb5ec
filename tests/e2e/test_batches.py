"""From webhook to event, by HTTP and the bus alone: which messages become one batch, and when."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bufferctl.events import ArrivedEvent
from tests.support.judge import Talk, ids_of, if_quick_enough, judge
from tests.support.local_stage import MAX_MESSAGES, SILENCE_MS, TYPING_MS, LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

# Long enough for cold starts beside other tests: these tests judge which messages come, not how fast.
WITHIN_MS = 15_000


@pytest.fixture
def talk(stage: LocalStage) -> Talk:
    return Talk(stage)


def one(talk: Talk) -> ArrivedEvent:
    (arrival,) = judge([talk], within_ms=WITHIN_MS)
    return arrival


def say_at_pace(talk: Talk, count: int, *, gap_ms: int) -> list[int]:
    """Send messages at an even pace; return how many were waiting after each."""
    waiting = []
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number * gap_ms / 1_000 - time.monotonic()))
        (state,) = talk.say().json["conversations"].values()
        waiting.append(state["count"])
    return waiting


@pytest.mark.smoke
def test_a_single_message_becomes_a_batch_after_the_silence(talk: Talk) -> None:
    talk.say(author="Ada")
    arrival = one(talk)
    (message,) = arrival.batch["messages"]
    assert message["text"] == f"text of {message['id']}"
    assert arrival.batch["conversationId"] == talk.conversation_id
    assert arrival.batch["flushReason"] == "silence"
    assert SILENCE_MS <= talk.accepted[0].due_at_ms - message["receivedAt"] < TYPING_MS
    assert arrival.at_ms >= talk.accepted[0].due_at_ms


@pytest.mark.promise("P4")
@pytest.mark.smoke
def test_each_message_resets_the_timer(stage: LocalStage) -> None:
    def attempt() -> bool:
        talk = Talk(stage)
        in_pace = say_at_pace(talk, 5, gap_ms=200) == [1, 2, 3, 4, 5]
        arrivals = judge([talk], within_ms=WITHIN_MS)
        if in_pace:
            due = [each.due_at_ms for each in talk.accepted]
            assert due == sorted(set(due)), "later with each message"
            (arrival,) = arrivals
            assert arrival.batch["messageCount"] == 5
            assert arrival.at_ms >= due[-1]
        return in_pace

    if_quick_enough(attempt)


@pytest.mark.smoke
def test_a_full_buffer_is_not_kept_waiting(talk: Talk) -> None:
    bodies = [talk.body() for _ in range(MAX_MESSAGES)]
    talk.note(talk.stage.webhooks.post("generic", bodies), *(body["id"] for body in bodies))
    arrival = one(talk)
    assert arrival.batch["messageCount"] == MAX_MESSAGES
    assert arrival.batch["flushReason"] == "max_messages"
    assert talk.accepted[-1].due_at_ms == arrival.batch["metadata"]["lastMessageAt"]


@pytest.mark.case(17)
def test_messages_that_arrive_during_emission_go_to_the_next_batch(talk: Talk) -> None:
    # Sixty in a row fill the buffer three times over: each batch is emitted while the next messages arrive.
    for _ in range(3 * MAX_MESSAGES):
        talk.say()
    judge([talk], within_ms=WITHIN_MS)
    assert len(talk.batches()) > 1
    generations = [arrival.batch["generation"] for arrival in talk.arrivals()]
    assert generations == sorted(set(generations))


@pytest.mark.case(21)
def test_what_a_message_carries_arrives_whole(talk: Talk) -> None:
    text = '  naïve ☕ 👩‍👩‍👧 \u0000 "quoted" \\ \n second line \u2028 '
    attachment = {"type": "image", "url": "https://example.com/a.png", "mimeType": "image/png", "name": "a.png"}
    talk.say(text=text, author="Ada", sentAt=1_700_000_000_000, attachments=[attachment])
    (message,) = one(talk).batch["messages"]
    assert message["text"] == text
    assert message["author"] == "Ada"
    assert message["sentAt"] == 1_700_000_000_000
    assert message["attachments"] == [attachment]


@pytest.mark.case(26)
@pytest.mark.smoke
def test_a_repeated_delivery_counts_once_before_and_after_the_batch(talk: Talk) -> None:
    talk.say("repeated-before")
    again = talk.say("repeated-before")
    assert (again.json["accepted"], again.json["duplicates"]) == (0, 1)
    talk.say("another")
    batches = judge([talk], within_ms=WITHIN_MS)
    late = talk.stage.webhooks.post("generic", talk.body("repeated-before"))
    assert (late.status, late.json["duplicates"]) == (200, 1)
    time.sleep((SILENCE_MS + TYPING_MS) / 1_000)
    assert talk.arrivals() == batches


@pytest.mark.case(25)
@pytest.mark.timeout(300)
def test_fifty_identical_deliveries_at_once_are_one_message(stage: LocalStage) -> None:
    def attempt() -> bool:
        talk = Talk(stage)
        body = talk.body()
        with ThreadPoolExecutor(50) as pool:
            answers = list(pool.map(lambda _: stage.webhooks.post("generic", body), range(50)))
        if any(answer.status == 503 for answer in answers):
            return False
        assert {answer.status for answer in answers} == {200}
        assert sum(answer.json["accepted"] for answer in answers) == 1
        talk.note(next(answer for answer in answers if answer.json["accepted"]), body["id"])
        assert ids_of(one(talk)) == [body["id"]]
        return True

    if_quick_enough(attempt)
