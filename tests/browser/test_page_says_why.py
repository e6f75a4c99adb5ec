"""The console's page says why a batch is emitted, and shows each reader only the customers that this reader chose."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from message_buffer.rules.layers import Rules
from tests.support.console import ImitatedBus, ImitatedPlace, ImitatedStage, page_of, row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

WITHIN_MS = 30_000
KINDS = ("text", "file", "voice", "button", "typing", "edit", "delete", "again")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Scene:
    """A page with a customer of the generic platform, on an imitated stage."""

    def __init__(self, page: Page, stage: ImitatedStage, bus: ImitatedBus) -> None:
        self.page, self.stage, self.bus = page, stage, bus

    @property
    def conversation(self) -> str:
        return f"default/generic/shop/{self.page.get_by_label('Customer', exact=True).input_value()}"

    def say(self, text: str) -> str:
        """Write as the customer. Return the message's id."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")
        expect(self.bubble(text)).to_be_visible(timeout=WITHIN_MS)
        return self.stage.posted[-1].message_id

    @property
    def shows(self) -> int:
        """Return how often the stage was asked for a conversation."""
        return sum(name == "conversation.show" for name, _ in self.stage.asked)

    def bubble(self, text: str) -> Any:
        return self.page.locator(".bubble.mine").filter(has_text=text).first

    def batch(self, *ids: str, waits_ms: int, gap_ms: int = 400, **detail: Any) -> None:
        end_ms = now_ms()
        begin_ms = end_ms - gap_ms * (len(ids) - 1)
        messages = [
            {"id": each, "type": "text", "text": "a text", "receivedAt": begin_ms + place * gap_ms}
            for place, each in enumerate(ids)
        ]
        self.bus.publish_batch(self.conversation, *messages, waits_ms=waits_ms, **detail)


@pytest.fixture
def stage() -> ImitatedStage:
    stage = ImitatedStage()
    stage.rules = Rules().model_dump(mode="json", by_alias=True)
    return stage


@pytest.fixture
def bus(tmp_path: Path) -> ImitatedBus:
    return ImitatedBus(tmp_path / "events")


@pytest.fixture
def place(stage: ImitatedStage, bus: ImitatedBus) -> ImitatedPlace:
    return ImitatedPlace(stage, allow_changes=True, show_words=True, listener=bus.listener, sends={"generic": KINDS})


@pytest.fixture
def scene(place: ImitatedPlace, stage: ImitatedStage, bus: ImitatedBus, browser: Browser) -> Iterator[Scene]:
    with page_of(place, browser) as page:
        expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
        yield Scene(page, stage, bus)


# -- why a batch was emitted ------------------------------------------------------------------------------


def test_a_batch_names_its_rule_in_the_chat_beside_it_the_time_line_and_the_chart(scene: Scene) -> None:
    page = scene.page
    scene.batch(scene.say("one"), scene.say("two"), waits_ms=3_000, rule="typingInferenceMs")
    label = "because of a short gap (typingInferenceMs, 3.0 s)"
    expect(page.locator(".divider.batch")).to_contain_text(f"2 messages, {label}, 10 ms after it was due")
    expect(page.locator(".last")).to_contain_text(label)
    expect(page.locator(".last")).to_contain_text("so the batch was emitted after 3 s of silence.")
    page.get_by_role("button", name=re.compile("^Time line and rules")).click()
    expect(page.locator(".line")).to_contain_text(f"batch.ready, 2 messages, {label}")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("tab", name="Health").click()
    expect(page.locator(".bars").filter(has_text="Reasons")).to_contain_text("a short gap")


def test_while_a_batch_waits_the_page_says_why_beside_the_chat_and_under_live(scene: Scene) -> None:
    waiting = row(scene.conversation, due_at_ms=now_ms() + 60_000)
    scene.stage.rows = [waiting]
    scene.say("Hey")
    why = scene.page.locator(".buffer .why")
    expect(why).to_contain_text("The batch is emitted after 1 s of silence.", timeout=WITHIN_MS)
    held = {"reason": "hold", "rule": "hold", "heldUntil": waiting["dueAt"]}
    scene.stage.rows = [waiting | held]
    scene.say("you")
    expect(why).to_contain_text("put the conversation on hold", timeout=WITHIN_MS)
    scene.page.get_by_role("tab", name="Live").click()
    expect(scene.page.locator("tbody tr")).to_contain_text("a hold", timeout=WITHIN_MS)


