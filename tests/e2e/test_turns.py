"""From webhooks to replies through the stage's queues, with an AI that this test plays: one turn at a time.

The emulator runs the mapping of a FIFO queue one batch of deliveries at a time, with several conversations in each. So
these tests cannot show how mappings scale, nor what two runs of one mapping do to each other.
"""

import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import urllib3

from bufferctl.events import ArrivedEvent
from tests.e2e.conftest import HANGING, answering, asked, said
from tests.support.local_stage import LocalStage
from tests.support.web_server import Answer, Request, WebServer
from tools.local.demo import REPLIES
from tools.local.events import Inbox, collect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("responder-stage")]

CONVERSATIONS, MESSAGES, KILLS = 50, 4, 3
# Each writer leads ten conversations, and writes to one after the other. Between two messages of a conversation passes
# more time than the silence that ends a batch, so a conversation has several batches.
WRITERS, MAX_PAUSE_SECONDS = 5, 0.6
AGENT_SECONDS = (0.2, 0.8)
# A reply that the AI gave before this time has been sent, or discarded.
SENT_SECONDS = 2.0
# A conversation whose run was killed three times is answered within this time.
PATIENCE_SECONDS = 240.0
ABOUT = "About: "


@pytest.fixture(scope="module")
def replies(responder_stage: LocalStage) -> Iterator[Inbox]:
    with collect(responder_stage.outputs, pattern=REPLIES) as inbox:
        yield inbox


class Agent:
    """An AI that repeats what it is asked, and notes if it is asked about a conversation while it works on it.

    A message's text is the name of its user and the message's number, so the AI sees which conversation it is about.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._at_work: dict[str, object] = {}
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answer:
        lines, run = asked(request).split("\n"), object()
        users = {line.partition(" ")[0] for line in lines}
        user = lines[0].partition(" ")[0]
        with self._lock:
            if users != {user} or user in self._at_work:
                self.wrong.append(f"asked for {lines} while {sorted(self._at_work)} are at work")
            self._at_work[user] = run
        time.sleep(random.uniform(*AGENT_SECONDS))
        self.may_answer.wait(PATIENCE_SECONDS)
        with self._lock:
            if self._at_work.get(user) is run:
                del self._at_work[user]
        return said(ABOUT + "\n".join(lines))

    def kill(self, stage: LocalStage) -> bool:
        """Kill the responder while it waits for the AI alone. Return False if it did not ask."""
        self.may_answer.clear()
        try:
            time.sleep(SENT_SECONDS)
            with self._lock:
                asked = bool(self._at_work)
                if asked:
                    stage.kill("responder")
                    # The killed runs have ended, although this server has not answered them.
                    self._at_work.clear()
            return asked
        finally:
            self.may_answer.set()


def write(stage: LocalStage, user: str, number: int, *, account: str = "shop") -> None:
    body = {"account": account, "conversation": user, "id": uuid.uuid4().hex, "text": f"{user} {number}"}
    while True:
        # On a busy machine an answer may come too late.
        with suppress(urllib3.exceptions.HTTPError):
            if stage.webhooks.post("generic", body).status == 200:
                return
        time.sleep(0.2)


def heard(replies: Sequence[ArrivedEvent]) -> dict[str, list[str]]:
    """Return the lines of the replies to each user, in the order in which the replies arrived, without repeats."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    events = {(each.batch["replyId"], each.batch["at"]): each.batch for each in replies}
    for event in events.values():
        text = "\n".join(part["text"] for part in event["parts"])
        if text.startswith(ABOUT):
            found[event["conversationId"].rpartition("/")[2]] += text.removeprefix(ABOUT).split("\n")
    return found


@pytest.mark.promise("P3")
def test_fifty_conversations_have_one_turn_at_a_time_over_kills_of_the_responder(
    responder_stage: LocalStage, replies: Inbox, ai: WebServer
) -> None:
    users = [uuid.uuid4().hex for _ in range(CONVERSATIONS)]
    expected = {user: [f"{user} {number}" for number in range(MESSAGES)] for user in users}
    agent, kills = Agent(), 0

    def write_to(some: list[str]) -> None:
        for number in range(MESSAGES):
            for user in some:
                write(responder_stage, user, number)
                time.sleep(random.uniform(0.0, MAX_PAUSE_SECONDS))

    def all_heard(arrived: Sequence[ArrivedEvent]) -> bool:
        found = heard(arrived)
        return all(len(found.get(user, ())) >= MESSAGES for user in users)

    with answering(ai, agent.answer), ThreadPoolExecutor(WRITERS) as writers:
        writing = [writers.submit(write_to, users[number::WRITERS]) for number in range(WRITERS)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while kills < KILLS:
            assert time.monotonic() < deadline, "the responder was not asked often enough to be killed"
            kills += agent.kill(responder_stage)
            time.sleep(SENT_SECONDS)
        for each in writing:
            each.result()
        replies.wait_until(all_heard, timeout_seconds=PATIENCE_SECONDS)
        # What is answered twice is heard soon.
        time.sleep(SENT_SECONDS)

    assert agent.wrong == []
    found = heard(replies.arrivals)
    assert {user: found.get(user) for user in users} == expected
    batches, sent = (
        sum(each.batch["conversationId"].rpartition("/")[2] in expected for each in inbox.arrivals)
        for inbox in (responder_stage.inbox, replies)
    )
    assert sent < batches, "no two batches were answered as one turn: this run proved less than it should"


def test_a_channel_that_hangs_does_not_hold_up_another(
    responder_stage: LocalStage, replies: Inbox, ai: WebServer
) -> None:
    hanging, others = ([uuid.uuid4().hex for _ in range(12)] for _ in range(2))
    may_answer, was_asked = threading.Event(), threading.Event()

    def answer(request: Request) -> Answer:
        text = asked(request)
        if text.partition(" ")[0] in hanging:
            was_asked.set()
            may_answer.wait(PATIENCE_SECONDS)
        return said(ABOUT + text)

    def heard_by(users: list[str]) -> bool:
        return replies.wait_until(lambda arrived: set(users) <= heard(arrived).keys(), timeout_seconds=PATIENCE_SECONDS)

    with answering(ai, answer):
        for user in hanging:
            write(responder_stage, user, 0, account=HANGING)
        assert was_asked.wait(PATIENCE_SECONDS)
        for user in others:
            write(responder_stage, user, 0)
        assert heard_by(others)
        assert not heard(replies.arrivals).keys() & set(hanging)
        may_answer.set()
        assert heard_by(hanging)
    found = heard(replies.arrivals)
    assert all(found[user] == [f"{user} 0"] for user in [*hanging, *others])
