"""Ingest: who sent this, what is in it, and is it safe.

The answer is 2xx only when every message is buffered, every order obeyed, and every change of a message made or told.
If one is not, the platform sends all of them again: messages that were buffered are known by their ids, as are those
that stop a buffer; changes are made twice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lambdas.ingest.amendments import Amendment, Amendments, Publishes, event_of
from lambdas.ingest.ownership import belongs, update_belongs
from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Deleted, Edited, Incoming, Intake, Platform, Reacted, Signer, Webhook, to_json
from lambdas.ingest.webhook_secrets import WebhookSecrets
from lambdas.limits import MAX_WEBHOOK_BYTES, RETRY_AFTER_SECONDS
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, MessageTooLarge, SendFailed, StoreError
from message_buffer.events.cancelled import DETAIL_TYPE as CANCELLED
from message_buffer.events.cancelled import cancelled_event
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.fallback import Lane
from message_buffer.lanes.valkey.keys import encode_conversation
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.messages.message import Message, encode
from message_buffer.rules.layers import Rules
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.timing import Timing
from message_buffer.telemetry import Telemetry

# Nobody writes a caption for these.
WITHOUT_CAPTION = {"contact", "location", "sticker"}
# Types of messages that are buttons, or rows of a list.
PRESSED = {"button", "interactive"}


class Request(NamedTuple):
    platform: str
    webhook: Webhook
    route: Literal["webhook", "typing"] = "webhook"


class Response(NamedTuple):
    status: int
    body: str
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


class _Message(NamedTuple):
    """A message as it goes into its buffer, or an order to it."""

    conversation: ConversationId
    id: str
    payload: bytes
    timing: Timing
    order: Literal["stop", "flush"] | None


class _Change(NamedTuple):
    """What happened to a message that came earlier."""

    amendment: Amendment
    payload: bytes = b""
    """What the message becomes, if it is edited."""
    timing: Timing | None = None
    """Of the edited message, if its buffer may have waited for the edit."""


@dataclass
class _Done:
    """What became of a webhook's messages, and what the answer says of each conversation."""

    conversations: dict[str, dict[str, int | None]] = field(default_factory=dict)
    accepted: int = 0
    duplicates: int = 0
    stopped: int = 0
    flushed: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    to_start: dict[int, None] = field(default_factory=dict)
    """Shards, in order."""


