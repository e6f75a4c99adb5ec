"""The stage works although every new connection to Valkey takes seconds. Calls on open connections are fast."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from bufferctl.events import ArrivedEvent
from tests.support.judge import Talk, if_quick_enough, judge
from tests.support.local_stage import LocalStage
from tests.support.proxy import Proxy

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("chaos-stage"),
    pytest.mark.usefixtures("watchdog"),
]

DELAY_SECONDS = 3.0
# First a processor starts and connects, then a conversation processor does.
MARGIN_MS = 30_000
CALLERS = ("ingest", "processor", "conversation_processor", "watchdog", "admin")
TALKS = 4


@contextmanager
def slow_connections(stage: LocalStage) -> Iterator[Proxy]:
    """Yield a proxy that delays each new connection, and restart all functions so that they reach Valkey through it."""
    url = stage.outputs.ValkeyUrl
    assert url
    port = re.search(r":(\d+)", url.partition("//")[2])
    assert port
    proxy = Proxy(int(port[1]), delay_seconds=DELAY_SECONDS)
    with ExitStack() as until_the_end:
        until_the_end.callback(proxy.close)
        for role in CALLERS:
            until_the_end.enter_context(stage.configured(role, REDIS_URL=url.replace(port[1], str(proxy.port))))
        yield proxy


def talk_to(stage: LocalStage) -> list[ArrivedEvent]:
    """Send the first message of each of `TALKS` conversations, and return the events of their batches."""
    talks = [Talk(stage) for _ in range(TALKS)]
    with ThreadPoolExecutor(TALKS) as pool:
        assert [answer.status for answer in pool.map(Talk.say, talks)] == [200] * TALKS
    return judge(talks, within_ms=MARGIN_MS)


@pytest.mark.promise("P10")
def test_slow_new_connections_make_nothing_fall_back_or_be_lost(stage: LocalStage) -> None:
    def attempt() -> bool:
        since_ms = int(time.time() * 1_000)
        with slow_connections(stage) as proxy:
            arrivals = talk_to(stage)
            assert proxy.connections >= len({"ingest", "processor", "conversation_processor"})
            proxy.drop_connections()  # as ElastiCache may do at any time
            arrivals += talk_to(stage)
        fallbacks = [line for line in stage.log("ingest", since_ms=since_ms) if "the DynamoDB lane stands in" in line]
        if any("still connecting" in line for line in fallbacks):
            return False  # on a busy machine, a connection may take much longer than its delay
        assert fallbacks == []
        assert {arrival.batch["lane"] for arrival in arrivals} == {"valkey"}
        return True

    if_quick_enough(attempt)
