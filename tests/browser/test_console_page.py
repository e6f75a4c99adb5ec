"""The console's page in a real browser, on an imitated stage."""

import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from bufferctl.errors import Unreachable
from message_buffer.json_object import Json
from tests.support.browser import axe, chromium
from tests.support.console import ImitatedBus, ImitatedPlace, ImitatedStage, page_of, row
from tests.support.gaps import counts_of
from tools.console.customers import KINDS
from tools.console.history import EVENTS_KEPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("browser")]

HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(2)</script>",
    '"><svg onload=alert(3)>',
    "javascript:alert(4)",
    "${alert(5)}{{alert(6)}}",
    "\u202egnirts desrever",
    "</style><style>*{display:none}</style>",
    "&lt;b&gt;&amp;#60;",
)
WITHIN_MS = 30_000
# What three scopes have counted.
COUNTED = {
    scope: counts_of(random.Random(turns), turns=turns, silence_ms=2_000, reply_ms=4_000)
    for scope, turns in (
        ("acme/whatsapp/sales%2Fnorth", 1_200),
        ("acme/messenger/", 400),
        (f"{HOSTILE[0]}/telegram/", 40),
    )
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Scene:
    """A page with a customer of the generic platform, on an imitated stage."""

    def __init__(self, page: Page, stage: ImitatedStage, bus: ImitatedBus) -> None:
        self.page, self.stage, self.bus = page, stage, bus
        self.line = page.get_by_label("Message", exact=True)

    @property
    def conversation(self) -> str:
        return f"default/generic/shop/{self.page.get_by_label('Customer', exact=True).input_value()}"

    def say(self, text: str) -> str:
        """Write as the customer. Return the message's id."""
        self.line.fill(text)
        self.page.keyboard.press("Enter")
        expect(self.bubble(text)).to_contain_text("accepted", timeout=WITHIN_MS)
        return self.stage.posted[-1].message_id

    @property
    def shows(self) -> int:
        """Return how often the stage was asked for a conversation."""
        return sum(name == "conversation.show" for name, _ in self.stage.asked)

    def bubble(self, text: str) -> Locator:
        return self.page.locator(".bubble.mine").filter(has_text=text).first

    def batch(self, *ids: str, waits_ms: int, **detail: Any) -> None:
        messages: list[Json] = [{"id": each, "receivedAt": now_ms()} for each in ids]
        self.bus.publish_batch(self.conversation, *messages, waits_ms=waits_ms, **detail)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def stage() -> ImitatedStage:
    return ImitatedStage()


@pytest.fixture
def place(stage: ImitatedStage, bus: ImitatedBus) -> ImitatedPlace:
    sends = {"generic": KINDS["generic"]}
    return ImitatedPlace(stage, allow_changes=True, show_words=True, listener=bus.listener, sends=sends)


@pytest.fixture
def bus(tmp_path: Path) -> ImitatedBus:
    return ImitatedBus(tmp_path / "events")


@pytest.fixture
def scene(place: ImitatedPlace, stage: ImitatedStage, bus: ImitatedBus, browser: Browser) -> Iterator[Scene]:
    with page_of(place, browser) as page:
        expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
        expect(page.get_by_label("Message", exact=True)).to_be_visible(timeout=WITHIN_MS)
        yield Scene(page, stage, bus)


def view(page: Page, name: str) -> None:
    page.get_by_role("link", name=name).click()


# -- what people write, and how much of it -----------------------------------------------------------


def test_hostile_text_is_shown_as_text_in_every_field(browser: Browser, stage: ImitatedStage) -> None:
    for number, text in enumerate(HOSTILE):
        fields = {"text": text, "author": text, "reason": text, "state": text, "lane": text}
        stage.rows.append(row(f"t/p/a/{text.replace('/', '%2F')}", due_at_ms=now_ms() + 60_000 + number, **fields))
        stage.letters.append({"batchId": text, "conversationId": text, "reason": text})
    with page_of(ImitatedPlace(stage, show_words=True), browser) as page:
        view(page, "Live")
        for number, text in enumerate(HOSTILE):
            page.locator("tbody a.name").nth(number).click()
            expect(page.locator("dialog .messages")).to_contain_text(text)
            page.get_by_role("button", name="Close").click()
        view(page, "Health")
        expect(page.locator("td code")).to_have_text(list(HOSTILE))
        assert page.locator("img, svg, script:not([src]), style").count() == 0


# Prints more events than the page keeps, as the console's listener does, and then waits for its end.
FLOOD = """
import json, sys
for n in range({count}):
    detail = {{"conversationId": f"t/p/a/{{n}}", "batchId": f"b{{n}}", "messageCount": 2, "flushReason": "silence",
              "metadata": {{"firstMessageAt": {now} - 1000, "waitMs": 900}}, "text": "x" * 1000}}
    print(json.dumps({{"event": {{"detail-type": "messages.batch.ready", "detail": detail}}, "at": {now}}}))
print(json.dumps({{"problem": None}}), flush=True)
sys.stdin.read()
"""


def test_what_the_page_keeps_of_events_is_bounded_and_a_page_opened_later_shows_it(
    browser: Browser, stage: ImitatedStage
) -> None:
    flood = [sys.executable, "-c", FLOOD.format(count=EVENTS_KEPT + 2_000, now=now_ms())]
    with page_of(ImitatedPlace(stage, show_words=True, listener=flood), browser) as page:
        expect(page.get_by_role("alert")).to_have_count(0, timeout=60_000)
        for _ in range(2):
            view(page, "Health")
            expect(page.locator(".totals")).to_contain_text(f"Batches{EVENTS_KEPT}", timeout=60_000)
            kept = "import('./store.js').then(({ state }) => JSON.stringify(state.events).includes('xxx'))"
            assert not page.evaluate(kept)
            view(page, "Live")
            expect(page.locator(".events .event")).to_have_count(50)
            page.reload()


# -- a stage that is away ----------------------------------------------------------------------------


def test_the_page_says_that_the_stage_is_away_and_goes_on_when_it_is_back(scene: Scene) -> None:
    page, stage = scene.page, scene.stage
    stage.rows = [row("acme/whatsapp/1065/1", due_at_ms=now_ms() + 60_000)]
    view(page, "Live")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=WITHIN_MS)
    stage.is_away = True
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached", timeout=WITHIN_MS)
    page.locator("tbody a.name").click()
    expect(page.get_by_role("dialog")).to_contain_text("cannot be reached", timeout=WITHIN_MS)
    page.get_by_role("button", name="Close").click()
    stage.is_away, stage.rows = False, [*stage.rows, row("acme/whatsapp/1065/2", due_at_ms=now_ms() + 50_000)]
    expect(page.locator("tbody tr")).to_have_count(2, timeout=WITHIN_MS)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_console_of_a_deployed_stage_only_reads_and_hides_words(browser: Browser, stage: ImitatedStage) -> None:
    stage.rows = [row("acme/whatsapp/1065/1", due_at_ms=now_ms() + 60_000)]
    with page_of(ImitatedPlace(stage), browser) as page:
        expect(page.locator("main")).to_contain_text("only reads")
        view(page, "Live")
        page.locator("tbody a.name").click()
        expect(page.locator("dialog")).to_contain_text("hidden")
        assert page.get_by_role("group", name="Actions").count() == 0


