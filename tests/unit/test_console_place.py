"""The console finds the local stage again after a new start, and reports that it is down meanwhile."""

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import boto3
import pytest
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, HTTPClientError

from bufferctl.errors import Unreachable
from bufferctl.stage import ROOT, find_account
from tools.console.customers import PostedWebhook
from tools.console.place import Options, ShownStage
from tools.console.senders import LocalSender
from tools.local.outputs import Outputs


def write(path: Path, port: int) -> None:
    """Write what a stage writes when it has started. Its ports differ at each start."""
    Outputs(
        ApiEndpoint=f"http://127.0.0.1:{port}",
        EventBusName="bus",
        AwsEndpointUrl=f"http://127.0.0.1:{port + 1}",
        Region="us-east-1",
        ValkeyUrl=None,
        WebhookSecrets={"generic": "a secret"},
        Functions={"admin": "the-admin"},
        LogGroups={},
        DeadLetterQueueUrl="",
        OversizeBucketName="",
        RulesTableName="",
    ).write(path)
    # Two starts within one tick of the file system's clock do not happen.
    os.utime(path, ns=(port, port))


def test_a_stage_that_was_started_anew_is_found_at_its_new_address(tmp_path: Path) -> None:
    path = tmp_path / "outputs.json"
    write(path, 4_000)
    place = ShownStage(Options(outputs=path))
    assert place.stage.api_endpoint == "http://127.0.0.1:4000"
    write(path, 5_000)
    assert place.stage.api_endpoint == "http://127.0.0.1:5000"


def test_while_the_stage_is_down_every_part_says_so(tmp_path: Path) -> None:
    path = tmp_path / "outputs.json"
    write(path, 4_000)
    place = ShownStage(Options(outputs=path))
    assert place.stage.api_endpoint
    path.unlink()
    for use in (lambda: place.stage, lambda: place.sender):
        with pytest.raises(Unreachable, match="make up"):
            use()


def test_a_listener_of_an_unknown_stage_says_so_and_ends_while_its_input_is_open() -> None:
    """Reproduce a defect: Python crashed at its end because another thread was reading the input."""
    place = ShownStage(Options(stage="unknown"))
    with subprocess.Popen(
        place.listener, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdout
        assert listener.stderr
        assert "no stage 'unknown'" in json.loads(listener.stdout.read())["problem"]
        assert (listener.wait(30), listener.stderr.read()) == (4, "")


def test_a_local_webhook_that_does_not_answer_gets_a_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "outputs.json"
    write(path, 1)
    with pytest.raises(Unreachable, match="make up"):
        LocalSender(Outputs.read(path)).send("generic", PostedWebhook({}, "m1"))


@pytest.mark.parametrize("error", [EndpointConnectionError, ConnectionClosedError])
def test_a_local_stage_that_does_not_answer_is_not_up(error: type[HTTPClientError], tmp_path: Path) -> None:
    for options, text in ((Options(outputs=tmp_path), "make up"), (Options(stage="dev"), "AWS cannot be reached")):
        with pytest.raises(Unreachable, match=text), ShownStage(options).errors():
            raise error(endpoint_url="http://127.0.0.1:1")


def test_threads_share_one_client_of_each_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduce a defect: each request of the console made clients anew, from a session that is for one thread only."""
    has_begun, may_end, made = threading.Event(), threading.Event(), []

    def make(service: str, **_: Any) -> object:
        made.append(service)
        has_begun.set()
        assert may_end.wait(30)
        return object()

    monkeypatch.setattr(boto3, "Session", lambda **_: MagicMock(client=make))
    client = find_account("dev", profile=None, region="eu-central-1", outputs=Path()).client
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(client("lambda"))) for _ in range(3)]
    threads[0].start()
    assert has_begun.wait(30)
    for each in threads[1:]:
        each.start()
    may_end.set()
    for each in threads:
        each.join(30)
    assert made == ["lambda"]
    assert len(set(map(id, found))) == 1