class Ingest:
    def __init__(
        self,
        *,
        lane: Lane,
        secrets: WebhookSecrets,
        starter: ProcessorStarter,
        bus: Publishes,
        telemetry: Telemetry,
        book: RuleBook,
        platforms: Mapping[str, Platform] = PLATFORMS,
        clock: Clock = system_clock,
    ) -> None:
        self._lane = lane
        self._secrets = secrets
        self._starter = starter
        self._bus = bus
        self._amendments = Amendments(bus)
        self._telemetry = telemetry
        self._book = book
        self._platforms = platforms
        self._clock = clock

    def answer(self, request: Request) -> Response:
        platform = self._platforms.get(request.platform)
        if platform is None or (request.route == "typing" and not platform.tells_typing):
            return refuse(404, "There is no such platform.")
        try:
            match request.webhook.method, request.route:
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
        return refuse(405, "Use POST.", {"Allow": "POST" if request.route == "typing" else "GET, POST"})

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
            messages, changes = self._ready(intake, leave_out=platform.leaves_out_what_is_wrong)
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
        conversations: dict[str, dict[str, int | None]] = {}
        for told in dict.fromkeys(typing):
            conversation, agent = belongs(told, self._book.owner_of(told.platform, told.account))
            timing = self._book.for_conversation(conversation, agent).rules.timing
            # The script refuses to wait for nothing, which is what a VIP's silence may be.
            extend_ms = max(timing.typing_ms, timing.silence_ms, 1)
            name = str(conversation)
            outcome = self._lane.extend_wait(name, extend_ms=extend_ms, max_wait_ms=timing.max_wait_ms)
            conversations[name] = {"dueAt": None if isinstance(outcome, o.Empty) else outcome.due_at_ms}
        self._telemetry.count("TypingEvents", len(conversations))
        self._telemetry.info("typing", platform=platform.name, conversations=list(conversations))
        return Response(200, to_json({"conversations": conversations}))

    def _authenticate(self, platform: Platform, webhook: Webhook) -> Signer | Response:
        if len(webhook.body) > MAX_WEBHOOK_BYTES:
            return refuse(413, f"A webhook has at most {MAX_WEBHOOK_BYTES} bytes.")
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
        done = self._buffer(messages)
        done.ignored.update(ignored)
        # After all messages: in its body, a change may stand before what it changes.
        amendments = [event for change in changes if (event := self._change(change))]
        self._amendments.send(amendments)
        self._tell(platform, done, changed=len(changes) - len(amendments), amended=len(amendments))
        body, content_type = platform.acknowledge(
            {"accepted": done.accepted, "duplicates": done.duplicates, "conversations": done.conversations}
        )
        return Response(200, body, content_type)

    def _tell(self, platform: Platform, done: _Done, *, changed: int, amended: int) -> None:
        self._telemetry.count("Messages", done.accepted)
        # What there was none of is not counted: a request pays for each, and a stage for a metric it never needs.
        if done.duplicates:
            self._telemetry.count("Duplicates", done.duplicates)
        if ignored := done.ignored.total():
            self._telemetry.count("Ignored", ignored)
        for kind, count in done.ignored.items():
            if count:
                self._telemetry.count_by("IgnoredKinds", count, reason=kind)
        if changed or amended:
            self._telemetry.count("Changed", changed)
            self._telemetry.count("Amended", amended)
        if done.stopped or done.flushed:
            self._telemetry.count("Stopped", done.stopped)
            self._telemetry.count("Flushed", done.flushed)
        self._telemetry.info(
            "buffered",
            platform=platform.name, accepted=done.accepted, duplicates=done.duplicates, changed=changed,
            amended=amended, stopped=done.stopped, flushed=done.flushed, ignored=done.ignored.total(),
            conversations=list(done.conversations),
        )  # fmt: skip

    def _buffer(self, messages: list[_Message]) -> _Done:
        done = _Done()
        try:
            for message in messages:
                match message.order:
                    case "stop":
                        self._stop(message, done)
                    case "flush":
                        self._send_now(message, done)
                    case None:
                        outcome = self._lane.buffer_message(
                            str(message.conversation), message.id, payload=message.payload, timing=message.timing
                        )
                        done.accepted += isinstance(outcome, o.Buffered)
                        done.duplicates += isinstance(outcome, o.Duplicate)
                        self._waits(message, outcome, done)
        finally:
            # Also for what was buffered before a failure: the start was promised.
            for shard in done.to_start:
                self._starter.start(shard)
        return done

    def _stop(self, message: _Message, done: _Done) -> None:
        """A repeat is told again: whoever was to be told first may not have been."""
        name = str(message.conversation)
        outcome = self._lane.cancel_buffer(name, cancel_id=message.id)
        event = cancelled_event(
            message.conversation, outcome, reason="stop_word", at_ms=self._clock(), message_id=message.id
        )
        self._bus.publish(CANCELLED, event)
        done.stopped += 1
        done.conversations[name] = {"dueAt": None, "count": 0}

    def _send_now(self, message: _Message, done: _Done) -> None:
        """But for a hold: a person has taken over, and no word of the author's ends that."""
        timing = message.timing._replace(flush_reason="flush")
        outcome = self._lane.retime_buffer(str(message.conversation), timing=timing)
        if isinstance(outcome, o.Retimed):
            self._waits(message, outcome, done)
        if isinstance(outcome, o.Retimed) and outcome.due_at_ms <= self._clock():
            done.flushed += 1
        else:
            done.ignored["flush"] += 1

    def _waits(self, message: _Message, outcome: o.Buffered | o.Duplicate | o.Retimed, done: _Done) -> None:
        name = str(message.conversation)
        done.conversations[name] = {"dueAt": outcome.due_at_ms, "count": outcome.count}
        if outcome.start_processor:
            done.to_start[self._lane.shard_of(name)] = None

    def _change(self, change: _Change) -> dict[str, Any] | None:
        """What to tell the bus: of a message that waits no longer, and of every reaction. None: changed in place."""
        conversation, batch_id = str(change.amendment.conversation), None
        match change.amendment:
            case Edited(_, message):
                edited = self._lane.edit_message(conversation, message.id, payload=change.payload)
                if isinstance(edited, o.Edited):
                    # The wait belongs to the last message, which may wait for a transcript of its own.
                    if change.timing is not None and edited.behind == 0:
                        self._retime(conversation, change.timing)
                    return None
                batch_id = edited.batch_id
            case Deleted(_, message_id):
                deleted = self._lane.delete_message(conversation, message_id)
                if isinstance(deleted, o.Deleted):
                    return None
                batch_id = deleted.batch_id
            case Reacted():
                found = self._lane.find_message(conversation, change.amendment.message_id)
                if not isinstance(found, o.Waiting):
                    batch_id = found.batch_id
        return event_of(change.amendment, batch_id=batch_id)

    def _retime(self, conversation: str, timing: Timing) -> None:
        retimed = self._lane.retime_buffer(conversation, timing=timing)
        if isinstance(retimed, o.Retimed) and retimed.start_processor:
            self._starter.start(self._lane.shard_of(conversation))

    def _ready(self, intake: Intake, *, leave_out: bool) -> tuple[list[_Message], list[_Change]]:
        messages: list[_Message] = []
        changes: list[_Change] = []
        for update in intake.updates:
            owner = self._book.owner_of(update.conversation.platform, update.conversation.account)
            conversation, agent = update_belongs(update, owner)
            try:
                encode_conversation(str(conversation))
                match update:
                    case Incoming(_, message):
                        rules = self._book.for_conversation(conversation, agent).rules
                        messages.append(
                            _Message(conversation, message.id, encode(message), timing_of(message, rules),
                                     rules.control_words.control_word_in(message.text) if _is_typed(message) else None)
                        )  # fmt: skip
                    case Edited(_, message):
                        rules = self._book.for_conversation(conversation, agent).rules
                        # Its caption or transcript may have come: what waited for that waits no longer.
                        timing = timing_of(message, rules) if message.attachments else None
                        changes.append(_Change(update._replace(conversation=conversation), encode(message), timing))
                    case _:
                        changes.append(_Change(update._replace(conversation=conversation)))
            except InvalidInput:
                if not leave_out:
                    raise
                intake.ignored["unreadable"] += 1
        return messages, changes


def _is_typed(message: Message) -> bool:
    """A caption belongs to its file; what a button is called, the bot chose, and waits for the answer."""
    return not message.attachments and message.type not in PRESSED


def timing_of(message: Message, rules: Rules) -> Timing:
    files = [each for each in message.attachments if each.type not in WITHOUT_CAPTION]
    return rules.timing_of(
        is_media=bool(files) and not message.text,
        is_pending=any(each.pending for each in message.attachments),
        in_album=message.group_id is not None,
    )


def _speaks_for_all(signer: Signer, accounts: Iterable[str]) -> bool:
    return all(signer.speaks_for(account) for account in accounts)


def refuse(status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, to_json({"error": problem}), headers=headers or {})
