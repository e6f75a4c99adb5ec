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
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import pytest

from bufferctl.__main__ import make_parser
from bufferctl.errors import Failed
from bufferctl.stage import LOCAL, find_stage
from message_buffer.json_object import Json
from tests.e2e.test_bufferctl import wait_for_letter
from tests.support.documents import Document, keys
from tests.support.local_stage import LocalStage
from tools.local.__main__ import how_to_send
from tools.local.stage import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

README = "README.md"
DOCUMENTS = [README, "docs/bufferctl.md", "docs/deploy.md", "docs/rules.md", "docs/lanes.md"]
BUFFERCTL = ".venv/bin/python -m bufferctl"
ALIAS = f"alias bufferctl='{BUFFERCTL}'"
NOT_RUN = {
    r"aws ": "needs the AWS CLI, which this repository does not install",
    r"bufferctl conversation (handoff|history) ": "needs a responder: tests/e2e/test_responder.py runs it",
}
# Planned, not run: a test of its own asks make for the plan. Other tests run what the targets run.
MAKE = re.compile(r"make ")
TENANTS = r"(?:default|acme)"
HOLD_MS = 3_600_000
COMMAND_SECONDS = 60
# The documents write `jq .rules`. A machine without jq gets this much of it.
JQ = "import json, sys; print(json.dumps(json.load(sys.stdin)[sys.argv[1][1:]]))"


