"""`bufferctl verify` reports what works on the local stage, and removes all that it made, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bufferctl import verify
from bufferctl.__main__ import main
from bufferctl.stage import LOCAL, find_stage
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import TRIAL_TENANT
from tests.support.local_stage import LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]


def run(stage: LocalStage, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Json:
    ended = main(["--outputs", str(stage.stage.outputs_file), "verify", "--json", *words])
    captured = capsys.readouterr()
    assert ended == code, captured
    found: Json = json.loads(captured.out)
    return found


def remains(stage: LocalStage) -> list[str]:
    """Return everything that trials have left in the stage, except keys that expire, which contain no text."""
    client = stage.outputs.client
    queues = client("sqs").list_queues(QueueNamePrefix=verify.PREFIX).get("QueueUrls", [])
    rules = client("events").list_rules(NamePrefix=verify.PREFIX, EventBusName=stage.outputs.EventBusName)["Rules"]
    listed = stage.admin.ask("conversation.list", tenant=TRIAL_TENANT)["conversations"]
    scopes = stage.admin.ask("rules.list", prefix=f"conversation:{TRIAL_TENANT}")["rules"]
    objects = client("s3").list_objects_v2(Bucket=stage.outputs.OversizeBucketName).get("Contents", [])
    stored = [each["Key"] for each in objects if TRIAL_TENANT in each["Key"]]
    keys = [key for key in stage.keys(f"*{TRIAL_TENANT}*") if stage.valkey.ttl(key) < 0]
    return [*queues, *map(str, rules), *map(str, listed), *map(str, scopes), *stored, *keys]


def test_a_stage_that_works_passes_all_checks_and_nothing_is_left(
    stage: LocalStage, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(stage, capsys, "--fallback", "--load", "1/s", "--for", "5s")
    checks = {each["check"]: each for each in found["checks"]}
    assert {name for name, each in checks.items() if not each["ok"]} == set()
    assert list(checks) == [
        "a wrong signature", "the first event", "a redelivery", "a stop word", "five fragments", "an edit",
        "a batch of 300 KB", "the fallback",
    ]  # fmt: skip
    assert checks["a batch of 300 KB"]["found"] == "by S3 (Valkey lane)"
    assert checks["the fallback"]["found"] == "one batch (DynamoDB lane)"
    assert (found["load"]["accepted"], found["load"]["lost"]) == (5, 0)
    assert remains(stage) == []


@contextmanager
def verifying(stage: LocalStage) -> Iterator["subprocess.Popen[str]"]:
    """Run `bufferctl verify` in another process, and yield that process in the middle of its trial."""
    command = [sys.executable, "-m", "bufferctl", "--outputs", str(stage.stage.outputs_file), "verify"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not any(verify.PREFIX in each for each in remains(stage)):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        # After this time, the process has written its rules and sent messages.
        time.sleep(3)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_an_interrupted_trial_removes_what_it_made(stage: LocalStage) -> None:
    with verifying(stage) as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGINT
        assert remains(stage) == []


def test_what_a_killed_trial_left_is_removed_by_the_next_one_when_its_time_is_over(
    stage: LocalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = find_stage(LOCAL, profile=None, region=None, outputs=stage.stage.outputs_file)
    with verifying(stage) as process:
        verify.remove_leftovers(running, LOCAL)
        assert remains(stage), "another trial has removed a running one"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    left = remains(stage)
    assert [each for each in left if re.search(verify.PREFIX, each)]
    later = time.time() + verify.MAX_TRIAL_SECONDS + 1
    monkeypatch.setattr("bufferctl.verify.time.time", lambda: later)
    verify.remove_leftovers(running, LOCAL)
    assert remains(stage) == []
