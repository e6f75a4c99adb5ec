"""No function runs while no message comes, and no log has people's words."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.webhooks import whatsapp, whatsapp_text
from tests.support.judge import Talk, if_quick_enough, judge
from tests.support.local_stage import IDLE_MS, START_MS, LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

SECRET_WORDS = "xyzzy-nobody-else-may-read-this"


def starts_since(stage: LocalStage, since_ms: int) -> int:
    """Return how many processors have run; a processor's run appears in the log when it has ended."""
    return sum(line.startswith("START ") for line in stage.log("processor", since_ms=since_ms))


@pytest.mark.promise("P8")
def test_the_processor_leaves_when_nothing_is_left_to_do(stage: LocalStage) -> None:
    talk = Talk(stage)
    talk.say()
    stage.wait_until_busy()
    judge([talk], within_ms=15_000)
    stage.wait_until_idle()
    stage.invoke("watchdog", wait=True)
    assert not stage.processor_is_there(), "the watchdog starts none without work"


@pytest.mark.timeout(300)
def test_fifty_messages_that_arrive_at_once_start_one_processor(stage: LocalStage) -> None:
    def attempt() -> bool:
        stage.wait_until_idle()
        since_ms = int(time.time() * 1_000)
        talks = [Talk(stage) for _ in range(5)]
        with ThreadPoolExecutor(51) as pool:
            coming = pool.submit(stage.wait_until_busy)
            list(pool.map(lambda number: talks[number % 5].say(), range(50)))
            said_ms = time.time() * 1_000 - since_ms
            came_ms = coming.result() * 1_000 - since_ms
        if sum(len(talk.accepted) for talk in talks) < 50:
            return False
        # The messages raced each other, so there is no order to judge.
        came = {message_id for talk in talks for batch in talk.wait_all() for message_id in batch}
        assert came == {message_id for talk in talks for message_id in talk.ids}
        stage.wait_until_idle()
        time.sleep(0.5)
        # Ingest rightly starts a second processor if the first one takes too long to come, or if it has left before the
        # last message.
        in_time = came_ms < START_MS and said_ms < IDLE_MS
        if in_time:
            assert starts_since(stage, since_ms) == 1
        return in_time

    if_quick_enough(attempt)


@pytest.mark.promise("P9")
def test_the_logs_hold_no_text_no_name_and_no_secret(stage: LocalStage) -> None:
    since_ms = int(time.time() * 1_000)
    talk = Talk(stage)
    talk.say(text=SECRET_WORDS, author=SECRET_WORDS, attachments=[{"type": "file", "name": SECRET_WORDS}])
    wrong = {"X-Signature-256": "sha256=" + "0" * 64}
    stage.webhooks.post("generic", talk.body(text=SECRET_WORDS), headers=wrong)
    stage.webhooks.post("generic", talk.body() | {"sentAt": SECRET_WORDS})
    stage.webhooks.post("generic", f'{{"text": "{SECRET_WORDS}"'.encode())
    stage.webhooks.post("whatsapp", whatsapp(whatsapp_text("wamid.secret", SECRET_WORDS, sender="4915100000000")))
    judge([talk], within_ms=15_000)
    stage.wait_until_idle()
    time.sleep(0.5)
    forbidden = [SECRET_WORDS, *stage.outputs.WebhookSecrets.values()]
    for role in stage.outputs.LogGroups:
        lines = stage.log(role, since_ms=since_ms)
        assert lines or role in ("watchdog", "dynamodb_processor", "admin", "gate"), f"{role} says nothing at all"
        assert not [line for line in lines if any(word in line for word in forbidden)]