class Desk:
    """A folder with a shell, and a tenant of the shared stage that no other test uses."""

    def __init__(self, stage: LocalStage, folder: Path) -> None:
        self.stage = stage
        self.tenant = f"t-{uuid.uuid4().hex[:12]}"
        self.conversation = f"{self.tenant}/generic/bufferctl/ada"
        self.admin = find_stage(LOCAL, profile=None, region=None, outputs=stage.stage.outputs_file)
        self.version = ""
        self._folder = folder
        self._letters: list[Json] = []
        self.conversations: set[str] = set()
        command = [sys.executable, "-m", "bufferctl", "--outputs", str(stage.stage.outputs_file)]
        self._program("bufferctl", f'PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.join(command)} "$@"')
        if not shutil.which("jq"):
            self._program("jq", f'exec {shlex.quote(sys.executable)} -c {shlex.quote(JQ)} "$@"')

    def _program(self, name: str, command: str) -> None:
        (self._folder / "bin").mkdir(exist_ok=True)
        program = self._folder / "bin" / name
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o755)

    @cached_property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"}

    def start(self, command: str, *, stdin: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self._folder, env=self._environment, start_new_session=True, text=True,
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the shell, at a terminal where a person answers every question with yes."""
        with terminal(typed="y\n") as stdin:
            process = self.start(command, stdin=stdin)
            try:
                stdout, stderr = process.communicate(timeout=COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    # -- what the commands need --------------------------------------------------------------------

    def let_two_wait(self, conversation: str) -> None:
        """Hold a conversation, and send messages until two wait in it."""
        self.conversations.add(conversation)
        shown = self.admin.ask("conversation.show", conversation=conversation)
        if shown.get("heldUntil") is None:
            self.admin.ask("conversation.hold", conversation=conversation, holdMs=HOLD_MS)
        for _ in range(shown["count"] or 0, 2):
            self.post(conversation)

    def post(self, conversation: str) -> None:
        tenant, platform, account, user = conversation.split("/")
        body = {"tenant": tenant, "account": account, "conversation": user, "id": uuid.uuid4().hex, "text": "Hey"}
        answer = self.stage.webhooks.post(platform, body)
        assert answer.status == 200, answer.body

    def new_conversation(self) -> str:
        return f"{self.tenant}/generic/bufferctl/{uuid.uuid4().hex}"

    def let_rules_exist(self, scope: str) -> None:
        assert self.tenant in scope, f"the rules of {scope} would be in force for the tests of this stage, too"
        if not self._rules(scope):
            self.admin.ask("rules.set", scope=scope, rules={"silenceMs": 500})

    def _rules(self, prefix: str) -> list[str]:
        return [each["scope"] for each in self.admin.ask("rules.list", prefix=prefix)["rules"]]

    def letter(self) -> Json:
        """Return a dead letter of this tenant that is still in the queue."""
        listed = {each["batchId"] for each in self.admin.ask("dead.list")["letters"]}
        self._letters = [each for each in self._letters if each["batchId"] in listed]
        if not self._letters:
            conversation = self.new_conversation()
            with self.stage.denied("conversation_processor", "events:PutEvents"):
                self.post(conversation)
                self._letters = [wait_for_letter(lambda: self.admin.ask("dead.list"), conversation)]
        return self._letters[0]

    def clear(self) -> None:
        """Leave the stage to the other tests as it was."""
        for conversation in self.conversations:
            with suppress(Failed):
                self.admin.ask("conversation.resume", conversation=conversation)
        for kind in ("tenant:", "agent:", "conversation:"):
            for scope in self._rules(f"{kind}{self.tenant}"):
                self.admin.ask("rules.delete", scope=scope)
        for letter in self._letters:
            with suppress(Failed):
                self.admin.ask("dead.redrive", batchId=letter["batchId"])


@contextmanager
def terminal(*, typed: str) -> Iterator[int]:
    """Yield the end of a terminal that a program reads, with this text typed at it."""
    person, program = pty.openpty()
    try:
        os.write(person, typed.encode())
        yield program
    finally:
        os.close(person)
        os.close(program)


@pytest.fixture
def desk(stage: LocalStage, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(stage, tmp_path)
    yield desk
    desk.clear()


def nothing(_desk: Desk, _given: Namespace) -> None:
    """Prepare nothing: the command runs on any stage."""


def messages_wait(desk: Desk, given: Namespace) -> None:
    desk.let_two_wait(getattr(given, "conversation", desk.conversation))


def to_be_resumed(desk: Desk, given: Namespace) -> None:
    desk.conversations.add(given.conversation)


def rules_exist(desk: Desk, given: Namespace) -> None:
    desk.let_rules_exist(given.scope)


def buffer_is_open_in_scope(desk: Desk, given: Namespace) -> None:
    assert desk.tenant in given.scope, f"{given.scope} is not of one tenant: it would change the tests of this stage"
    desk.let_two_wait(desk.conversation)


def letter_is_there(desk: Desk, _given: Namespace) -> None:
    desk.letter()


# The preparation of each command. The test fails for a command that is missing here.
PREPARE: dict[str, Callable[[Desk, Namespace], None]] = {
    "status": messages_wait,
    "conversation list": messages_wait,
    "conversation show": messages_wait,
    "conversation flush": messages_wait,
    "conversation cancel": messages_wait,
    "conversation hold": to_be_resumed,
    "conversation resume": messages_wait,
    "rules list": nothing,
    "rules get": rules_exist,
    "rules set": buffer_is_open_in_scope,
    "rules delete": rules_exist,
    "rules explain": nothing,
    "dead list": letter_is_there,
    "dead show": letter_is_there,
    "dead redrive": letter_is_there,
    "send": nothing,
    "tail": nothing,
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_commands_run(desk: Desk, name: str) -> None:
    for command in Document.read(ROOT / name).commands:
        text = command.text if command.text == ALIAS else command.text.replace(BUFFERCTL, "bufferctl")
        if text == ALIAS or MAKE.match(text) or any(re.match(pattern, text) for pattern in NOT_RUN):
            continue
        assert text.startswith("bufferctl "), f"{command.where}: do not know how to run {text!r}"
        ready = prepared(desk, text, where=command.where)
        if re.match(r"bufferctl tail\b", ready):
            tail(desk, ready)
            continue
        ended = desk.run(ready)
        if found := re.match(r"Version (\d+)", ended.stdout):
            desk.version = found[1]
        assert ended.returncode == 0, f"{command.where}: {ended.stderr}"


def prepared(desk: Desk, text: str, *, where: str) -> str:
    """Return the command for this stage and tenant, with all that it needs in place."""
    text = re.sub(r"bufferctl (--(stage|profile|region) \S+ )+", "bufferctl ", text)
    text = re.sub(rf"(?<=tenant:){TENANTS}\b|(?<=agent:){TENANTS}(?=/)", desk.tenant, text)
    text = re.sub(rf"\b{TENANTS}/\w+/", f"{desk.tenant}/generic/", text)
    text = re.sub(r"(?<=--expected-version )\d+", desk.version, text)
    text = text.replace(" …", "")
    if "<batch>" in text:
        text = text.replace("<batch>", desk.letter()["batchId"])
    words = words_of(text)
    assert not re.search(r"<\w+>", " ".join(words)), f"{where}: do not know what to put into {text!r}"
    if "--help" in words:
        return text
    name = next((each for each in (words[0], " ".join(words[:2])) if each in PREPARE), None)
    assert name, f"{where}: do not know how to run {text!r}: add it to PREPARE"
    if name == "send":
        text = text.replace("bufferctl send", f"bufferctl send --tenant {desk.tenant}")
    PREPARE[name](desk, make_parser().parse_args(words))
    return text


def words_of(text: str) -> list[str]:
    """Return the words after `bufferctl`, up to the first pipe, redirection or comment."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|<>;&"):
            break
        words.append(word)
    return words[1:]


def tail(desk: Desk, text: str) -> None:
    """Run `bufferctl tail` until it shows an event, then press Ctrl-C."""
    process = desk.start(text, stdin=subprocess.DEVNULL)
    assert process.stdout
    assert process.stderr
    try:
        assert "Listening" in process.stderr.readline()
        desk.post(desk.new_conversation())
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


def test_the_curl_that_make_up_prints_is_answered_and_published_as_the_readme_shows(
    desk: Desk, stage: LocalStage
) -> None:
    missing = [program for program in ("curl", "openssl") if not shutil.which(program)]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"this machine has no {' and no '.join(missing)}, which the printed command needs")
    _, _, command = how_to_send(stage.outputs).partition("\n\n")
    ended = desk.run(command)
    assert ended.returncode == 0, ended.stderr
    readme = Document.read(ROOT / README)
    answer = json.loads(ended.stdout)
    assert keys(answer) == keys(readme.of_json("accepted"))
    (conversation,) = answer["conversations"]

    def batches() -> list[Json]:
        return [each.batch for each in stage.inbox.arrivals if each.batch["conversationId"] == conversation]

    assert stage.inbox.wait_until(lambda _: bool(batches()), timeout_seconds=20)
    assert keys(batches()[0]) == keys(readme.of_json("batchId"))