def test_an_answer_that_is_older_than_the_batch_does_not_bring_the_buffer_back(scene: Scene) -> None:
    page = scene.page
    scene.batch(scene.say("one"), waits_ms=1_000, generation=1)
    expect(page.locator(".divider.batch")).to_have_count(1)
    # The imitated stage answers with generation 1, as it was before the batch was emitted.
    scene.stage.rows = [row(scene.conversation, due_at_ms=now_ms() + 60_000)]
    scene.say("two")
    while scene.shows < 2:
        page.wait_for_timeout(20)
    scene.bus.publish("messages.amended", at_ms=now_ms(), conversationId=scene.conversation)
    expect(page.locator(".divider").filter(has_text="a change to a message")).to_be_visible(timeout=WITHIN_MS)
    expect(page.locator(".buffer")).to_contain_text("Nothing waits.")


# -- what others do --------------------------------------------------------------------------------


def test_a_page_shows_its_own_customers_and_scenario_and_others_only_under_live(scene: Scene, browser: Browser) -> None:
    page = scene.page
    scene.say("mine")
    mine = scene.conversation
    other = browser.new_page()
    other.goto(page.url)
    theirs = Scene(other, scene.stage, scene.bus)
    expect(other.get_by_label("Customer", exact=True)).to_be_visible(timeout=WITHIN_MS)
    theirs.batch(theirs.say("theirs"), waits_ms=1_000)
    expect(other.locator(".divider.batch")).to_have_count(1)
    before = theirs.conversation
    other.locator(".scenarios button").first.click()
    expect(other.locator(".scenarios [role=status]")).not_to_be_empty(timeout=WITHIN_MS)
    expect(other.locator(".bubble.mine").first).to_be_visible(timeout=WITHIN_MS)
    assert theirs.conversation != before
    assert scene.conversation == mine
    expect(page.locator(".chat")).to_have_count(1)
    expect(page.locator(".bubble.mine")).to_have_count(1)
    expect(page.locator(".divider")).to_have_count(0)
    expect(page.locator(".scenarios [role=status]")).to_be_empty()
    page.get_by_role("tab", name="Live").click()
    expect(page.locator(".events")).to_contain_text(before)
    other.close()


def test_events_of_other_conversations_do_not_make_an_open_one_ask_the_stage(scene: Scene) -> None:
    """Reproduce a defect: on a busy stage the questions piled up, and what the reader clicked waited behind them."""
    page, name = scene.page, "default/whatsapp/1065/1"
    scene.stage.rows = [row(name, due_at_ms=now_ms() + 3_570_000)]
    page.get_by_role("tab", name="Live").click()
    page.locator("tbody button.name").click(timeout=WITHIN_MS)
    expect(page.locator("dialog .facts").first).to_be_visible(timeout=WITHIN_MS)
    before, began = scene.shows, time.monotonic()
    for number in range(60):
        scene.bus.publish("messages.amended", at_ms=now_ms() + number, conversationId=f"t/p/a/{number}")
        page.wait_for_timeout(50)
    expect(page.locator(".events")).to_contain_text("t/p/a/59", timeout=WITHIN_MS)
    # The dialog asks every three seconds.
    assert scene.shows - before <= (time.monotonic() - began) / 3 + 2


# -- messages that are gone ------------------------------------------------------------------------


def test_a_deleted_message_neither_waits_nor_can_be_changed(scene: Scene) -> None:
    scene.say("oops")
    bubble = scene.bubble("oops")
    expect(bubble).to_have_class(re.compile("waits"))
    bubble.get_by_role("button", name="Delete").click()
    expect(bubble).to_contain_text("deleted", timeout=WITHIN_MS)
    expect(bubble).not_to_have_class(re.compile("waits"))
    expect(bubble.get_by_role("button")).to_have_count(0)


def test_messages_that_a_cancel_drops_neither_wait_nor_can_be_changed(scene: Scene) -> None:
    scene.say("never mind")
    scene.bus.publish("messages.buffer.cancelled", at_ms=now_ms(), conversationId=scene.conversation)
    bubble = scene.bubble("never mind")
    expect(bubble).to_contain_text("dropped", timeout=WITHIN_MS)
    expect(bubble).not_to_have_class(re.compile("waits"))
    expect(bubble.get_by_role("button")).to_have_count(0)


def test_messages_of_a_batch_that_is_too_large_for_its_event_wait_no_longer(scene: Scene) -> None:
    scene.say("large")
    scene.batch("other id", waits_ms=1_000, messages=[], messagesRef={"bucket": "b", "key": "k"})
    expect(scene.bubble("large")).not_to_have_class(re.compile("waits"), timeout=WITHIN_MS)


