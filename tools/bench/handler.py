"""Measure the CPU time of a warm ingest handler: `python -m tools.bench.handler [--quick]`.

The handler runs as deployed, with Powertools and redis-py, and calls a Valkey on this machine. Secrets and rules come
from memory, as they do on Lambda while they are cached. The CPU time that redis-py spends on commands is subtracted.
Each request contains one message.

The benchmark also measures forged requests of each platform's largest size, on a stage with many secrets. It compares
them with genuine requests of the same size, once on the same stage and once on a stage with one secret.
"""

import argparse
import cProfile
import json
import os
import pstats
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lambdas.ingest import handler as ingest_handler
from lambdas.ingest.platforms import PLATFORMS as ALL_PLATFORMS
from lambdas.ingest.service import Ingest
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rule_book import RuleBook
from message_buffer.settings import ConnectionSettings, LogSettings
from message_buffer.telemetry import Telemetry
from tests.support.engine import SETTINGS
from tests.support.fakes import FakeBus, FakeQueue, FakeRules, FakeSecrets, valkey_lane
from tests.support.ingest_scene import SECRET, SECRETS, FakeProgress, account, gateway, request
from tests.support.platforms import FIXTURES, body_of, content_type, one_message, signed
from tests.support.takeovers import FakeTakeovers
from tests.support.valkey_server import ValkeyServer
from tools.bench.measure import figure, ratio
from tools.bench.report import Target, print_targets, save

ENVIRONMENT = {
    "POWERTOOLS_SERVICE_NAME": "ingest",
    "POWERTOOLS_METRICS_NAMESPACE": "MessageBuffer",
}
PLATFORMS = ("generic", "whatsapp", "telegram")
TEXTS = {"whatsapp": "text_in_reply.json", "telegram": "text.json"}
CONVERSATIONS = 200
# The platforms whose signature covers the body.
FORGED = ("generic", "whatsapp", "messenger", "twilio")
MANY_SECRETS = 200
# Twilio's limit of 64 KB, less the other fields of its form.
TWILIO_TEXT = 60_000
# These functions take most of a request's time. The time of each includes the functions that it calls.
PARTS = {
    "log line": "telemetry.py:info",
    "metrics, added": "telemetry.py:count",
    "metrics, written": "telemetry.py:flush",
    "body read": ":read",
    "signature": ":authenticate",
    "rules and wire form": "preparation.py:_prepare_one",
    "store": "store.py:buffer_message",
}
Handler = Callable[[dict[str, Any], None], dict[str, Any]]


