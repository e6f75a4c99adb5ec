"""A person uses the console's page in a real browser, on a local stage."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from bufferctl.verify import RULES_IN_FORCE_SECONDS
from tests.support.browser import chromium
from tests.support.console import page_of, place_of
from tests.support.local_stage import LocalStage
from tools.console.place import Options, ShownStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

FRAGMENTS = ("Hey", "I have a question", "about my order", "#12345", "when will it arrive?")
# These tests judge what is seen, not how fast it comes.
WITHIN_MS = 30_000
# The tenant's buffers wait for long, so that a browser on a busy machine can type five fragments in time.
TENANT = "acme"
RULES = {"silenceMs": 5_000, "typingInferenceMs": 6_000, "maxWaitMs": 60_000}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def patient(stage: LocalStage) -> Iterator[LocalStage]:
    """Yield the stage, on which the tenant's rules are in force."""
    stage.admin.ask("rules.set", scope=f"tenant:{TENANT}", rules=RULES)
    time.sleep(RULES_IN_FORCE_SECONDS)
    yield stage
    stage.admin.ask("rules.delete", scope=f"tenant:{TENANT}")


@pytest.fixture
def page(patient: LocalStage, browser: Browser) -> Iterator[Page]:
    with page_of(place_of(patient), browser) as found:
        become_a_customer(found)
        yield found


def become_a_customer(page: Page) -> None:
    """Wait until events reach the page, and write as a new customer of the tenant."""
    expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
    page.get_by_label("Platform").select_option("generic")
    page.get_by_label("Tenant").fill(TENANT)
    page.keyboard.press("Tab")
    # With the next frame, the page replaces the chat by that of the new customer.
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".bubble.mine").filter(has_text=text).first).to_be_visible(timeout=WITHIN_MS)


def the_batch(page: Page) -> str:
    divider = page.locator(".divider.batch").last
    expect(divider).to_be_visible(timeout=WITHIN_MS)
    return divider.inner_text()


def open_dialog(page: Page) -> Any:
    page.get_by_role("button", name=re.compile("^Time line and rules")).click()
    return page.get_by_role("dialog")


def test_five_fragments_become_one_batch_while_the_bar_runs_and_jumps(page: Page) -> None:
    dues = []
    for fragment in FRAGMENTS:
        say(page, fragment)
        dues.append(page.locator(".due .at time").get_attribute("datetime"))
    left = page.locator(".due .countdown")
    before = left.inner_text()
    expect(left).not_to_have_text(before, timeout=WITHIN_MS)
    assert dues == sorted(set(filter(None, dues))), "each fragment moved the due time"
    assert "5 messages, because of a short gap (typingInferenceMs, 6.0 s)" in the_batch(page)
    expect(page.locator(".divider.batch")).to_have_count(1)
    expect(page.locator(".buffer")).to_contain_text("Nothing waits.")


def test_the_time_line_has_what_was_seen_what_came_and_what_the_functions_logged(page: Page) -> None:
    say(page, "Hey")
    the_batch(page)
    line = open_dialog(page).locator(".line")
    for entry in ("sent text", "1 waiting", "batch.ready, 1 message", "ingest: buffered"):
        expect(line).to_contain_text(entry, timeout=WITHIN_MS)


def test_a_conversation_is_held_and_resumed_after_a_question(page: Page) -> None:
    say(page, "Hey")
    the_batch(page)
    dialog = open_dialog(page)
    dialog.get_by_role("button", name="Hold").click()
    dialog.get_by_label("For").select_option("8 hours")
    dialog.get_by_role("button", name="Hold now").click()
    expect(dialog.locator(".facts")).to_contain_text(
        re.compile(r"Holdpeople \(operator\), until .*for another (7.9|8.0) h"), timeout=WITHIN_MS
    )
    dialog.get_by_role("button", name="Close").click()
    say(page, "one")
    say(page, "two")
    expect(page.locator(".buffer .why")).to_contain_text("on hold", timeout=WITHIN_MS)
    open_dialog(page)
    dialog.get_by_role("button", name="Resume").click()
    dialog.get_by_role("button", name="Resume now").click()
    dialog.get_by_role("button", name="Close").click()
    expect(page.locator(".divider.batch")).to_have_count(2, timeout=WITHIN_MS)
    assert "2 messages, because of the end of a hold" in the_batch(page)


def test_the_processor_is_killed_and_the_batch_still_leaves_once(page: Page) -> None:
    page.get_by_role("button", name="Kill the processor").click()
    expect(page.locator(".bubble.mine").filter(has_text="done")).to_be_visible(timeout=WITHIN_MS)
    expect(page.locator(".bubble.mine.waits")).to_have_count(0, timeout=60_000)
    dividers = " ".join(page.locator(".divider.batch").all_inner_texts())
    assert sum(int(found) for found in re.findall(r"(\d+) messages?,", dividers)) == 4


# -- a deployed stage ------------------------------------------------------------------------------