# -- writing as a customer ---------------------------------------------------------------------------


def test_what_a_customer_does_reaches_the_stage_in_order(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    send, first, is_overtaken = ImitatedPlace.send, threading.Lock(), threading.Event()

    def send_the_first_late(place: ImitatedPlace, platform: str, posted: Any) -> Any:
        if first.acquire(blocking=False):
            is_overtaken.wait(1)
        sent.append(posted.body.get("text", ""))
        is_overtaken.set()
        return send(place, platform, posted)

    monkeypatch.setattr(ImitatedPlace, "send", send_the_first_late)
    for text in ("one", "two", "three"):
        scene.line.fill(text)
        scene.page.keyboard.press("Enter")
    expect(scene.page.get_by_text("accepted")).to_have_count(3)
    assert list(filter(None, sent)) == ["one", "two", "three"]


# Changes a field twice before the page is drawn again. While the page is drawn, a browser also reports a change of a
# field that is being removed.
TWO_CHANGES = """() => {
    const field = (name) => [...document.querySelectorAll(".who label")]
        .find((label) => label.textContent.startsWith(name)).querySelector("input, select");
    field("Platform").dispatchEvent(new Event("change", {bubbles: true}));
    field("Tenant").value = "acme";
    field("Tenant").dispatchEvent(new Event("change", {bubbles: true}));
}"""


def test_a_field_that_changes_before_the_last_change_was_drawn_is_not_lost(scene: Scene) -> None:
    """Reproduce a defect: the page raised an error, and its pane was broken."""
    scene.page.evaluate(TWO_CHANGES)
    expect(scene.page.get_by_label("Tenant")).to_have_value("acme")


def test_what_is_being_typed_into_a_field_survives_the_drawings_of_the_page(scene: Scene) -> None:
    """Reproduce a defect: each look at the stage, twice a second, emptied the field."""
    tenant = scene.page.get_by_label("Tenant")
    tenant.press_sequentially("acme", delay=400)
    scene.page.keyboard.press("Tab")
    expect(tenant).to_have_value("acme")


def test_an_edit_has_the_text_that_the_reader_writes_and_escape_gives_it_up(scene: Scene) -> None:
    edited = scene.say("Order 12345")
    for key in ("Escape", "Enter"):
        scene.bubble("Order 12345").get_by_role("button", name="Edit").click()
        expect(scene.line).to_have_value("Order 12345")
        scene.line.fill("Order 12354")
        scene.page.keyboard.press(key)
        expect(scene.line).to_have_value("")
    expect(scene.bubble("Order 12354")).to_contain_text("edited", timeout=WITHIN_MS)
    assert (scene.stage.posted[-1].message_id, scene.stage.posted[-1].body["edited"]) == (edited, True)
    assert scene.say("Thanks") != edited


def test_a_voice_note_gets_its_transcript(scene: Scene) -> None:
    scene.page.get_by_role("button", name="Send a voice note").click()
    scene.page.get_by_role("button", name="Transcribe").click()
    expect(scene.line).to_be_focused()
    scene.line.fill("Where is my order?")
    scene.page.keyboard.press("Enter")
    expect(scene.bubble("Where is my order?")).to_contain_text("edited", timeout=WITHIN_MS)


# -- why a batch is due, and why it was emitted ------------------------------------------------------


def test_a_batch_names_its_rule_in_the_chat_beside_it_the_time_line_and_the_figures(scene: Scene) -> None:
    page = scene.page
    scene.batch(scene.say("one"), scene.say("two"), waits_ms=3_000, rule="typingInferenceMs")
    label = "2 messages, because of a short gap (typingInferenceMs, 3.0 s), 10 ms after it was due"
    expect(page.locator(".divider.batch")).to_contain_text(label)
    expect(page.locator(".last")).to_contain_text(label)
    expect(page.locator(".bubble.waits")).to_have_count(0)
    page.get_by_role("link", name=re.compile("^Time line")).click()
    expect(page.locator(".line")).to_contain_text(f"batch.ready, {label}")
    page.get_by_role("button", name="Close").click()
    view(page, "Health")
    expect(page.locator("figure").filter(has_text="Reasons")).to_contain_text("a short gap")


def test_while_a_batch_waits_the_page_says_why_beside_the_chat_under_live_and_by_its_id(scene: Scene) -> None:
    page = scene.page
    waiting = row(scene.conversation, due_at_ms=now_ms() + 60_000)
    scene.stage.rows = [waiting | {"reason": "hold", "rule": "hold", "heldUntil": waiting["dueAt"]}]
    scene.say("Hey")
    expect(page.locator(".buffer .why")).to_contain_text("put the conversation on hold", timeout=WITHIN_MS)
    name = scene.conversation
    view(page, "Live")
    expect(page.locator("tbody tr")).to_contain_text("a hold", timeout=WITHIN_MS)
    page.get_by_label("Conversation", exact=True).fill(name)
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").locator(".why")).to_contain_text("on hold", timeout=WITHIN_MS)


def test_an_answer_that_is_older_than_the_batch_does_not_bring_the_buffer_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, may_answer, ask = threading.Event(), threading.Event(), scene.stage.ask

    def answer_late(operation: str, **fields: Any) -> Json:
        answer = ask(operation, **fields)
        if operation == "conversation.show":
            is_asked.set()
            may_answer.wait(WITHIN_MS / 1_000)
        return answer

    monkeypatch.setattr(scene.stage, "ask", answer_late)
    scene.stage.rows = [row(scene.conversation, due_at_ms=now_ms() + 60_000)]
    message = scene.say("one")
    assert is_asked.wait(WITHIN_MS / 1_000)
    scene.stage.rows = []
    scene.batch(message, waits_ms=1_000)
    expect(scene.page.locator(".divider.batch")).to_have_count(1, timeout=WITHIN_MS)
    scene.page.evaluate(
        """() => new MutationObserver(() => {
            if (document.querySelector(".buffer .due")) throw new Error("the buffer came back");
        }).observe(document.body, {subtree: true, childList: true})"""
    )
    may_answer.set()
    expect(scene.page.locator(".buffer")).to_contain_text("Nothing waits.")


def test_events_of_other_conversations_do_not_make_an_open_one_ask_the_stage(scene: Scene) -> None:
    """Reproduce a defect: on a busy stage the questions piled up, and what the reader clicked waited behind them."""
    page = scene.page
    scene.stage.rows = [row("default/whatsapp/1065/1", due_at_ms=now_ms() + 3_570_000)]
    view(page, "Live")
    page.locator("tbody a.name").click(timeout=WITHIN_MS)
    expect(page.locator("dialog .facts").first).to_be_visible(timeout=WITHIN_MS)
    before, began = scene.shows, time.monotonic()
    for number in range(60):
        scene.bus.publish("messages.amended", at_ms=now_ms() + number, conversationId=f"t/p/a/{number}")
        page.wait_for_timeout(50)
    expect(page.locator(".events")).to_contain_text("t/p/a/59", timeout=WITHIN_MS)
    # The dialog asks every three seconds.
    assert scene.shows - before <= (time.monotonic() - began) / 3 + 2


def delete(scene: Scene) -> None:
    scene.bubble("oops").get_by_role("button", name="Delete").click()


def cancel(scene: Scene) -> None:
    scene.bus.publish("messages.buffer.cancelled", at_ms=now_ms(), conversationId=scene.conversation)


def emit_by_reference(scene: Scene) -> None:
    scene.batch("other id", waits_ms=1_000, messages=[], messagesRef={"bucket": "b", "key": "k"})


@pytest.mark.parametrize("remove", [delete, cancel, emit_by_reference])
def test_a_message_that_is_gone_neither_waits_nor_can_be_changed(scene: Scene, remove: Callable[[Scene], None]) -> None:
    scene.say("oops")
    bubble = scene.bubble("oops")
    expect(bubble).to_have_class(re.compile("waits"))
    remove(scene)
    expect(bubble).not_to_have_class(re.compile("waits"), timeout=WITHIN_MS)
    expect(bubble.get_by_role("button")).to_have_count(0)


# -- scenarios ---------------------------------------------------------------------------------------


def test_a_scenario_says_if_something_else_came_than_it_promises(scene: Scene) -> None:
    page = scene.page
    page.get_by_role("button", name="Edit, delete, deliver again").click()
    played = page.get_by_role("region", name="Scenario: ")
    expect(played.locator(".steps li")).to_have_count(6, timeout=WITHIN_MS)
    expect(page.locator(".bubble.mine s")).to_have_count(1, timeout=WITHIN_MS)
    scene.batch(scene.stage.posted[0].message_id, waits_ms=1_000)
    expect(played).to_contain_text("That differs.", timeout=WITHIN_MS)
    page.reload()
    expect(played).to_contain_text("That differs.", timeout=WITHIN_MS)


def test_a_scenario_can_be_stopped(scene: Scene) -> None:
    page = scene.page
    page.get_by_role("button", name="Edit, delete, deliver again").click()
    expect(page.locator(".bubble.mine")).to_have_count(1, timeout=WITHIN_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("region", name="Scenario: ")).to_contain_text("Stopped.")
    page.wait_for_timeout(1_000)
    assert len(scene.stage.posted) == 1


# -- a stage that is away, a page that is loaded again --------------------------------------------------


def test_while_the_stage_is_away_nothing_counts_down_and_the_page_says_since_when(scene: Scene) -> None:
    page = scene.page
    scene.stage.rows = [row("acme/whatsapp/1065/1", due_at_ms=now_ms() + 60_000)]
    view(page, "Live")
    due = page.locator("tbody .countdown")
    expect(due).to_contain_text("in ", timeout=WITHIN_MS)
    expect(page.locator(".flags")).to_contain_text("connected, data")
    scene.stage.is_away = True
    expect(page.locator(".flags")).to_contain_text("not connected since", timeout=WITHIN_MS)
    shown = due.inner_text()
    page.wait_for_timeout(1_200)
    assert shown.startswith("at ")
    assert due.inner_text() == shown


def test_what_is_written_while_the_stage_or_the_server_is_away_is_kept_and_sent_once(scene: Scene, place: Any) -> None:
    page, send = scene.page, place.send

    def refuse(*_: Any) -> None:
        raise Unreachable("no answer")

    def lose_the_answer(platform: str, posted: Any) -> None:
        send(platform, posted)
        refuse()

    for text, sender in (("one", refuse), ("two", lose_the_answer)):
        place.send = sender
        scene.line.fill(text)
        page.keyboard.press("Enter")
        expect(scene.bubble(text)).to_contain_text("not sent", timeout=WITHIN_MS)
    place.send = send
    page.route("**/api/act", lambda route: route.abort())
    scene.line.fill("three")
    page.keyboard.press("Enter")
    expect(scene.bubble("three")).to_contain_text("does not answer", timeout=WITHIN_MS)
    page.unroute("**/api/act")
    page.reload()
    for text in ("one", "two", "three"):
        scene.bubble(text).get_by_role("button", name="Send again").click(timeout=WITHIN_MS)
        expect(scene.bubble(text)).to_contain_text("accepted", timeout=WITHIN_MS)
    # The stage knows a message that it gets twice by its id.
    sent = {each.message_id: each.body["text"] for each in scene.stage.posted if each.route == "webhook"}
    assert list(sent.values()) == ["two", "one", "three"]


def test_a_reload_forgets_neither_a_chat_nor_what_is_being_typed(scene: Scene) -> None:
    page = scene.page
    scene.batch(scene.say("one"), waits_ms=1_000)
    expect(page.locator(".divider.batch")).to_have_count(1, timeout=WITHIN_MS)
    scene.say("two")
    scene.bubble("two").get_by_role("button", name="Edit").click()
    scene.line.fill("two, corrected")
    for _ in range(2):
        page.reload()
        expect(scene.line).to_have_value("two, corrected", timeout=WITHIN_MS)
        expect(page.locator(".bubble.mine")).to_have_count(2)
        expect(page.locator(".divider.batch")).to_have_count(1)
        expect(page.locator(".last")).to_contain_text("1 message, because of silence")
    page.keyboard.press("Enter")
    expect(scene.bubble("two, corrected")).to_contain_text("edited", timeout=WITHIN_MS)
    scene.line.fill("half a sent")
    page.reload()
    expect(scene.line).to_have_value("half a sent", timeout=WITHIN_MS)


# -- any conversation ---------------------------------------------------------------------------------


def test_a_conversation_has_an_address_that_opens_it_also_if_it_is_idle(scene: Scene) -> None:
    page, name = scene.page, "acme/generic/a%2Fb/100%25"
    dialog = page.get_by_role("dialog")
    view(page, "Live")
    page.goto(page.url.partition("#")[0] + f"#/conversation/{quote(name, safe='')}")
    expect(dialog.get_by_role("heading", name=name)).to_be_visible(timeout=WITHIN_MS)
    expect(dialog).to_contain_text("idle", timeout=WITHIN_MS)
    page.reload()
    expect(dialog).to_contain_text("idle", timeout=WITHIN_MS)
    page.go_back()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("link", name="Live")).to_have_attribute("aria-current", "page")
    page.go_forward()
    expect(dialog).to_contain_text("idle", timeout=WITHIN_MS)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    scene.stage.unknown = {"acme/generic/a/never"}
    page.goto(page.url.partition("#")[0] + "#/conversation/acme/generic/a/never")
    expect(dialog).to_contain_text("remembers nothing", timeout=WITHIN_MS)
    # An object of JavaScript has this name, but the page has no such view.
    page.goto(page.url.partition("#")[0] + "#toString")
    expect(dialog).to_have_count(0)
    view(page, "Live")
    expect(page.get_by_role("link", name="Live")).to_have_attribute("aria-current", "page")


