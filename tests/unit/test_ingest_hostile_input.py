"""Whatever JSON or bytes arrive, signed or not, ingest answers in a sentence, never with a 5xx."""

import gc
import json
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.ingest.platforms import PLATFORMS
from message_buffer.json_object import Json
from tests.support.ingest_scene import HEADERS, Scene, account, gateway, request
from tests.support.platforms import body_of, content_type, one_message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100), st.sampled_from(list(HEADERS)))
def test_whatever_bytes_come_signed_the_answer_is_no_5xx(scene: Scene, body: bytes, platform: str) -> None:
    assert scene.post(platform, body)[0] in (200, 400)


# -- 200 hostile bodies of each platform -------------------------------------------------------------

# A stage with as many secrets: those of account 0 are tried for a body that names no account.
SECRETS = 200
VICTIM, MINE = 150, 0
REFUSED, NOT_BUFFERED = {401}, {200, 400, 401, 413}
Hostile = tuple[Json, set[int]]
"""A request, and the statuses that may answer it."""


class Attacker:
    """Owns account 0 of a platform and knows its secret. Has recorded a webhook of the victim."""

    def __init__(self, platform: str, scene: Scene) -> None:
        self.platform = platform
        self.draw = Random(platform)
        self.limit = PLATFORMS[platform].max_body_bytes
        self.recorded = body_of(platform, self.message(VICTIM))
        recorded_at = scene.engine.clock.now_ms / 1_000 if platform == "generic" else None
        self.replay = request(platform, self.recorded, f"secret {VICTIM}", at_seconds=recorded_at)

    def message(self, number: int, text: str = "Hey") -> Any:
        return one_message(self.platform, account(number), text)

    def signed(self, content: Any, *statuses: int) -> Hostile:
        return request(self.platform, content, f"secret {MINE}"), set(statuses) or NOT_BUFFERED

    def named(self, name: Any) -> Hostile:
        """Sign a message to an account of this name, with the secret of account 0."""
        if self.platform == "telegram":
            # Its updates do not name the bot: the token does, and the chat names the conversation.
            if isinstance(name, str):
                return request("telegram", self.message(MINE), f"secret {MINE}~{name}"), REFUSED
            body = self.message(MINE)
            body["message"]["chat"]["id"] = None if isinstance(name, int) else name
            return self.signed(body)
        return self.signed(replaced(self.message(MINE), name))

    def deep(self) -> Hostile:
        start = self.draw.choice([b"[", b'{"a":', b'{"account":', b'[{"id":', b"a[", b"%5B"])
        return self.signed(start * self.draw.randint(5_000, 40_000))

    def huge(self) -> Hostile:
        size = self.limit + self.draw.choice([-1, 0, 1, 1_000])
        too_large = self.message(MINE, "x" * self.draw.randint(66_000, 200_000))
        return self.signed(self.draw.choice([b" " * size, b"\0" * size, body_of(self.platform, too_large)]))

    def wrong_types(self) -> Hostile:
        return self.named(self.draw.choice([7, 1.5, None, True, [], {}, "", [account(MINE)], {"id": account(MINE)}]))

    def homoglyphs(self) -> Hostile:
        look_alike = {digit: chr(self.draw.choice([0xFF10, 0x0660, 0x1D7CE]) + int(digit)) for digit in "0123456789"}
        return self.named("".join(self.draw.choice([digit, look_alike[digit]]) for digit in account(MINE)) + "\uff10")

    def nul(self) -> Hostile:
        at = self.draw.randint(0, len(account(MINE)))
        return self.named(account(MINE)[:at] + "\0" + account(MINE)[at:])

    def surrogates(self) -> Hostile:
        if self.platform == "twilio":
            return self.signed(body_of("twilio", self.message(MINE)).replace(b"1555", b"1555%ED%A0%BD"), 401)
        return self.named(account(MINE) + self.draw.choice(["\ud83d", "\udc00", "\udc00\ud83d"]))

    def forged_account(self) -> Hostile:
        # What Telegram proves is the bot, so nothing but its token can be forged.
        guesses = ["a guess", "", "Secret 150", "secret 150 ", "secret 1500"]
        secrets = guesses if self.platform == "telegram" else [*guesses, "secret 0", "secret 149", "secret 199"]
        return request(self.platform, self.message(VICTIM), self.draw.choice(secrets)), REFUSED

    def replayed(self) -> Hostile:
        if self.platform == "telegram" or self.draw.random() < 0.3:
            return self.replay, {200}
        body = bytearray(self.recorded)
        body[self.draw.randrange(len(body))] ^= 1 << self.draw.randrange(7)
        return gateway(self.platform, bytes(body), headers=self.replay["headers"]), REFUSED

    def junk(self) -> Hostile:
        raw = self.draw.randbytes(self.draw.randint(0, 300))
        proof = "".join(chr(self.draw.randint(0, 0x10FFFF)) for _ in range(self.draw.randint(0, 80)))
        headers = dict.fromkeys(self.replay["headers"], proof) | {"content-type": content_type(self.platform)}
        return gateway(self.platform, raw, headers=headers), REFUSED

    def no_object(self) -> Hostile:
        text = json.dumps(self.draw.choice([None, 7, "x", [], {}, [7], {"entry": 7}, {"entry": [7]}, True]))
        return self.signed(text.encode(self.draw.choice(["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])))


def replaced(value: Any, name: Any) -> Any:
    """Return the content with another name of the account."""
    if isinstance(value, dict):
        return {key: replaced(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, name) for item in value]
    return name if value in (account(MINE), f"+{account(MINE)}") else value


KINDS: list[Callable[[Attacker], Hostile]] = [
    Attacker.deep, Attacker.huge, Attacker.wrong_types, Attacker.homoglyphs, Attacker.nul, Attacker.surrogates,
    Attacker.forged_account, Attacker.replayed, Attacker.junk, Attacker.no_object,
]  # fmt: skip


@pytest.mark.promise("P9")
@pytest.mark.parametrize("platform", PLATFORMS)
def test_200_hostile_bodies_buffer_nothing_and_leave_nothing_in_memory(scene: Scene, platform: str) -> None:
    scene.keep_secrets(platform, SECRETS)
    attacker = Attacker(platform, scene)
    assert scene.call(attacker.replay)[0] == 200, "the victim's own message"
    stored = set(scene.engine.keys())
    (conversation,) = scene.telemetry.said("buffered")[0]["conversations"]
    before = scene.buffered(conversation)
    for number in range(200):
        if number == len(KINDS) * 2:
            tracemalloc.start()
        kind = KINDS[number % len(KINDS)]
        event, statuses = kind(attacker)
        status, _ = scene.call(event)
        assert status in statuses, (number, kind.__name__, event)
        assert set(scene.engine.keys()) == stored, (number, kind.__name__, event)
    # The pages that the process has would also count those of tests before this one.
    gc.collect()
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 3_000_000
    assert scene.buffered(conversation) == before
    assert scene.bus.published == []
