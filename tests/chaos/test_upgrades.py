"""Upgrade and roll back a local stage under traffic, turn its responder off, and remove the stage."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from infra.cli import LOCAL, context
from infra.removal import Removal
from infra.settings_and_defaults import load_stage
from tests.support.earlier_version import NoEarlierVersion, Version, earlier_commit
from tests.support.judge import TEXT_MARK, Talk, judge, traffic
from tests.support.local_stage import LocalStage, share_emulator
from tools.local.demo import REPLIES
from tools.local.events import Inbox, collect
from tools.local.progress import Progress
from tools.local.stage import ROOT, Stage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("chaos-stage"),
    pytest.mark.nightly,
]

# Both versions must know these settings.
OVERRIDES: dict[str, Any] = {
    "rules": {"silenceMs": 1_000, "typingInferenceMs": 2_000, "maxWaitMs": 6_000},
    # On a slow machine the deployments take so long that a conversation gets more replies than the default.
    "responder": {"max_replies_an_hour": 100_000},
}
CONVERSATIONS = 6
TRAFFIC_SECONDS = 15.0
# The emulator runs the watchdog once a minute, and a busy machine starts functions slowly.
SETTLED_SECONDS = 240.0
# If a reply is sent at all, it comes within this time.
QUIET_SECONDS = 10.0
THIS = Version(ROOT)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("upgraded") / "home"


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[LocalStage]:
    """Yield a stage that only this file uses, because its tests upgrade and remove it."""
    share_emulator(home)
    stage = Stage(home)
    try:
        outputs = stage.up(Progress(StringIO()), overrides=OVERRIDES)
        with collect(outputs) as inbox:
            yield LocalStage(stage, outputs, inbox)
    finally:
        stage.down(Progress(StringIO()))


@pytest.mark.promise("P1", "P2", "P3")
def test_an_upgrade_and_a_roll_back_lose_double_and_stop_nothing(
    running: LocalStage, home: Path, tmp_path: Path
) -> None:
    try:
        earlier = Version.unpack(earlier_commit(), tmp_path / "earlier")
    except NoEarlierVersion as error:
        pytest.skip(str(error))
    talks = [Talk(running) for _ in range(CONVERSATIONS)]
    with collect(running.outputs, pattern=REPLIES) as replies:
        for version in (earlier, THIS, earlier):
            sent = sum(len(talk.accepted) for talk in talks)
            with traffic(talks):
                version.deploy(home, overrides=OVERRIDES)
                time.sleep(TRAFFIC_SECONDS)
            assert sum(len(talk.accepted) for talk in talks) > sent
        judge(talks, within_ms=round(SETTLED_SECONDS * 1_000), timeout_seconds=SETTLED_SECONDS)
        sent_ids = {message_id for talk in talks for message_id in talk.ids}
        answered = _answered(replies, sent_ids)
    assert answered.keys() == sent_ids
    assert max(answered.values()) == 1, "no customer is answered twice"
    state = running.admin.ask("status")
    assert (state["pending"], state["inflight"], state["windows"]["open"]) == (0, 0, 0)


def test_a_responder_that_is_turned_off_answers_nobody(running: LocalStage, home: Path) -> None:
    with collect(running.outputs, pattern=REPLIES) as replies:
        THIS.deploy(home, overrides={**OVERRIDES, "responder": {}})
        answered, unanswered = Talk(running), Talk(running)
        answered.insist()
        assert replies.wait_until(bool, timeout_seconds=SETTLED_SECONDS)
        THIS.deploy(home, overrides={**OVERRIDES, "responder": None})
        unanswered.insist()
        judge([unanswered], within_ms=round(SETTLED_SECONDS * 1_000), timeout_seconds=SETTLED_SECONDS)
        time.sleep(QUIET_SECONDS)
        assert {arrival.batch["conversationId"] for arrival in replies.arrivals} == {answered.conversation_id}
    assert not [name for name in _functions(running) if "Responder" in name]


def test_a_removal_leaves_nothing(running: LocalStage, home: Path) -> None:
    THIS.deploy(home, overrides=OVERRIDES)
    client = running.outputs.client
    client("s3").put_object(Bucket=running.outputs.OversizeBucketName, Key="batches/one", Body=b"{}")
    config = load_stage(context()["stages"], stage=LOCAL, valkey_url=running.outputs.ValkeyUrl)
    said: list[str] = []
    removal = Removal(config, client=client, say=said.append)
    stacks = removal.existing()
    assert [stack.name.rpartition("-")[2] for stack in stacks] == ["Responder", "Buffer"]
    removal.explain(stacks)
    assert any("S3::Bucket" in line for line in said)
    removal.delete(stacks)
    assert removal.existing() == []
    assert _functions(running) == []
    assert client("dynamodb").list_tables()["TableNames"] == []
    buckets = [bucket["Name"] for bucket in client("s3").list_buckets()["Buckets"]]
    assert [name for name in buckets if not name.startswith("cdk-")] == []


def _functions(stage: LocalStage) -> list[str]:
    pages = stage.outputs.client("lambda").get_paginator("list_functions").paginate()
    return [function["FunctionName"] for page in pages for function in page["Functions"]]


def _answered(replies: Inbox, message_ids: set[str]) -> Counter[str]:
    """Wait until each message is in a reply, and return how many replies have it. A reply repeats its batch's texts."""

    def count() -> Counter[str]:
        texts = (str(arrival.batch["text"]) for arrival in replies.arrivals)
        return Counter(message_id for text in texts for message_id in re.findall(rf"{TEXT_MARK} (\S+)", text))

    replies.wait_until(lambda _: message_ids <= count().keys(), timeout_seconds=SETTLED_SECONDS)
    return count()