def test_a_search_finds_what_waits_and_what_is_known_only_from_events(scene: Scene) -> None:
    page = scene.page
    scene.stage.rows = [row(f"acme/whatsapp/1065/{n}", due_at_ms=now_ms() + 60_000) for n in (11, 12, 22)]
    scene.bus.publish("messages.amended", at_ms=now_ms(), conversationId="acme/whatsapp/1065/112")
    view(page, "Live")
    expect(page.locator("tbody tr")).to_have_count(3, timeout=WITHIN_MS)
    page.get_by_label("Conversation", exact=True).fill("/11")
    expect(page.locator("tbody a.name")).to_contain_text(["11", "112"], timeout=WITHIN_MS)
    expect(page.get_by_text("2 found")).to_be_visible()


# -- events ------------------------------------------------------------------------------------------


def test_late_batches_say_so_in_words_and_the_causes_are_asked_for_at_a_click(scene: Scene) -> None:
    page = scene.page
    cause = {"text": "Attempt 1 did not end.", "at": 1, "from": ["`platform.report`"]}
    asked: list[Json] = []

    def explain(route: Any) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(json={"summary": "It was late.", "due": None, "causes": [cause]})

    page.route("**/api/why", explain)
    message = scene.say("Hey")
    for number, late_ms in enumerate((900, 1_500, 10_500)):
        scene.batch(message, waits_ms=1_000, late_ms=late_ms, batchId=f"b{number}")
    view(page, "Health")
    rows = page.locator(".events .event")
    expect(rows).to_have_count(3, timeout=WITHIN_MS)
    words = [rows.nth(number).locator("summary b").all_inner_texts()[:-1] for number in range(3)]
    assert words == [["very late"], ["late"], []]
    assert not asked
    rows.nth(0).locator("summary").click()
    rows.nth(0).get_by_role("button", name="Why was it late?").click()
    expect(rows.nth(0)).to_contain_text("Attempt 1 did not end.")
    assert asked == [{"id": "b2"}]


