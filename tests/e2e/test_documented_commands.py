"""Runs the commands of the documents on the local stage.

A new command in a document either runs here, or is listed in NOT_RUN with the reason, or fails the test.
"""

import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bufferctl.errors import Failed
from message_buffer.json_object import Json
from tests.e2e.test_bufferctl import wait_for_letter
from tests.support.documents import FENCED, Document, keys
from tests.support.local_stage import LocalStage
from tools.local.stage import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

README = "README.md"
DOCUMENTS = [README, "docs/bufferctl.md", "docs/deploy.md", "docs/rules.md", "docs/lanes.md"]
BUFFERCTL = ".venv/bin/bufferctl"
NOT_RUN = {
    rf"alias bufferctl='{BUFFERCTL}'": "the test puts a program of this name on the PATH",
    r"make ": "a test of its own asks make for the plan; other tests run what the targets run",
    r"aws ": "needs the AWS CLI, which this repository does not install",
    r"bufferctl conversation (handoff|history) ": "needs a responder: tests/e2e/test_responder.py runs it",
    r"bufferctl dead list --replies": "needs a stage with queues: tests/unit/test_admin.py runs the operation",
    r"bufferctl tune .*--(apply|learn|switch-on)": "needs many counts: tests/unit/test_tune_command.py runs it",
    r"\.venv/bin/python -m tests\.support\.gaps": "plays customers for minutes",
    r"bufferctl tenant settings ": "needs a responder: tests/unit/test_tenant_settings.py runs its operations",
}
# The page also shows what a refusal looks like.
REFUSED = '{"silenceMs": 60000}'
TENANTS = r"(?:default|acme)"
HOLD_MS = 3_600_000
COMMAND_SECONDS, ANSWER_SECONDS = 60, 1