@pytest.fixture
def deployed(patient: LocalStage, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a stage that is found by its stack, with only the rights that docs/bufferctl.md names."""
    name, outputs = f"played{uuid.uuid4().hex[:6]}", patient.outputs
    cloudformation, iam = outputs.client("cloudformation"), outputs.client("iam")
    (real,) = cloudformation.describe_stacks(StackName="MessageBuffer-local-Buffer")["Stacks"]
    known = {each["OutputKey"]: each["OutputValue"] for each in real["Outputs"]}
    values = {
        "ApiEndpoint": outputs.ApiEndpoint, "EventBusName": outputs.EventBusName,
        "AdminFunction": outputs.Functions["admin"], "WebhookSecretId": known["WebhookSecretId"],
    }  # fmt: skip
    template = {
        "Resources": {"Nothing": {"Type": "AWS::CloudFormation::WaitConditionHandle"}},
        "Outputs": {key: {"Value": value} for key, value in values.items()},
    }
    stack = f"MessageBuffer-{name}-Buffer"
    cloudformation.create_stack(StackName=stack, TemplateBody=json.dumps(template))
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="documented", PolicyDocument=json.dumps(policy_of(stack, values)))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    for variable, value in {
        "AWS_ENDPOINT_URL": outputs.AwsEndpointUrl,
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    try:
        yield name
    finally:
        iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
        iam.delete_user_policy(UserName=name, PolicyName="documented")
        iam.delete_user(UserName=name)
        cloudformation.delete_stack(StackName=stack)


def policy_of(stack: str, values: dict[str, str]) -> dict[str, Any]:
    """Return what docs/bufferctl.md allows for the console with --allow-changes."""
    queue = "arn:aws:sqs:*:*:bufferctl-console-*"
    of_queue = (
        "CreateQueue",
        "GetQueueAttributes",
        "SetQueueAttributes",
        "ReceiveMessage",
        "DeleteMessage",
        "DeleteQueue",
    )
    allowed = [
        (["cloudformation:DescribeStacks"], f"arn:aws:cloudformation:*:*:stack/{stack}/*"),
        (["lambda:InvokeFunction"], f"arn:aws:lambda:*:*:function:{values['AdminFunction']}"),
        (["secretsmanager:GetSecretValue"], "*"),
        ([f"sqs:{name}" for name in of_queue], queue),
        (
            [f"events:{name}" for name in ("PutRule", "PutTargets", "RemoveTargets", "DeleteRule")],
            f"arn:aws:events:*:*:rule/{values['EventBusName']}/bufferctl-console-*",
        ),
        # For the emulator, the bus is the resource of these two actions.
        (["events:PutTargets", "events:RemoveTargets"], f"arn:aws:events:*:*:event-bus/{values['EventBusName']}"),
    ]
    statements = [{"Effect": "Allow", "Action": actions, "Resource": resource} for actions, resource in allowed]
    return {"Version": "2012-10-17", "Statement": statements}


@pytest.mark.parametrize("allow_changes", [False, True], ids=["only reads", "changes"])
def test_a_deployed_stage_is_shown_with_the_documented_rights_and_without_words(
    patient: LocalStage, deployed: str, browser: Browser, allow_changes: bool
) -> None:
    place = ShownStage(
        Options(stage=deployed, region=patient.outputs.Region, allow_changes=allow_changes, show_words=False)
    )
    conversation = f"{TENANT}/generic/shop/{uuid.uuid4().hex}"
    with page_of(place, browser) as page:
        expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
        if allow_changes:
            assert page.get_by_label("Platform").locator("option").all_inner_texts() == ["Generic"]
            become_a_customer(page)
            say(page, "a word of mine")
            the_batch(page)
        else:
            assert page.get_by_label("Message", exact=True).count() == 0
        page.get_by_role("tab", name="Live").click()
        user = conversation.rpartition("/")[2]
        body = {"tenant": TENANT, "account": "shop", "conversation": user, "id": "m1", "text": "a secret word"}
        assert patient.webhooks.post("generic", body).status == 200
        row = page.locator("tbody tr").filter(has_text=user)
        row.get_by_role("button").click(timeout=WITHIN_MS)
        dialog = page.get_by_role("dialog")
        expect(dialog.locator(".why")).to_contain_text("of silence", timeout=WITHIN_MS)
        assert dialog.get_by_role("group", name="Actions").count() == int(allow_changes)
        expect(dialog.locator(".line")).to_contain_text("batch.ready", timeout=WITHIN_MS)
        dialog.get_by_role("button", name="Messages").click()
        expect(dialog).to_contain_text("hidden")
        dialog.get_by_role("button", name="Close").click()
        expect(page.locator(".events")).to_contain_text(conversation)
        assert "a secret word" not in page.content()


# -- how it ends -----------------------------------------------------------------------------------


def rules_of_consoles(stage: LocalStage) -> list[str]:
    found = stage.outputs.client("events").list_rules(EventBusName=stage.outputs.EventBusName)["Rules"]
    return [rule["Name"] for rule in found if rule["Name"].startswith("bufferctl-console")]


def queues_of_consoles(stage: LocalStage) -> list[str]:
    return list(stage.outputs.client("sqs").list_queues(QueueNamePrefix="bufferctl-console").get("QueueUrls", []))


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_a_console_that_ends_leaves_no_rule_and_no_queue(stage: LocalStage, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "tools.console", "--outputs", str(stage.stage.outputs_file)]
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


def test_screenshots_for_the_documents_can_be_made(page: Page, tmp_path: Path) -> None:
    """Make the pictures of docs/: SCREENSHOTS=docs names the folder that gets them."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    say(page, "Hello")
    the_batch(page)
    for fragment in FRAGMENTS[1:4]:
        say(page, fragment)
    expect(page.locator(".buffer .why")).to_contain_text("was short", timeout=WITHIN_MS)
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        picture = folder / f"console-{colours}.png"
        page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": 1_400, "height": 830})
        assert picture.stat().st_size > 20_000