def test_the_doctors_findings_say_what_to_do(scene: Scene) -> None:
    finding = {"severity": "broken", "what": "The rule is off.", "do": "Run `make deploy`."}
    report = {"at": now_ms(), "findings": [finding], "unread": {"alarms": "no right"}}
    scene.page.route("**/api/doctor", lambda route: route.fulfill(json=report))
    view(scene.page, "Health")
    for words in ("broken The rule is off.", "Run make deploy.", "alarms (no right)"):
        expect(scene.page.locator(".doctor")).to_contain_text(words)


def test_health_shows_how_many_authors_go_on_and_asks_only_while_it_is_shown(scene: Scene) -> None:
    page, asked = scene.page, scene.stage.asked
    scene.stage.counted = COUNTED
    view(page, "Live")
    expect(page.get_by_role("heading", name="Events")).to_be_visible(timeout=WITHIN_MS)
    assert "tune.read" not in dict(asked)
    for _ in range(2):
        view(page, "Health")
        rows = page.get_by_role("region", name="Going on").locator("tbody tr")
        expect(rows).to_have_count(3, timeout=WITHIN_MS)
        cells = [rows.nth(number).locator("td").all_inner_texts() for number in range(3)]
        assert cells[0][:3] == ["acme", "whatsapp", "sales/north"]
        assert re.fullmatch(r"\d\d % \(\d\d % to \d\d %\) of 1,200 batches", cells[0][3])
        assert cells[2] == [HOSTILE[0], "telegram", "–", "40 batches, too few"]
        expect(page.get_by_text("bufferctl tune --tenant")).to_be_visible()
        view(page, "Live")
    assert sum(name == "tune.read" for name, _ in asked) == 1