class Desk:
    """A folder with a shell, and a tenant of the shared stage that no other test uses."""

    def __init__(self, stage: LocalStage, folder: Path) -> None:
        self.stage, self.admin = stage, stage.admin
        self.tenant = f"t-{uuid.uuid4().hex[:12]}"
        self.version = ""
        self._folder = folder
        self._letters: list[Json] = []
        self._conversations: set[str] = set()
        command = shlex.join([sys.executable, "-m", "bufferctl", "--outputs", str(stage.stage.outputs_file)])
        program = folder / "bin" / "bufferctl"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {command} "$@"\n')
        program.chmod(0o755)

    def start(self, command: str, *, stdin: int) -> subprocess.Popen[str]:
        environment = {**os.environ, "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self._folder, env=environment, start_new_session=True, text=True,
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the shell, at a terminal where a person answers every question with yes."""
        person, program = pty.openpty()
        try:
            process, begun = self.start(command, stdin=program), time.monotonic()
            while True:
                # Answer again and again, because the question for a secret discards what was typed before it.
                os.write(person, b"y\n")
                try:
                    stdout, stderr = process.communicate(timeout=ANSWER_SECONDS)
                    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
                except subprocess.TimeoutExpired:
                    if time.monotonic() - begun > COMMAND_SECONDS:
                        os.killpg(process.pid, signal.SIGKILL)
                        raise
        finally:
            os.close(person)
            os.close(program)

    def prepared(self, text: str, *, where: str) -> str:
        """Return the command for this stage and tenant, with all that it needs in place."""
        text = re.sub(r"bufferctl (--(stage|profile|region) \S+ )+", "bufferctl ", text)
        text = re.sub(rf"(?<=tenant:){TENANTS}\b|(?<=agent:){TENANTS}(?=/)", self.tenant, text)
        text = re.sub(rf"\b{TENANTS}/\w+/", f"{self.tenant}/generic/", text)
        text = re.sub(r"(?<=--expected-version )\d+", self.version, text)
        # A door that no other test uses, because another secret of a platform would disturb the other tests.
        text = re.sub(r"(secret (?:set|check)) \S+", rf"\1 custom/{self.tenant}", text)
        text = text.replace("bufferctl send", f"bufferctl send --tenant {self.tenant}").replace(" …", "")
        if "bufferctl dead" in text:
            text = text.replace("<batch>", self._letter()["batchId"])
        assert not re.search(r"<\w+>", text), f"{where}: do not know what to put into {text!r}"
        ada = f"{self.tenant}/generic/bufferctl/ada"
        for conversation in {ada, *re.findall(rf"{self.tenant}/generic/\w+/\w+", text)}:
            self._let_two_wait(conversation)
        changed = re.search(r"rules (set|get|undo|delete) (\S+)", text)
        if changed and "--help" not in text:
            assert self.tenant in changed[2], f"{where}: it would change rules for the other tests of this stage"
            if changed[1] != "set" and not self._rules(changed[2]):
                self.admin.ask("rules.set", scope=changed[2], rules={"silenceMs": 500})
        return text

    def _let_two_wait(self, conversation: str) -> None:
        """Hold a conversation, and send messages until two wait in it."""
        self._conversations.add(conversation)
        shown = self.admin.ask("conversation.show", conversation=conversation)
        if shown.get("heldUntil") is None:
            self.admin.ask("conversation.hold", conversation=conversation, holdMs=HOLD_MS)
        for _ in range(shown["count"] or 0, 2):
            self.post(conversation)

    def post(self, conversation: str = "") -> None:
        """Send a message, to a new conversation if none is given."""
        conversation = conversation or f"{self.tenant}/generic/bufferctl/{uuid.uuid4().hex}"
        tenant, platform, account, user = conversation.split("/")
        body = {"tenant": tenant, "account": account, "conversation": user, "id": uuid.uuid4().hex, "text": "Hey"}
        answer = self.stage.webhooks.post(platform, body)
        assert answer.status == 200, answer.body

    def _rules(self, prefix: str) -> list[str]:
        return [each["scope"] for each in self.admin.ask("rules.list", prefix=prefix)["rules"]]

    def _letter(self) -> Json:
        """Return a dead letter of this tenant that is still in the queue."""
        listed = {each["batchId"] for each in self.admin.ask("dead.list")["letters"]}
        self._letters = [each for each in self._letters if each["batchId"] in listed]
        if not self._letters:
            conversation = f"{self.tenant}/generic/bufferctl/{uuid.uuid4().hex}"
            with self.stage.denied("conversation_processor", "events:PutEvents"):
                self.post(conversation)
                self._letters = [wait_for_letter(lambda: self.admin.ask("dead.list"), conversation)]
        return self._letters[0]

    def clear(self) -> None:
        """Leave the stage to the other tests as it was."""
        for conversation in self._conversations:
            with suppress(Failed):
                self.admin.ask("conversation.resume", conversation=conversation)
        for kind in ("tenant:", "agent:", "conversation:"):
            for scope in self._rules(f"{kind}{self.tenant}"):
                self.admin.ask("rules.delete", scope=scope)
        secrets, secret_id = self.stage.outputs.client("secretsmanager"), self.admin.webhook_secret_id()
        content = json.loads(secrets.get_secret_value(SecretId=secret_id)["SecretString"])
        if content.pop(f"custom/{self.tenant}", None):
            secrets.put_secret_value(SecretId=secret_id, SecretString=json.dumps(content))
        for letter in self._letters:
            with suppress(Failed):
                self.admin.ask("dead.redrive", batchId=letter["batchId"])


@pytest.fixture
def desk(stage: LocalStage, tmp_path: Path) -> Iterator[Desk]:
    missing = [program for program in ("curl", "jq", "openssl") if not shutil.which(program)]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"this machine has no {' and no '.join(missing)}, which documented commands need")
    desk = Desk(stage, tmp_path)
    yield desk
    desk.clear()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_commands_run(desk: Desk, name: str) -> None:
    for command in Document.read(ROOT / name).commands:
        if any(re.match(pattern, command.text) for pattern in NOT_RUN):
            continue
        text = command.text.replace(BUFFERCTL, "bufferctl")
        assert text.startswith("bufferctl "), f"{command.where}: do not know how to run {text!r}"
        ready = desk.prepared(text, where=command.where)
        if re.match(r"bufferctl tail\b", ready):
            tail(desk, ready)
            continue
        ended = desk.run(ready)
        if found := re.search(r"^Version (\d+)", ended.stdout, re.MULTILINE):
            desk.version = found[1]
        assert ended.returncode == (REFUSED in text), f"{command.where}: {ready}: {ended.stdout}{ended.stderr}"


def tail(desk: Desk, text: str) -> None:
    """Run `bufferctl tail` until it shows an event, then press Ctrl-C."""
    process = desk.start(text, stdin=subprocess.DEVNULL)
    assert process.stdout
    assert process.stderr
    try:
        assert "Listening" in process.stderr.readline()
        desk.post()
        shown = process.stdout.readline()
        while desk.tenant not in shown:
            assert shown, "it ended without having shown the event"
            shown = process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=COMMAND_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_make_targets_and_their_variables_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    inherited = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
    for command in Document.read(ROOT / name).make_commands():
        _, *words = shlex.split(command, comments=True)
        for variable in [word.partition("=")[0] for word in words if "=" in word]:
            assert re.search(rf"\$\({variable}\)|^{variable} \?=", makefile, re.MULTILINE), f"{name}: {command}"
        planned = subprocess.run(
            ["make", "--dry-run", *words], cwd=ROOT, env=inherited, capture_output=True, text=True, check=False
        )
        assert planned.returncode == 0, f"{name}: {command}: {planned.stderr}"


def test_the_documented_curl_is_answered_and_published_as_the_readme_shows(desk: Desk, stage: LocalStage) -> None:
    blocks = [each["text"] for each in FENCED.finditer((ROOT / "docs/sending.md").read_text("utf-8"))]
    (command,) = [each for each in blocks if "curl -d" in each]
    known = {"SECRET": stage.outputs.WebhookSecrets["generic"], "API": stage.outputs.ApiEndpoint}
    ended = desk.run("\n".join([*(f"{name}='{value}'" for name, value in known.items()), command]))
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert keys(answer) == keys(Document.read(ROOT / "docs/sending.md").of_json("accepted"))
    (conversation,) = answer["conversations"]

    def batches() -> list[Json]:
        return [each.batch for each in stage.inbox.arrivals if each.batch["conversationId"] == conversation]

    assert stage.inbox.wait_until(lambda _: bool(batches()), timeout_seconds=20)
    assert keys(batches()[0]) == keys(Document.read(ROOT / README).of_json("batchId"))