class Commands:
    """Measures the CPU time of redis-py's commands."""

    def __init__(self) -> None:
        self.cpu_ns = 0

    def around(self, client: Any) -> Any:
        run = client.execute_command

        def execute_command(*args: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return run(*args)
            finally:
                self.cpu_ns += time.thread_time_ns() - began

        client.execute_command = execute_command
        return client


def warm_handler(port: int, commands: Commands, secrets: Mapping[str, Any] = SECRETS) -> Handler:
    telemetry = Telemetry(LogSettings())
    address = ConnectionSettings(f"valkey://127.0.0.1:{port}")

    def opened() -> Any:
        return commands.around(connect(address))

    ingest = Ingest(
        lane=valkey_lane(Store(Connection(opened), SETTINGS)),
        secrets=WebhookSecrets(FakeSecrets(json.dumps(secrets)), "id", telemetry),
        bus=FakeBus(),
        telemetry=telemetry,
        book=RuleBook(FakeRules(), {}, telemetry),
        takeovers=FakeTakeovers(),
        progress=FakeProgress(),
        dead_letters=FakeQueue(),
    )

    def handler(event: dict[str, Any], context: None) -> dict[str, Any]:
        ingest_handler._ingest = lambda: ingest  # type: ignore[assignment]
        ingest_handler._telemetry = lambda: telemetry  # type: ignore[assignment]
        return ingest_handler.handler(event, context)

    return handler


def events(platform: str, count: int) -> list[dict[str, Any]]:
    """Return `count` requests of many conversations, with one message each."""
    made = []
    for number in range(count):
        body = _body(platform, number)
        headers = {"content-type": content_type(platform), "host": "hooks.example.com", "user-agent": "bench"}
        headers |= signed(platform, body, SECRET, at_seconds=time.time())
        made.append(gateway(platform, body, headers=headers))
    return made


def _body(platform: str, number: int) -> bytes:
    if platform == "generic":
        shown: Any = {
            "account": "a",
            "conversation": f"c{number % CONVERSATIONS}",
            "id": f"m{number}",
            "text": "Could you tell me whether this is still to be had?",
            "sentAt": 1_700_000_000_000,
        }
        return body_of(platform, shown)
    shown = json.loads((FIXTURES / platform / TEXTS[platform]).read_text("utf-8"))
    if platform == "whatsapp":
        message = shown["entry"][0]["changes"][0]["value"]["messages"][0]
        message |= {"id": f"wamid.{number}", "from": f"4917{number % CONVERSATIONS:08}"}
        del message["context"]
    else:
        shown["update_id"] = shown["message"]["message_id"] = number + 1
        shown["message"]["chat"]["id"] = number % CONVERSATIONS + 1
    return body_of(platform, shown)


@contextmanager
def silent() -> Iterator[None]:
    """Send the log to /dev/null while the block runs. The handler still spends the time to write it, as on Lambda."""
    kept, null = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    os.dup2(null, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(null)


def cpu_us(
    handler: Handler, requests: list[dict[str, Any]], commands: Commands, *, status: int = 200
) -> tuple[float, float]:
    """Return the CPU time of a request, and redis-py's part of that time."""
    commands.cpu_ns, began = 0, time.thread_time_ns()
    for each in requests:
        response = handler(each, None)
        assert response["statusCode"] == status, response
    whole = time.thread_time_ns() - began
    return whole / len(requests) / 1_000, commands.cpu_ns / len(requests) / 1_000


def profiled(handler: Handler, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each part's share of the time. Do not return the times, because the profiler makes all of them longer."""
    profile = cProfile.Profile(time.thread_time)
    profile.enable()
    for each in requests:
        handler(each, None)
    profile.disable()
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    whole = sum(own for _, _, own, _, _ in stats.values())
    found = []
    for part, wanted in PARTS.items():
        file, _, function = wanted.rpartition(":")
        spent = sum(
            cumulative
            for (path, _, name), (_, _, _, cumulative, _) in stats.items()
            if name == function and path.endswith(file)
        )
        found.append({"part": part, "share": round(spent / whole, 3)})
    return sorted(found, key=lambda each: -each["share"])


def forgeries(port: int, *, rounds: int, count: int) -> tuple[dict[str, Any], list[Target]]:
    """Compare the CPU time of forged and genuine requests, for each platform, with many secrets and with one."""
    commands, result, targets = Commands(), {}, []
    for platform in FORGED:
        few, many = (
            warm_handler(port, commands, {platform: {"accounts": {account(n): f"secret {n}" for n in range(number)}}})
            for number in (1, MANY_SECRETS)
        )
        last = MANY_SECRETS - 1
        forged = request(platform, _largest(platform, account(last)), "a guess")
        true = request(platform, _largest(platform, account(last)), f"secret {last}")
        true_of_one = request(platform, _largest(platform, account(0)), "secret 0")
        found: dict[str, list[float]] = {"forged": [], "true": [], "true, one secret": []}
        with silent():
            for _ in range(rounds + 1):
                # The genuine request is always the same. So it is a duplicate, which costs less than a new message. The
                # measured ratio of forged to genuine is therefore too high.
                found["forged"].append(cpu_us(many, [forged] * count, commands, status=401)[0])
                found["true"].append(cpu_us(many, [true] * count, commands)[0])
                found["true, one secret"].append(cpu_us(few, [true_of_one] * count, commands)[0])
        shares = {name: ratio(found["forged"][1:], found[name][1:]) for name in ("true", "true, one secret")}
        size = len(_largest(platform, ""))
        result[platform] = {"bytes": size} | {
            name: figure([us / 1_000 for us in each[1:]]).as_json() for name, each in found.items()
        }
        print(f"{platform:10} {size:>9} bytes, CPU of a forged request: "
              + ", ".join(f"{share} of {name}" for name, share in shares.items()))  # fmt: skip
        what = f"CPU of a forged request of {platform} with {MANY_SECRETS} secrets, of a true one's with one"
        targets.append(Target(what, 2.0, shares["true, one secret"]))
    return result, targets


def _largest(platform: str, to: str) -> bytes:
    """Return a body of the platform's maximum size. It is quick to parse, so only its signature takes time."""
    if platform == "twilio":
        return body_of(platform, one_message(platform, to, "x" * TWILIO_TEXT))
    body = body_of(platform, one_message(platform, to))
    return body + b" " * (ALL_PLATFORMS[platform].max_body_bytes - len(body))


def measure(*, rounds: int, count: int, forged: int) -> tuple[dict[str, Any], list[Target]]:
    """Measure `count` requests a round, and `forged` requests a round to compare forged with genuine ones."""
    os.environ |= ENVIRONMENT
    server, targets, result = ValkeyServer().start(), [], {}
    try:
        commands = Commands()
        handler = warm_handler(server.port, commands)
        for platform in PLATFORMS:
            requests = events(platform, (rounds + 1) * count)
            with silent():
                cpu_us(handler, requests[:count], commands)
                found = [cpu_us(handler, requests[n * count : (n + 1) * count], commands) for n in range(1, rounds + 1)]
                parts = profiled(handler, requests[:count])
            ours = figure([(whole - redis) / 1_000 for whole, redis in found])
            redis_py = figure([redis / 1_000 for _, redis in found])
            result[platform] = {"cpu_ms": ours.as_json(), "redis_py_ms": redis_py.as_json(), "profile": parts}
            print(f"{platform:10} {ours} ms of CPU a request, and redis-py's {redis_py}; "
                  + ", ".join(f"{each['part']} {each['share']:.0%}" for each in parts[:5]))  # fmt: skip
            targets.append(Target(f"CPU of a request of {platform} beyond redis-py's, ms", 1.5, ours))
        forgery, of_forged = forgeries(server.port, rounds=rounds, count=forged)
    finally:
        server.stop()
    measured = {"rounds": rounds, "requests": count, "platforms": result, "forged": forgery}
    return measured, targets + of_forged


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.handler", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look: fewer rounds")
    quick = parser.parse_args().quick
    measured, targets = measure(rounds=5, count=500, forged=10) if quick else measure(rounds=15, count=1_000, forged=20)
    print_targets(targets)
    save("handler", measured, targets, quick=quick)


if __name__ == "__main__":
    main()