def test_an_event_is_copied_downloaded_and_given_to_a_shell_as_it_came(scene: Scene) -> None:
    page = scene.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "'; $(touch x) `y` EVENT \\n \u009b \u202e" + "".join(HOSTILE)
    scene.batch(scene.say("one"), waits_ms=1_000, text=text, batchId="b1")
    page.locator(".last summary").click(timeout=WITHIN_MS)
    actions = page.get_by_role("group", name="The event as JSON")

    def copied(name: str) -> str:
        actions.get_by_role("button", name=name).click(timeout=WITHIN_MS)
        expect(page.locator(".toast")).to_contain_text("copied")
        return str(page.evaluate("navigator.clipboard.readText()"))

    with page.expect_download() as download:
        actions.get_by_role("link", name="Download JSON").click(timeout=WITHIN_MS)
    assert download.value.suggested_filename == "b1.json"
    kept = download.value.path().read_text("utf-8")
    assert copied("Copy JSON") == kept
    event = json.loads(kept)
    assert (event["detail"]["text"], event["detail-type"]) == (text, "messages.batch.ready")
    for name, command in (("Copy as curl", "curl"), ("Copy as aws sqs", "aws")):
        script = f"{command}() {{ cat; }}\n{copied(name)}"
        shown = subprocess.check_output(["bash", "-eu"], input=script, text=True, env={"CONSUMER": "c", "QUEUE": "q"})
        assert json.loads(shown) == event


