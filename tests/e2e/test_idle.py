"""No function runs while no message comes, and no log has people's words."""

import time

import pytest

from tests.support.judge import Talk, judge
from tests.support.local_stage import LocalStage
from tools.local.webhooks import whatsapp, whatsapp_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

SECRET_WORDS = "xyzzy-nobody-else-may-read-this"


@pytest.mark.promise("P8")
def test_the_processor_leaves_when_nothing_is_left_to_do(stage: LocalStage) -> None:
    talk = Talk(stage)
    talk.say()
    stage.wait_until_busy()
    judge([talk], within_ms=15_000)
    stage.wait_until_idle()
    stage.invoke("watchdog", wait=True)
    assert not stage.processor_is_there(), "the watchdog starts none without work"


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
