"""The console's scenarios show on a local stage what they promise, and the stage is repaired after them."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
import redis
import urllib3
from playwright.sync_api import Browser, Locator, Page, expect

from bufferctl.events import EVERYTHING, ArrivedEvent
from bufferctl.verify import RULES_IN_FORCE_SECONDS
from message_buffer.json_object import Json
from tests.support.browser import axe, chromium
from tests.support.console import page_of, place_of
from tests.support.local_stage import LocalStage
from tools.console.accidents import KILLED, OUTAGE, Accidents
from tools.console.player import Player
from tools.console.running import make_parts
from tools.console.scenarios import Scenario, read_scenarios
from tools.local.events import collect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

SCENARIOS = read_scenarios()
PLAYED_WITHIN_SECONDS = 120
WITHIN_MS = 60_000
# On a busy machine a customer may type too slowly, so that a batch is emitted before its last message.
TRIES = 3


@pytest.fixture(scope="module")
def usual(stage: LocalStage) -> Iterator[LocalStage]:
    """Yield the stage, on which the rules of cdk.json's stages are in force instead of the tests' short ones."""
    stage.admin.ask("rules.set", scope="stage", rules={"preset": "customers"})
    time.sleep(RULES_IN_FORCE_SECONDS)
    yield stage
    stage.admin.ask("rules.delete", scope="stage")


class Theatre:
    """Plays several scenarios at the same time, each with a player of its own."""

    def __init__(self, stage: LocalStage) -> None:
        place = place_of(stage)
        self._parts = make_parts(place)
        self._accidents = Accidents(place)
        self._players: dict[str, Player] = {}
        self._runs = int(time.time()) % 1_000_000

    def play(self, names: Iterable[str]) -> dict[str, Json]:
        """Return what was done and seen in each scenario."""
        for name in names:
            player = Player(SCENARIOS, self._parts.simulator, self._parts.hub, accidents=self._accidents)
            self._players[name] = player
            self._runs += 1
            player.play(name, run=str(self._runs))
        seen = {}
        for name in names:
            assert self._players[name].wait(timeout_seconds=PLAYED_WITHIN_SECONDS), f"{name} does not end"
            seen[name] = self._players[name].progress or {}
        return seen

    def take(self, kind: str, detail: Json) -> None:
        for player in list(self._players.values()):
            player.take(kind, detail)


@pytest.fixture
def theatre(usual: LocalStage) -> Iterator[Theatre]:
    theatre, is_over = Theatre(usual), threading.Event()
    with collect(usual.outputs, pattern=EVERYTHING) as inbox:

        def pass_on() -> None:
            taken: list[ArrivedEvent] = []
            while not is_over.is_set():
                inbox.wait_until(lambda arrivals: len(arrivals) > len(taken), timeout_seconds=1)
                for arrival in inbox.arrivals[len(taken) :]:
                    taken.append(arrival)
                    theatre.take(arrival.event["detail-type"], arrival.event["detail"])

        passing = threading.Thread(target=pass_on, daemon=True)
        passing.start()
        yield theatre
        is_over.set()
        passing.join()


def unexpected(played: dict[str, Json]) -> dict[str, str]:
    """Return the scenarios in which something else was seen than they promise, with what was seen."""
    found = {}
    for name, progress in played.items():
        problems = [step["problem"] for step in progress["steps"] if step["problem"]]
        if not progress["asExpected"] or progress["state"] != "ended" or problems:
            found[name] = f"{progress['state']} {progress['batches']} {progress['events']} {problems}"
    return found


def breaks_the_stage(scenario: Scenario) -> bool:
    return any(step.do in (*KILLED, *OUTAGE) for step in scenario.steps)


PEACEFUL = [name for name, each in SCENARIOS.items() if not breaks_the_stage(each)]


def play_until_as_promised(theatre: Theatre, names: list[str]) -> None:
    left = dict.fromkeys(names, "")
    for _ in range(TRIES):
        left = unexpected(theatre.play(list(left)))
        if not left:
            return
    pytest.fail(json.dumps(left, indent=2))


def test_each_scenario_shows_what_it_promises(theatre: Theatre, usual: LocalStage) -> None:
    play_until_as_promised(theatre, PEACEFUL)
    assert rules_of_scenarios(usual) == []


@pytest.mark.parametrize("name", sorted(SCENARIOS.keys() - set(PEACEFUL)))
def test_each_scenario_with_an_accident_shows_what_it_promises(theatre: Theatre, usual: LocalStage, name: str) -> None:
    play_until_as_promised(theatre, [name])
    assert serves(usual.valkey)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(usual: LocalStage, browser: Browser) -> Iterator[Page]:
    with page_of(place_of(usual), browser) as found:
        # Until the console sees events, it says that it does not.
        expect(found.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
        yield found


def played_on(page: Page, name: str) -> Locator:
    """Play the scenario by a click. Return what the page says about it when it has ended."""
    scenario = SCENARIOS[name]
    page.get_by_role("button", name=scenario.title, exact=True).click()
    played = page.get_by_role("region", name=f"Scenario: {scenario.title}")
    expect(played.locator(".result")).to_contain_text(scenario.result, timeout=WITHIN_MS)
    return played


def test_what_was_played_stays_on_the_page_with_what_should_be_seen(page: Page) -> None:
    played = played_on(page, "07-edit-and-delete")
    expect(page.locator(".bubble.mine").filter(has_text="Order 12354")).to_contain_text("edited")
    expect(page.locator(".divider").filter(has_text="delivered again")).to_be_visible()
    page.reload()
    expect(played.locator(".result")).to_contain_text("1 batch (2 messages because of", timeout=WITHIN_MS)
    for number, step in enumerate(SCENARIOS["07-edit-and-delete"].steps):
        expect(played.locator(".steps li").nth(number)).to_contain_text(step.note)
    page.evaluate(axe())
    faults = page.evaluate("() => axe.run()")["violations"]
    assert [each["id"] for each in faults if each["impact"] in ("serious", "critical")] == []


def test_a_person_who_takes_over_is_seen_in_words(page: Page) -> None:
    played = played_on(page, "10-a-human-agent-takes-over")
    expect(page.locator(".bubble.human-agent")).to_contain_text("a human agent")
    expect(page.locator(".divider").filter(has_text="has taken over")).to_be_visible()
    expect(played.locator(".result")).to_contain_text("an event messages.conversation.taken_over")
    expect(played.locator(".result")).to_contain_text("The rules that the scenario set are removed.")


# -- a console that is killed ------------------------------------------------------------------------------


@contextmanager
def playing_console(stage: LocalStage, name: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a console, in a process of its own, that has begun to play the scenario."""
    command = [sys.executable, "-m", "tools.console", "--outputs", str(stage.stage.outputs_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as console:
        try:
            address = address_of(console)
            origin = re.match(r"http://[^/]+", address)
            assert origin
            answer = urllib3.request(
                "POST", f"{address}api/play", json={"name": name, "run": "1"}, headers={"Origin": origin[0]}
            )
            assert answer.status == 200, answer.data
            yield console
        finally:
            if console.poll() is None:
                os.killpg(console.pid, signal.SIGKILL)


def address_of(console: subprocess.Popen[str]) -> str:
    assert console.stdout
    for line in console.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/\S+/", line):
            return found[0]
    pytest.fail("the console printed no address")


def rules_of_scenarios(stage: LocalStage) -> list[str]:
    return [each["scope"] for each in stage.admin.ask("rules.list", prefix="conversation:")["rules"]]


def serves(valkey: redis.Redis) -> bool:
    """Return whether Valkey serves its slots. It answers a ping about two seconds earlier."""
    try:
        return bool(valkey.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
    except (redis.ConnectionError, redis.BusyLoadingError):
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_MS / 1_000
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_console_that_is_killed_in_an_outage_starts_valkey_again(usual: LocalStage) -> None:
    with playing_console(usual, "13-outage-of-valkey") as console:
        wait_until(lambda: not serves(usual.valkey))
        console.send_signal(signal.SIGKILL)
    wait_until(lambda: serves(usual.valkey))


def test_a_console_that_is_killed_leaves_no_rules_of_a_scenario(usual: LocalStage) -> None:
    with playing_console(usual, "11-stop-word") as console:
        wait_until(lambda: bool(rules_of_scenarios(usual)))
        console.send_signal(signal.SIGKILL)
    wait_until(lambda: not rules_of_scenarios(usual))
