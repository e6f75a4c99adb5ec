"""No signed body costs much: even a large body must not take seconds of CPU time, or the memory of an instance."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from message_buffer.json_object import Json

ROOT = Path(__file__).parents[2]
MAX_CPU_MS, MAX_MORE_MB = 300, 64
# Reads a small body and then that of the standard input. Prints the milliseconds and the megabytes that this one costs.
READ = """
import re, resource, sys, time
from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Signer, Webhook
from lambdas.ingest.preparation import prepare
from message_buffer.errors import InvalidInput
from message_buffer.rules.rule_book import RuleBook
from tests.support.fakes import FakeRules, RecordedTelemetry

# The operating system ends a process that needs far too much.
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
BOOK, PLATFORM = RuleBook(FakeRules(), {}, RecordedTelemetry()), PLATFORMS[sys.argv[1]]
SIGNER = Signer(frozenset({"bot"})) if PLATFORM.name == "telegram" else Signer(all_but=frozenset())

def take(body):
    try:
        intake = PLATFORM.read(Webhook("POST", "", {}, {}, body), signer=SIGNER, received_at_ms=1)
        prepare(intake, BOOK, skip_invalid=PLATFORM.skips_invalid)
    except InvalidInput:
        pass

def peak_mb():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) // 1_024

small, body = sys.stdin.buffer.readline(), sys.stdin.buffer.readline()
take(small)
peak, cpu = peak_mb(), time.process_time()
take(body)
print(round((time.process_time() - cpu) * 1_000), peak_mb() - peak)
"""


def generic(**fields: Any) -> Json:
    return {"account": "a", "conversation": "c", "id": "1", "text": "x", **fields}


def telegram(**fields: Any) -> Json:
    return {"message": {"message_id": 1, "chat": {"id": 1, "type": "private"}, "from": {"id": 1}, **fields}}


def linked(text: str, links: int) -> Json:
    return telegram(text=text, entities=[{"url": "u", "offset": 0, "length": len(text)}] * links)


def whatsapp(**value: Any) -> Json:
    changes = [{"field": "messages", "value": {"metadata": {"phone_number_id": "1"}, **value}}]
    return {"object": "whatsapp_business_account", "entry": [{"changes": changes}]}


def messenger(**message: Any) -> Json:
    return {"object": "page", "entry": [{"id": "1", "messaging": [{"sender": {"id": "2"}, "message": message}]}]}


def messages_of(kind: str) -> list[Json]:
    content = {"text": {"body": "Hey"}} if kind == "text" else {}
    return [{"id": str(number), "from": "1", "type": kind, **content} for number in range(1_000)]


CARD = {"id": "1", "from": "1", "type": "contacts", "contacts": [{}] * 100_000}
SMALL: dict[str, Any] = {
    "generic": generic(attachments=[{"type": "image"}]),
    "telegram": linked("Hey", 1),
    "messenger": messenger(mid="1", attachments=[{}]),
    "whatsapp": whatsapp(messages=[{**CARD, "contacts": [{}]}], contacts=[{}]),
}
BODIES: dict[str, tuple[str, Any]] = {
    "1.5 MB of empty attachments": ("generic", generic(attachments=[{}] * 500_000)),
    "3.9 MB of numbers instead of attachments": ("generic", generic(attachments=[0] * 1_950_000)),
    "245 KB with 1,300 links": ("telegram", linked("x" * 190_000, 1_300)),
    "1 MB of text with 100 links": ("telegram", linked("x" * 1_000_000, 100)),
    "1 MB of empty blocks of a rich message": ("telegram", telegram(rich_message={"blocks": [{}] * 340_000})),
    "117 KB of unknown authors and contacts": ("whatsapp", whatsapp(contacts=[{}] * 19_500, messages=[{}] * 19_500)),
    "1,000 messages that share a name of 2.9 MB": (
        "whatsapp",
        whatsapp(contacts=[{"wa_id": "1", "profile": {"name": "x" * 2_900_000}}], messages=messages_of("text")),
    ),
    "1,000 messages that share an error of 2.9 MB": (
        "whatsapp",
        whatsapp(errors=[{"title": "x" * 2_900_000}], messages=messages_of("unsupported")),
    ),
    "900 KB of empty attachments of Messenger": (
        "messenger",
        messenger(attachments=[{}] * 300_000),
    ),
    "a card of 100,000 contacts": ("whatsapp", whatsapp(messages=[CARD])),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process's memory")
@pytest.mark.parametrize("name", BODIES)
def test_a_body_costs_little_time_and_memory(name: str) -> None:
    platform, body = BODIES[name]
    given = b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in (SMALL[platform], body))
    run = subprocess.run(
        [sys.executable, "-c", READ, platform], input=given, capture_output=True, check=False, cwd=ROOT, timeout=30
    )
    assert run.returncode == 0, run.stderr[-300:]
    cpu_ms, more_mb = map(int, run.stdout.split())
    assert cpu_ms <= MAX_CPU_MS, f"{cpu_ms} ms"
    assert more_mb <= MAX_MORE_MB, f"{more_mb} MB"