# -- words and clocks ------------------------------------------------------------------------------


def test_a_hold_says_until_when_and_for_how_much_longer(scene: Scene) -> None:
    page, until_ms = scene.page, now_ms() + 3_570_000
    name = "default/whatsapp/1065/1"
    reply_until_ms = now_ms() + 86_370_000
    holds = [{"holder": "people", "cause": "handoff", "until": until_ms}]
    held = row(name, due_at_ms=until_ms, reason="hold", heldUntil=until_ms, replyUntil=reply_until_ms, holds=holds)
    scene.stage.rows = [held]
    page.get_by_role("tab", name="Live").click()
    expect(page.locator("tbody tr")).to_contain_text("on hold", timeout=WITHIN_MS)
    page.locator("tbody button.name").click()
    facts = page.locator("dialog .facts")
    expect(facts).to_contain_text("Stateon hold")
    expect(facts).to_contain_text(re.compile(r"Holdpeople \(handoff\), until [\d:.]+ [AP]M, for another 59 min"))
    expect(facts).to_contain_text(
        re.compile(r"Free replies until[\d:.]+ [AP]M \(in 24\.0 h\); later the platform refuses")
    )
    expect(facts).not_to_contain_text("pending")


@pytest.mark.parametrize(("locale", "has_halves"), [("en-US", True), ("de-DE", False)])
def test_the_readers_locale_decides_between_12_and_24_hours_everywhere(
    place: ImitatedPlace, stage: ImitatedStage, bus: ImitatedBus, browser: Browser, locale: str, has_halves: bool
) -> None:
    with page_of(place, browser, locale=locale) as page:
        expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
        scene = Scene(page, stage, bus)
        scene.batch(scene.say("Hey"), waits_ms=1_000)
        expect(page.locator(".divider.batch")).to_have_count(1)
        shown = page.locator("time").all_inner_texts()
        page.get_by_role("tab", name="Live").click()
        shown += page.locator(".events time").all_inner_texts()
        page.get_by_role("tab", name="Health").click()
        expect(page.locator(".charts figure")).to_have_count(4)
        shown.append(page.evaluate("() => import('./page/format.js').then(({ minuteOf }) => minuteOf(46_800_000))"))
    times = [each for each in shown if ":" in each]
    assert len(times) >= 3
    assert {bool(re.search("[AP]M", each)) for each in times} == {has_halves}, times


# -- an edit ---------------------------------------------------------------------------------------


def test_an_edit_has_the_text_that_the_reader_writes_and_escape_gives_it_up(scene: Scene) -> None:
    page = scene.page
    edited = scene.say("Order 12345")
    scene.bubble("Order 12345").get_by_role("button", name="Edit").click()
    line = page.get_by_label("Message", exact=True)
    expect(line).to_have_value("Order 12345")
    expect(line).to_be_focused()
    page.keyboard.press("Escape")
    expect(line).to_have_value("")
    scene.bubble("Order 12345").get_by_role("button", name="Edit").click()
    expect(line).to_have_value("Order 12345")
    line.fill("Order 12354")
    page.keyboard.press("Enter")
    expect(scene.bubble("Order 12354")).to_contain_text("edited", timeout=WITHIN_MS)
    assert scene.stage.posted[-1].message_id == edited
    expect(line).to_have_value("")
    scene.say("Thanks")
    assert scene.stage.posted[-1].message_id != edited


# -- an outage of Valkey ---------------------------------------------------------------------------


def test_an_outage_of_valkey_is_said_once_in_plain_words(scene: Scene) -> None:
    page = scene.page
    scene.stage.rows = [row("default/generic/shop/ada", due_at_ms=now_ms() + 60_000)]
    page.get_by_role("tab", name="Live").click()
    expect(page.locator("tbody tr")).to_have_count(1, timeout=WITHIN_MS)
    scene.stage.problem = "recover_expired: Valkey cannot be reached or did not answer in time (Error 111)"
    scene.stage.is_away = True
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("New messages are safe: they wait in DynamoDB", timeout=WITHIN_MS)
    page.locator("tbody button.name").click()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("tab", name="Simulator").click()
    scene.say("Hey")
    expect(alert.locator("p")).to_have_count(1)
    expect(page.locator(".toast")).to_be_empty()
    assert "Error 111" not in page.content()
    expect(page.locator(".buffer")).to_contain_text("In Valkey, 1 message of this customer waits")
    scene.stage.is_away = False
    expect(alert).to_have_count(0, timeout=WITHIN_MS)