# -- accessibility -----------------------------------------------------------------------------------


def test_the_keyboard_skips_to_the_content(scene: Scene) -> None:
    page = scene.page
    page.reload()
    expect(scene.line).to_be_visible(timeout=WITHIN_MS)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


TOO_SMALL = """() => [...document.querySelectorAll("button, a, input, select, summary")]
    .filter((each) => each.checkVisibility() && !each.matches(".skip"))
    .map((each) => [each.outerHTML.slice(0, 90), each.getBoundingClientRect()])
    .filter(([, { width, height }]) => width < 40 || height < 40).map(([name]) => name)"""
TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll("main :not(input), dialog, dialog *")]
    .filter((each) => each.clientWidth && each.scrollWidth > each.clientWidth + 1)
    .filter((each) => getComputedStyle(each).display !== "inline")
    .map((each) => each.outerHTML.slice(0, 90))"""


def busy(scene: Scene) -> None:
    """Show all that the page can show: late batches, conversations, dead letters, and findings."""
    name = "acme/whatsapp/106540352242922/49170123456789012"
    scene.stage.rows = [row(f"{name}{n}", due_at_ms=now_ms() - 5_000 + 20_000 * n) for n in range(3)]
    scene.stage.letters = [{"batchId": "b" * 50, "conversationId": name, "reason": "attempts"}]
    scene.stage.counted = COUNTED
    findings = [{"severity": word, "what": word, "do": "Run `x`."} for word in ("broken", "failing", "advice")]
    report = {"at": now_ms(), "findings": findings, "unread": {"alarms": "no right"}}
    scene.page.route("**/api/doctor", lambda route: route.fulfill(json=report))
    causes = [{"text": text, "at": None, "from": [text] * number} for text, number in (("unknown", 0), ("cold", 3))]
    why = {"summary": "It was late.", "due": None, "causes": causes}
    scene.page.route("**/api/why", lambda route: route.fulfill(json=why))
    for late_ms in (10, 2_000, 20_000):
        scene.batch(scene.say(f"Hey {late_ms}"), waits_ms=1_000, late_ms=late_ms)
        expect(scene.page.locator(".bubble.waits")).to_have_count(0, timeout=WITHIN_MS)


def views(scene: Scene) -> Iterator[str]:
    """Show each view in turn, with its newest event opened, a conversation, and the chat while the stage is away."""
    page = scene.page
    for name in ("Chat", "Health", "Live"):
        view(page, name)
        page.locator(".event summary").first.click(timeout=WITHIN_MS)
        page.get_by_role("button", name="Why was it late?").click(timeout=WITHIN_MS)
        expect(page.locator(".causes li")).to_have_count(2, timeout=WITHIN_MS)
        expect(page.locator(".event pre")).to_be_visible(timeout=WITHIN_MS)
        yield name
    page.locator("tbody a.name").first.click()
    expect(page.locator("dialog .facts")).to_be_visible(timeout=WITHIN_MS)
    yield "conversation"
    page.get_by_role("button", name="Close").click()
    view(page, "Chat")
    page.route("**/api/act", lambda route: route.abort())
    scene.line.fill("not sent")
    page.keyboard.press("Enter")
    scene.stage.is_away = True
    expect(page.locator(".flags")).to_contain_text("not connected", timeout=WITHIN_MS)
    expect(scene.bubble("not sent")).to_contain_text("does not answer", timeout=WITHIN_MS)
    yield "away"


def test_a_phone_has_large_targets_no_sideways_scrolling_and_the_message_and_its_buffer_first(scene: Scene) -> None:
    page = scene.page
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    customer = page.locator("summary").filter(has_text="Customer")
    customer.click()
    page.get_by_label("Customer", exact=True).fill("C" * 60)
    customer.click()
    expect(customer).to_contain_text("C" * 60)
    busy(scene)
    for part in (scene.line, page.get_by_label("The buffer")):
        box = part.bounding_box()
        assert box
        assert box["y"] < 844 * 3 / 4
    for name in views(scene):
        assert (name, page.evaluate(TOO_SMALL), page.evaluate(TOO_WIDE)) == (name, [], [])


@pytest.mark.parametrize("width", [1_400, 390])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_no_serious_fault(scene: Scene, colours: Any, width: int) -> None:
    page = scene.page
    page.emulate_media(color_scheme=colours)
    page.set_viewport_size({"width": width, "height": 844})
    page.reload()
    busy(scene)
    page.evaluate(axe())
    for name in views(scene):
        found = page.evaluate("() => axe.run()")["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(name, each["id"], each["nodes"][0]["html"][:200]) for each in serious] == []
