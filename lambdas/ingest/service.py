"""Ingest: who sent this, what is in it, and is it safe.

The answer is 2xx only when every message is buffered, and every change of one made or told. If one is not, the
platform sends all of them again: messages that were buffered are known by their ids, and changes are made twice.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from lambdas.ingest.amendments import Amendment, Amendments
from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Deleted, Edited, Incoming, Intake, Platform, Signer, Webhook, to_json
from lambdas.ingest.webhook_secrets import WebhookSecrets
from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.errors import InvalidInput, InvalidRules, MessageTooLarge, SendFailed, StoreError
from lambdas.shared.keys import encode_conversation
from lambdas.shared.message import encode
from lambdas.shared.rules import RuleLayer, resolve_rules
from lambdas.shared.senders.starter import ProcessorStarter
from lambdas.shared.store import outcomes as o
from lambdas.shared.store.store import Store
from lambdas.shared.telemetry import Telemetry
from lambdas.shared.timing import Timing

MAX_BODY_BYTES = 4 * 1024 * 1024
RETRY_AFTER_SECONDS = 5


class Request(NamedTuple):
    platform: str
    webhook: Webhook
    door: Literal["webhook", "typing"] = "webhook"


class Response(NamedTuple):
    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


class _Message(NamedTuple):
    """A message as it goes into its buffer."""

    conversation: str
    message_id: str
    payload: bytes


class _Change(NamedTuple):
    """What happened to a message that came earlier."""

    conversation: str
    amendment: Amendment
    payload: bytes = b""
    """What the message becomes, if it is edited."""


class Ingest:
    def __init__(
        self,
        *,
        store: Store,
        secrets: WebhookSecrets,
        starter: ProcessorStarter,
        amendments: Amendments,
        telemetry: Telemetry,
        timing_on: Callable[[str], Timing],
        platforms: Mapping[str, Platform] = PLATFORMS,
        clock: Clock = system_clock,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._starter = starter
        self._amendments = amendments
        self._telemetry = telemetry
        self._timing_on = timing_on
        self._platforms = platforms
        self._clock = clock

    def answer(self, request: Request) -> Response:
        platform = self._platforms.get(request.platform)
        if platform is None or (request.door == "typing" and not platform.tells_typing):
            return refuse(404, "There is no such platform.")
        try:
            match request.webhook.method, request.door:
                case "GET", "webhook":
                    return self._challenge(platform, request.webhook)
                case "POST", "webhook":
                    return self._receive(platform, request.webhook)
                case "POST", "typing":
                    return self._keep_waiting(platform, request.webhook)
        except (StoreError, SendFailed) as error:
            self._telemetry.count("Refused")
            if isinstance(error, StoreError):
                self._telemetry.count("StoreFailures")
            self._telemetry.warn("refused for now", platform=platform.name, reason=str(error))
            return refuse(
                503, "Not everything could be kept; send it again.", {"Retry-After": str(RETRY_AFTER_SECONDS)}
            )
        return refuse(405, "Use POST.", {"Allow": "POST" if request.door == "typing" else "GET, POST"})

    def _challenge(self, platform: Platform, webhook: Webhook) -> Response:
        echo = platform.challenge(webhook.query, self._secrets.of(platform.name))
        if echo is None:
            echo = platform.challenge(webhook.query, self._secrets.after_a_refusal(platform.name))
        self._telemetry.info("challenge", platform=platform.name, passed=echo is not None)
        if echo is None:
            return refuse(403, "The challenge is not passed.")
        return Response(200, echo, "text/plain")

    def _receive(self, platform: Platform, webhook: Webhook) -> Response:
        signer = self._authenticate(platform, webhook)
        if isinstance(signer, Response):
            return signer
        try:
            intake = platform.read(webhook, signer=signer, received_at_ms=self._clock())
            # All are read before one is applied: a body is refused whole or taken whole.
            messages, changes = _ready(intake, leave_out=platform.leaves_out_what_is_wrong)
        except MessageTooLarge as error:
            return refuse(413, f"A message is too large: {error}.")
        except InvalidInput as error:
            return refuse(400, str(error))
        if not _speaks_for_all(signer, intake.accounts):
            return self._unauthentic(platform)
        return self._apply(platform, messages, changes, intake.ignored)

    def _keep_waiting(self, platform: Platform, webhook: Webhook) -> Response:
        """Who is typing has not finished: wait a little longer, within the bound."""
        signer = self._authenticate(platform, webhook)
        if isinstance(signer, Response):
            return signer
        try:
            typing = platform.read_typing(webhook)
            for conversation in typing:
                encode_conversation(str(conversation))
        except InvalidInput as error:
            return refuse(400, str(error))
        if not _speaks_for_all(signer, (conversation.account for conversation in typing)):
            return self._unauthentic(platform)
        timing = self._timing_on(platform.name)
        # The script refuses to wait for nothing, which is what a VIP's silence may be.
        extend_ms = max(timing.typing_ms, timing.silence_ms, 1)
        conversations: dict[str, dict[str, int | None]] = {}
        for name in dict.fromkeys(map(str, typing)):
            outcome = self._store.extend_wait(name, extend_ms=extend_ms, max_wait_ms=timing.max_wait_ms)
            conversations[name] = {"dueAt": None if isinstance(outcome, o.Empty) else outcome.due_at_ms}
        self._telemetry.count("TypingEvents", len(conversations))
        self._telemetry.info("typing", platform=platform.name, conversations=list(conversations))
        return Response(200, to_json({"conversations": conversations}))

    def _authenticate(self, platform: Platform, webhook: Webhook) -> Signer | Response:
        if len(webhook.body) > MAX_BODY_BYTES:
            return refuse(413, f"A webhook has at most {MAX_BODY_BYTES} bytes.")
        credentials = self._secrets.of(platform.name)
        signer = platform.authenticate(webhook, credentials)
        if signer is None and (renewed := self._secrets.after_a_refusal(platform.name)) != credentials:
            credentials, signer = renewed, platform.authenticate(webhook, renewed)
        if signer is None and credentials.are_missing:
            self._telemetry.count("NoSecret")
        return signer or self._unauthentic(platform)

    def _unauthentic(self, platform: Platform) -> Response:
        self._telemetry.count("Unauthentic")
        self._telemetry.warn("signature refused", platform=platform.name)
        return refuse(401, "The signature is missing or wrong.")

    def _apply(
        self, platform: Platform, messages: list[_Message], changes: list[_Change], ignored: Mapping[str, int]
    ) -> Response:
        conversations, duplicates = self._buffer(messages, self._timing_on(platform.name))
        # After all messages: in its body, a change may stand before what it changes.
        in_place = sum([self._change(change) for change in changes])
        accepted, amended = len(messages) - duplicates, len(changes) - in_place
        self._telemetry.count("Messages", accepted)
        self._telemetry.count("Duplicates", duplicates)
        self._telemetry.count("Ignored", sum(ignored.values()))
        for kind, count in ignored.items():
            if count:
                self._telemetry.count_by("IgnoredKinds", count, reason=kind)
        # A stage whose platforms know no changes does not pay for metrics of them.
        if changes:
            self._telemetry.count("Changed", in_place)
            self._telemetry.count("Amended", amended)
        self._telemetry.info(
            "buffered",
            platform=platform.name, accepted=accepted, duplicates=duplicates, changed=in_place, amended=amended,
            ignored=sum(ignored.values()),
            conversations=list(conversations),
        )  # fmt: skip
        body, content_type = platform.acknowledge(
            {"accepted": accepted, "duplicates": duplicates, "conversations": conversations}
        )
        return Response(200, body, content_type)

    def _buffer(self, messages: list[_Message], timing: Timing) -> tuple[dict[str, dict[str, int | None]], int]:
        """(what the answer says of each conversation, how many were there already)"""
        duplicates = 0
        conversations: dict[str, dict[str, int | None]] = {}
        to_start: dict[int, None] = {}
        try:
            for conversation, message_id, payload in messages:
                outcome = self._store.buffer_message(conversation, message_id, payload=payload, timing=timing)
                duplicates += not isinstance(outcome, o.Buffered)
                conversations[conversation] = {"dueAt": outcome.due_at_ms, "count": outcome.count}
                if outcome.start_processor:
                    to_start[self._store.shard_of(conversation)] = None
        finally:
            # Also for what was buffered before a failure: the start was promised.
            for shard in to_start:
                self._starter.start(shard)
        return conversations, duplicates

    def _change(self, change: _Change) -> bool:
        """Was the message changed where it waits? If it waits no longer, the bus is told; so is every reaction."""
        batch_id: str | None = None
        match change.amendment:
            case Edited(_, message, _):
                edited = self._store.edit_message(change.conversation, message.id, payload=change.payload)
                if isinstance(edited, o.Edited):
                    return True
                batch_id = _batch_of(edited)
            case Deleted(_, message_id, _, _):
                deleted = self._store.delete_message(change.conversation, message_id)
                if isinstance(deleted, o.Deleted):
                    return True
                batch_id = _batch_of(deleted)
        self._amendments.send(change.amendment, batch_id=batch_id)
        return False


def _batch_of(outcome: o.Frozen | o.Absent) -> str | None:
    return outcome.batch_id if isinstance(outcome, o.Frozen) else None


def _speaks_for_all(signer: Signer, accounts: Iterable[str]) -> bool:
    return all(signer.speaks_for(account) for account in accounts)


def _ready(intake: Intake, *, leave_out: bool) -> tuple[list[_Message], list[_Change]]:
    messages: list[_Message] = []
    changes: list[_Change] = []
    for update in intake.updates:
        conversation = str(update.conversation)
        try:
            encode_conversation(conversation)
            match update:
                case Incoming(_, message, _):
                    messages.append(_Message(conversation, message.id, encode(message)))
                case Edited(_, message, _):
                    changes.append(_Change(conversation, update, encode(message)))
                case _:
                    changes.append(_Change(conversation, update))
        except InvalidInput:
            if not leave_out:
                raise
            intake.ignored["unreadable"] += 1
    return messages, changes


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
    return Response(status, to_json({"error": problem}), headers=headers or {})
