"""A person uses the console's page in a real browser, on a local stage."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import chromium
from tests.support.console import page_of, place_of
from tests.support.local_stage import LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

FRAGMENTS = ("Hey", "I have a question", "about my order", "#12345", "when will it arrive?")
# These tests judge what is seen, not how fast it comes.
WITHIN_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(stage: LocalStage, browser: Browser) -> Iterator[Page]:
    with page_of(place_of(stage), browser) as found:
        # Events reach the page once its rule and queue exist.
        expect(found.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
        yield found


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".bubble.mine").filter(has_text=text).first).to_be_visible(timeout=WITHIN_MS)


def the_batch(page: Page) -> str:
    divider = page.locator(".divider.batch").last
    expect(divider).to_be_visible(timeout=WITHIN_MS)
    return divider.inner_text()


def test_five_fragments_become_one_batch_while_the_bar_runs_and_jumps(page: Page) -> None:
    dues = []
    for fragment in FRAGMENTS:
        say(page, fragment)
        dues.append(page.locator(".due .at time").get_attribute("datetime"))
    assert dues == sorted(set(filter(None, dues))), "each fragment moved the due time"
    assert "5 messages, by silence" in the_batch(page)
    expect(page.locator(".divider.batch")).to_have_count(1)
    expect(page.locator(".buffer")).to_contain_text("Nothing waits.")


def test_the_page_says_why_the_batch_is_due_then(page: Page) -> None:
    say(page, "Hey")
    say(page, "you")
    expect(page.locator(".buffer .why")).to_contain_text("typingInferenceMs is 1.2 s", timeout=WITHIN_MS)
    expect(page.locator(".buffer .layer")).to_contain_text("deployed")


def test_a_conversation_is_held_and_resumed_after_a_question(page: Page) -> None:
    say(page, "Hey")
    the_batch(page)
    page.get_by_role("button", name=re.compile("^Time line and rules")).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Hold for an hour").click()
    dialog.get_by_role("button", name="Hold for an hour now").click()
    expect(dialog.locator(".facts")).to_contain_text(re.compile("Holdin (59 min|1.0 h)"), timeout=WITHIN_MS)
    dialog.get_by_role("button", name="Close").click()
    say(page, "one")
    say(page, "two")
    expect(page.locator(".buffer .why")).to_contain_text("on hold", timeout=WITHIN_MS)
    page.get_by_role("button", name=re.compile("^Time line and rules")).click()
    dialog.get_by_role("button", name="Resume").click()
    dialog.get_by_role("button", name="Resume now").click()
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator(".divider.batch")).to_have_count(2, timeout=WITHIN_MS)
    assert "2 messages, by the end of a hold" in the_batch(page)


def test_a_cancel_that_is_not_confirmed_changes_nothing(page: Page) -> None:
    say(page, "Keep me")
    page.get_by_role("button", name=re.compile("^Time line and rules")).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog.get_by_role("alertdialog")).to_contain_text("dropped for good")
    dialog.get_by_role("button", name="Do nothing").click()
    dialog.get_by_role("button", name="Close").click()
    assert "1 message" in the_batch(page)


def test_the_processor_is_killed_and_the_batch_still_leaves_once(page: Page) -> None:
    page.get_by_role("button", name="Kill the processor").click()
    expect(page.locator(".bubble.mine").filter(has_text="done")).to_be_visible(timeout=WITHIN_MS)
    expect(page.locator(".bubble.mine.waits")).to_have_count(0, timeout=60_000)
    sizes = [
        int(found)
        for found in re.findall(r"(\d+) messages?,", " ".join(page.locator(".divider.batch").all_inner_texts()))
    ]
    assert sum(sizes) == 4


def test_a_duplicate_and_an_edit_are_shown_as_what_they_are(page: Page) -> None:
    page.get_by_role("button", name="Edit, delete, deliver again").click()
    expect(page.locator(".bubble.mine").filter(has_text="Order 12354")).to_contain_text("edited", timeout=WITHIN_MS)
    expect(page.locator(".divider").filter(has_text="delivered again")).to_be_visible(timeout=WITHIN_MS)


def rules_of_consoles(stage: LocalStage) -> list[str]:
    found = stage.outputs.client("events").list_rules(EventBusName=stage.outputs.EventBusName)["Rules"]
    return [rule["Name"] for rule in found if rule["Name"].startswith("bufferctl-console")]


def queues_of_consoles(stage: LocalStage) -> list[str]:
    return list(stage.outputs.client("sqs").list_queues(QueueNamePrefix="bufferctl-console").get("QueueUrls", []))


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_a_console_that_ends_leaves_no_rule_and_no_queue(stage: LocalStage, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "console", "--outputs", str(stage.stage.outputs_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as console:
        try:
            assert console.stdout
            assert any("http://127.0.0.1:" in line for line in console.stdout)
            wait_until(lambda: bool(rules_of_consoles(stage) and queues_of_consoles(stage)))
            console.send_signal(ending)
            console.wait(30)
        finally:
            if console.poll() is None:
                os.killpg(console.pid, signal.SIGKILL)
    wait_until(lambda: not rules_of_consoles(stage) and not queues_of_consoles(stage))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_screenshots_for_the_documents_can_be_made(
    stage: LocalStage, browser: Browser, colours: str, tmp_path: Path
) -> None:
    """The pictures in docs/ were made by this test: SCREENSHOTS=docs names the folder that gets new ones."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    with page_of(place_of(stage), browser, color_scheme=colours) as page:
        expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
        say(page, "Hey")
        the_batch(page)
        for fragment in FRAGMENTS[1:4]:
            say(page, fragment)
        expect(page.locator(".buffer .why")).to_contain_text("Ms is", timeout=WITHIN_MS)
        page.screenshot(path=folder / f"console-{colours}.png", clip={"x": 0, "y": 0, "width": 1_400, "height": 790})
    assert (folder / f"console-{colours}.png").stat().st_size > 20_000
