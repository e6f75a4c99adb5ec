"""Ingest: who sent this, what messages are in it, and are they safe.

The answer is 2xx only when every message is buffered. If one is not, the platform sends all of them again, and
those that were are known by their ids.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Headers, Inbound, Intake, Platform, Query
from lambdas.ingest.webhook_secrets import WebhookSecrets
from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.errors import InvalidInput, InvalidRules, MessageTooLarge, SendFailed, StoreError
from lambdas.shared.keys import encode_conversation
from lambdas.shared.message import encode
from lambdas.shared.rules import RuleLayer, resolve_rules
from lambdas.shared.senders.starter import ProcessorStarter
from lambdas.shared.store.outcomes import Buffered
from lambdas.shared.store.store import Store
from lambdas.shared.telemetry import Telemetry
from lambdas.shared.timing import Timing

MAX_BODY_BYTES = 4 * 1024 * 1024
RETRY_AFTER_SECONDS = 5


class Request(NamedTuple):
    method: str
    platform: str
    headers: Headers
    """Names in lower case."""
    query: Query
    body: bytes


class Response(NamedTuple):
    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


class _Ready(NamedTuple):
    """A message as it goes into its buffer."""

    conversation: str
    message_id: str
    payload: bytes


class Ingest:
    def __init__(
        self,
        *,
        store: Store,
        secrets: WebhookSecrets,
        starter: ProcessorStarter,
        telemetry: Telemetry,
        timing_on: Callable[[str], Timing],
        platforms: Mapping[str, Platform] = PLATFORMS,
        clock: Clock = system_clock,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._starter = starter
        self._telemetry = telemetry
        self._timing_on = timing_on
        self._platforms = platforms
        self._clock = clock

    def answer(self, request: Request) -> Response:
        platform = self._platforms.get(request.platform)
        if platform is None:
            return refuse(404, "There is no such platform.")
        try:
            if request.method == "GET":
                return self._challenge(platform, request)
            if request.method == "POST":
                return self._receive(platform, request)
        except (StoreError, SendFailed) as error:
            self._telemetry.count("Refused")
            if isinstance(error, StoreError):
                self._telemetry.count("StoreFailures")
            self._telemetry.warn("refused for now", platform=platform.name, reason=str(error))
            return refuse(
                503, "Not everything could be kept; send it again.", {"Retry-After": str(RETRY_AFTER_SECONDS)}
            )
        return refuse(405, "Use POST.", {"Allow": "GET, POST"})

    def _challenge(self, platform: Platform, request: Request) -> Response:
        echo = platform.challenge(request.query, self._secrets.of(platform.name))
        self._telemetry.info("challenge", platform=platform.name, passed=echo is not None)
        if echo is None:
            return refuse(403, "The challenge is not passed.")
        return Response(200, echo, "text/plain")

    def _receive(self, platform: Platform, request: Request) -> Response:
        if not platform.is_authentic(request.body, request.headers, self._secrets.of(platform.name)):
            self._telemetry.count("Unauthentic")
            self._telemetry.warn("signature refused", platform=platform.name)
            return refuse(401, "The signature is missing or wrong.")
        if len(request.body) > MAX_BODY_BYTES:
            return refuse(413, f"A webhook has at most {MAX_BODY_BYTES} bytes.")
        try:
            intake = platform.read(request.body, received_at_ms=self._clock())
            # All are read before one is buffered: a body is refused whole or taken whole.
            ready, ignored = _ready_messages(intake, leave_out=platform.leaves_out_what_is_wrong)
        except MessageTooLarge as error:
            return refuse(413, f"A message is too large: {error}.")
        except InvalidInput as error:
            return refuse(400, str(error))
        return self._buffer(platform, ready, ignored)

    def _buffer(self, platform: Platform, ready: list[_Ready], ignored: int) -> Response:
        timing = self._timing_on(platform.name)
        duplicates = 0
        conversations: dict[str, dict[str, int | None]] = {}
        to_start: dict[int, None] = {}
        try:
            for conversation, message_id, payload in ready:
                outcome = self._store.buffer_message(conversation, message_id, payload=payload, timing=timing)
                duplicates += not isinstance(outcome, Buffered)
                conversations[conversation] = {"dueAt": outcome.due_at_ms, "count": outcome.count}
                if outcome.start_processor:
                    to_start[self._store.shard_of(conversation)] = None
        finally:
            # Also for what was buffered before a failure: the start was promised.
            for shard in to_start:
                self._starter.start(shard)
        accepted = len(ready) - duplicates
        self._telemetry.count("Messages", accepted)
        self._telemetry.count("Duplicates", duplicates)
        self._telemetry.count("Ignored", ignored)
        self._telemetry.info(
            "buffered",
            platform=platform.name, accepted=accepted, duplicates=duplicates, ignored=ignored,
            conversations=list(conversations),
        )  # fmt: skip
        return Response(200, _to_json({"accepted": accepted, "duplicates": duplicates, "conversations": conversations}))


def _ready_messages(intake: Intake, *, leave_out: bool) -> tuple[list[_Ready], int]:
    ready: list[_Ready] = []
    ignored = intake.ignored
    for inbound in intake.messages:
        try:
            ready.append(_ready(inbound))
        except InvalidInput:
            if not leave_out:
                raise
            ignored += 1
    return ready, ignored


def _ready(inbound: Inbound) -> _Ready:
    conversation = str(inbound.conversation)
    encode_conversation(conversation)
    return _Ready(conversation, inbound.message.id, encode(inbound.message))


def timings_of(stage_rules: Mapping[str, Any], telemetry: Telemetry) -> Callable[[str], Timing]:
    """Platform -> its timing, by the stage's rules. Rules that are wrong stop no message: the defaults stand in."""
    try:
        layers = [RuleLayer.model_validate({**stage_rules, "name": "stage"})]
    except InvalidRules as error:
        telemetry.count("RulesSkipped")
        telemetry.warn("rules skipped", layer="stage", reason=str(error))
        layers = []

    @cache
    def timing_on(platform: str) -> Timing:
        resolved = resolve_rules(layers, platform)
        for skipped in resolved.skipped:
            telemetry.count("RulesSkipped")
            telemetry.warn("rules skipped", layer=skipped.layer, reason=skipped.reason, platform=platform)
        return resolved.rules.timing

    return timing_on


def refuse(status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, _to_json({"error": problem}), headers=headers or {})


def _to_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
