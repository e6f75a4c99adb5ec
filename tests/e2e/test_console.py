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
from tests.support.console import page_of
from tests.support.local_stage import LocalStage
from tools.console.place import Options, ShownStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

WITHIN_MS = 60_000
# On a busy machine a customer may type too slowly, so that a batch is emitted before its last message.
TRIES = 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def usual(stage: LocalStage) -> Iterator[LocalStage]:
    """Yield the stage, on which the rules of cdk.json's stages are in force instead of the tests' short ones."""
    stage.admin.ask("rules.set", scope="stage", rules={"preset": "customers"})
    time.sleep(RULES_IN_FORCE_SECONDS)
    yield stage
    stage.admin.ask("rules.delete", scope="stage")


@pytest.fixture
def page(usual: LocalStage, browser: Browser) -> Iterator[Page]:
    with page_of(ShownStage(Options(outputs=usual.stage.outputs_file)), browser) as found:
        become_a_customer(found)
        yield found


def become_a_customer(page: Page) -> None:
    """Wait until events reach the page, and write as a customer of the generic platform."""
    expect(page.get_by_role("alert")).to_have_count(0, timeout=WITHIN_MS)
    page.get_by_label("Platform").select_option("generic")
    expect(page.get_by_label("Tenant")).to_be_visible()


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".bubble.mine").filter(has_text=text).first).to_be_visible(timeout=WITHIN_MS)


@pytest.mark.parametrize(
    "title",
    ["Fragments", "Picture, then its caption", "Interrupted agent", "Two customers", "Edit, delete, deliver again"],
)
def test_a_scenario_shows_what_it_promises(page: Page, title: str) -> None:
    played = page.get_by_role("region", name=f"Scenario: {title}")
    for _ in range(TRIES):
        page.get_by_role("button", name=title, exact=True).click()
        expect(played).to_contain_text("What came:", timeout=WITHIN_MS)
        if "That is as expected." in played.inner_text():
            break
    expect(played).to_contain_text("That is as expected.")
    expect(played.locator(".problem")).to_have_count(0)


def test_a_conversation_is_held_and_resumed_after_a_question(page: Page) -> None:
    say(page, "one")
    page.get_by_role("link", name=re.compile("^Time line")).click()
    dialog = page.get_by_role("dialog")
    for name, sign in (("Hold", "people (operator)"), ("Resume", "none")):
        dialog.get_by_role("button", name=name, exact=True).click()
        dialog.get_by_role("button", name=f"{name} now").click()
        expect(dialog.locator(".facts div").filter(has_text="Holds")).to_contain_text(sign, timeout=WITHIN_MS)
    for entry in ("sent text", "operator: hold", "1 waiting", "batch.ready, 1 message, because of the end of a hold"):
        expect(dialog.locator(".line")).to_contain_text(entry, timeout=WITHIN_MS)
    dialog.locator(".event summary").last.click()
    expect(dialog.locator("pre")).to_contain_text('"detail-type": "messages.batch.ready"', timeout=WITHIN_MS)
    dialog.get_by_role("button", name="Is it late, and why?").click()
    expect(dialog.locator(".causes").first).to_contain_text("The batch was emitted", timeout=WITHIN_MS)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Health").click()
    expect(page.locator(".doctor")).to_contain_text("Read at", timeout=WITHIN_MS)


# -- a deployed stage ------------------------------------------------------------------------------


@pytest.fixture
def deployed(usual: LocalStage, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a stage that is found by its stack, with only the rights that docs/bufferctl.md names."""
    name, outputs = f"played{uuid.uuid4().hex[:6]}", usual.outputs
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
    yield name
    cloudformation.delete_stack(StackName=stack)


def policy_of(stack: str, values: dict[str, str]) -> dict[str, Any]:
    """Return what docs/bufferctl.md allows for the console with --allow-changes."""
    of_queue = [
        "CreateQueue",
        "GetQueueAttributes",
        "SetQueueAttributes",
        "ReceiveMessage",
        "DeleteMessage",
        "DeleteQueue",
    ]
    of_rule = ("PutRule", "PutTargets", "RemoveTargets", "DeleteRule")
    bus = values["EventBusName"]
    allowed = [
        (["cloudformation:DescribeStacks"], f"arn:aws:cloudformation:*:*:stack/{stack}/*"),
        (["lambda:InvokeFunction"], f"arn:aws:lambda:*:*:function:{values['AdminFunction']}"),
        (["secretsmanager:GetSecretValue"], "*"),
        ([f"sqs:{name}" for name in of_queue], "arn:aws:sqs:*:*:bufferctl-console-*"),
        ([f"events:{name}" for name in of_rule], f"arn:aws:events:*:*:rule/{bus}/bufferctl-console-*"),
        # For the emulator, the bus is the resource of these two actions.
        (["events:PutTargets", "events:RemoveTargets"], f"arn:aws:events:*:*:event-bus/{bus}"),
    ]
    statements = [{"Effect": "Allow", "Action": actions, "Resource": resource} for actions, resource in allowed]
    return {"Version": "2012-10-17", "Statement": statements}


def test_a_deployed_stage_is_shown_with_the_documented_rights(
    usual: LocalStage, deployed: str, browser: Browser
) -> None:
    place = ShownStage(Options(stage=deployed, region=usual.outputs.Region, show_words=False))
    with page_of(place, browser) as page:
        become_a_customer(page)
        assert page.get_by_label("Platform").locator("option").all_inner_texts() == ["Generic"]
        say(page, "a word of mine")
        expect(page.locator(".divider.batch")).to_be_visible(timeout=WITHIN_MS)
        page.get_by_role("link", name=re.compile("^Time line")).click()
        expect(page.locator("dialog .line")).to_contain_text("batch.ready", timeout=WITHIN_MS)


# -- how it ends -----------------------------------------------------------------------------------


def listeners_of(stage: LocalStage) -> list[str]:
    """Return the rules and the queues of consoles."""
    prefix, outputs = "bufferctl-console", stage.outputs
    rules = outputs.client("events").list_rules(EventBusName=outputs.EventBusName, NamePrefix=prefix)["Rules"]
    queues = outputs.client("sqs").list_queues(QueueNamePrefix=prefix).get("QueueUrls", [])
    return [*(rule["Name"] for rule in rules), *queues]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_a_console_that_ends_leaves_no_rule_and_no_queue(stage: LocalStage, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "tools.console", "--outputs", str(stage.stage.outputs_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as console:
        try:
            assert console.stdout
            assert any("http://127.0.0.1:" in line for line in console.stdout)
            wait_until(lambda: len(listeners_of(stage)) == 2)
            console.send_signal(ending)
            console.wait(30)
        finally:
            if console.poll() is None:
                os.killpg(console.pid, signal.SIGKILL)
    wait_until(lambda: not listeners_of(stage))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_MS / 1_000
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_screenshots_for_the_documents_can_be_made(page: Page, tmp_path: Path) -> None:
    """Make the pictures of docs/: SCREENSHOTS=docs names the folder that gets them."""
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    say(page, "Hello")
    expect(page.locator(".divider.batch")).to_be_visible(timeout=WITHIN_MS)
    for fragment in ("I have a question", "about my order", "#12345"):
        say(page, fragment)
    expect(page.locator(".buffer .why")).to_contain_text("was short", timeout=WITHIN_MS)
    for colours in ("light", "dark"):
        page.emulate_media(color_scheme=colours)
        picture = folder / f"console-{colours}.png"
        page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": 1_400, "height": 770})
        assert picture.stat().st_size > 20_000
