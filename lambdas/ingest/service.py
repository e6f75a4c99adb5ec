"""Ingest: authenticates a webhook, reads it, buffers its messages, and applies or publishes its edits and deletions.

The status is 2xx only if every message is buffered, every control word carried out, and every change made or published.
Otherwise the platform sends the whole webhook again. Messages and stop words that were handled before are recognised by
their ids, but changes are made or published again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from lambdas.ingest.authentication import Authentication, Unauthentic, require_authority
from lambdas.ingest.buffering import Buffering
from lambdas.ingest.changes import Changes
from lambdas.ingest.charging import charge_all
from lambdas.ingest.control_word_actions import ControlWordActions
from lambdas.ingest.human_replies import HumanReplies, StoresTakeovers
from lambdas.ingest.messages_put_aside import MessagesPutAside
from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Platform, Signer, TooManyItems, Webhook, to_json
from lambdas.ingest.preparation import prepare
from lambdas.ingest.refusals import Refusals
from lambdas.ingest.report import Done, report, report_refusal
from lambdas.ingest.responses import Response, WebhookCall, in_form_of, refuse, refuse_for_now, refuse_over_quota
from lambdas.ingest.typing_events import extend_waits
from lambdas.ingest.unauthenticated import UnauthenticatedLog
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.aliases.aliases import Aliases
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, MessageBufferError, MessageTooLarge, SendFailed, StoreError
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes.lane import Lane
from message_buffer.lanes.valkey.patience import WebhookPatience
from message_buffer.messages.conversation_id import ConversationId, encode_conversation
from message_buffer.rules.rule_book import RuleBook
from message_buffer.telemetry import Telemetry

# Ingest begins no further item of a webhook after this time, which leaves time for the item that it works on.
MAX_WORK_MS_IN_A_WEBHOOK = 10_000

T = TypeVar("T")


class OutOfTime(SendFailed):
    """The webhook takes too long. The platform sends it again, and the finished items then take less time."""


class Ingest:
    def __init__(  # noqa: PLR0913 - the handler makes each of them
        self,
        *,
        lane: Lane,
        secrets: WebhookSecrets,
        bus: EventBus,
        telemetry: Telemetry,
        book: RuleBook,
        takeovers: StoresTakeovers,
        dead_letters: DeadLetterQueue,
        aliases: Aliases | None = None,
        clock: Clock = system_clock,
        time_is_required: bool = False,
        patience: WebhookPatience | None = None,
    ) -> None:
        self._lane = lane
        self._patience = patience
        self._unauthenticated = UnauthenticatedLog(telemetry, clock)
        self._authentication = Authentication(
            secrets, telemetry, self._unauthenticated, clock=clock, time_is_required=time_is_required
        )
        self._buffering = Buffering(lane, ControlWordActions(lane, bus, clock))
        self._changes = Changes(lane, bus)
        self._human_replies = HumanReplies(lane, bus, takeovers, clock)
        self._put_aside = MessagesPutAside(lane, dead_letters, book, clock)
        self._telemetry = telemetry
        self._book = book
        self._aliases = aliases
        self._clock = clock
        self._began_ms = 0

    def warm_up(self) -> None:
        """Read the secrets and the rules that the first webhook needs."""
        self._authentication.warm_up()
        self._book.for_conversation(ConversationId("default", "generic", "-", "-"))

    def answer(self, request: WebhookCall) -> Response:
        """Return the response to any request, even an invalid one, and even if the lanes cannot be reached."""
        self._unauthenticated.write_counts()
        self._begin()
        try:
            platform = self._platform_of(request)
        except SendFailed as error:
            # Do not log the door's name: anybody may send a long one.
            return self._refuse_after(error, request.platform)
        if platform is None or (request.route == "typing" and not platform.reports_typing):
            return in_form_of(platform, refuse(404, "There is no such platform."))
        return in_form_of(platform, self._answer_or_refuse(platform, request))

    def _answer_or_refuse(self, platform: Platform, request: WebhookCall) -> Response:
        try:
            return self._answer(platform, request)
        except Unauthentic as error:
            self._unauthenticated.count("Unauthentic")
            self._unauthenticated.warn("signature refused", platform=platform.name, reason=str(error))
            return refuse(401, str(error))
        except (StoreError, SendFailed) as error:
            return self._refuse_after(error, platform.name)

    def refuse_undecodable(self, platform: str, problem: str) -> Response:
        """Return the 400 for a body whose base64 cannot be decoded."""
        self._unauthenticated.write_counts()
        known = PLATFORMS.get(platform)
        # Do not log an unknown platform's name: anybody may send a long one.
        return in_form_of(known, self._refuse_unread(known.name if known else "", 400, problem))

    def answer_proven(self, platform: str, webhook: Webhook, *, signer: Signer) -> Response:
        """Return the response to a webhook whose sender was authenticated by other means than a signature."""
        self._begin()
        try:
            # Put no message aside, because only our own queue sees a refusal, and the queue delivers the webhook again.
            return self._take(PLATFORMS[platform], webhook, signer, puts_aside=False)
        except (StoreError, SendFailed) as error:
            return self._refuse_after(error, platform)

    def redrive(self, letter: Mapping[str, Any]) -> str:
        """Buffer a message that was put aside, and return its letter's id. Raise an error if it is not buffered."""
        self._begin()
        return self._put_aside.bring_in(letter)

    def _begin(self) -> None:
        self._began_ms = self._clock()
        if self._patience:
            self._patience.begin()

    def _while_time_is_left(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items of a webhook. Raise OutOfTime instead of an item if the webhook has taken too long."""
        for item in items:
            if self._clock() - self._began_ms > MAX_WORK_MS_IN_A_WEBHOOK:
                raise OutOfTime(f"the webhook has taken more than {MAX_WORK_MS_IN_A_WEBHOOK} ms")
            yield item

    def _refuse_after(self, error: MessageBufferError, platform: str) -> Response:
        if isinstance(error, StoreError):
            self._telemetry.count("StoreFailures")
        self._telemetry.warn("refused for now", platform=platform, reason=str(error))
        return self._refuse_for_now()

    def _platform_of(self, request: WebhookCall) -> Platform | None:
        """Return the platform of the request's path. Raise SendFailed if the doors were never read."""
        if request.door is None:
            return PLATFORMS.get(request.platform)
        door = self._book.door(request.door) if request.platform == "custom" else None
        if door is None:
            return None
        from lambdas.ingest.platforms.custom import Custom  # noqa: PLC0415 - most stages have no doors

        return Custom(door)

    def _answer(self, platform: Platform, request: WebhookCall) -> Response:
        match request.webhook.method, request.route:
            # Check the size first, because checking the signature takes longer for a larger body.
            case "POST", _ if len(request.webhook.body) > platform.max_body_bytes:
                problem = f"A webhook has at most {platform.max_body_bytes} bytes."
                return self._refuse_unread(platform.name, 413, problem)
            case "GET", "webhook":
                return self._challenge(platform, request.webhook)
            case "POST", "webhook":
                signer = self._authentication.signer_of(platform, request.webhook)
                return self._take(platform, request.webhook, signer, puts_aside=platform.punishes_refusals)
            case "POST", "typing":
                return self._keep_waiting(platform, request.webhook)
        return refuse(405, "Use POST.", {"Allow": "POST" if request.route == "typing" else "GET, POST"})

    def _challenge(self, platform: Platform, webhook: Webhook) -> Response:
        echo = self._authentication.pass_challenge(platform, webhook)
        return refuse(403, "The challenge is not passed.") if echo is None else Response(200, echo, "text/plain")

    def _take(self, platform: Platform, webhook: Webhook, signer: Signer, *, puts_aside: bool) -> Response:
        try:
            intake = platform.read(webhook, signer=signer, received_at_ms=self._clock())
            # Check this before learning aliases, because a sender may name authors of accounts for which the sender's
            # secret is not valid.
            require_authority(signer, intake.accounts)
            if self._aliases:
                self._aliases.begin_webhook()
            # Read everything before storing anything, so that a refused body leaves no message behind.
            prepared = prepare(intake, self._book, aliases=self._aliases, skip_invalid=platform.skips_invalid)
        except TooManyItems as error:
            return self._refuse_body(platform, 413, str(error))
        except MessageTooLarge as error:
            return self._refuse_body(platform, 413, f"A message is too large: {error}.")
        except InvalidInput as error:
            return self._refuse_body(platform, 400, str(error))
        done = Done(ignored=Counter(intake.ignored), left_out_value=intake.left_out_value)
        in_time = self._while_time_is_left
        try:
            refusals = charge_all(self._lane, prepared, done, comes_again=platform.comes_again)
            self._buffering.buffer_all(in_time(prepared.messages), done, refusals, comes_again=platform.comes_again)
            # Apply changes after all messages, because a body may contain a change before the message that it changes.
            changes = (each for each in prepared.changes if self._may(each.change.conversation, done, refusals))
            self._changes.apply_all(in_time(changes), done)
            replies = (each for each in prepared.human_replies if self._may(each.conversation, done, refusals))
            self._human_replies.hold_all(in_time(replies), done)
            may_put_aside = puts_aside and refusals.messages and not refusals.has_others
            if may_put_aside and self._put_aside.put(refusals.messages, in_time):
                done.put_aside = len(refusals.messages)
        finally:
            report(self._telemetry, platform.name, done)
        if refusals and not done.put_aside:
            return refuse_over_quota(refusals.wait_ms) if refusals.are_by_quota else self._refuse_for_now()
        return Response(200, to_json(done.summary()), unreadable=intake.ignored["unreadable"])

    @staticmethod
    def _may(conversation: ConversationId, done: Done, refusals: Refusals) -> bool:
        """Return whether a change may be made. Count it as refused if messages of its conversation are refused."""
        reason = refusals.around(conversation)
        if reason:
            done.note_refused(conversation, reason)
            refusals.has_others = True
        return reason is None

    def _refuse_for_now(self) -> Response:
        self._telemetry.count("Refused")
        return refuse_for_now()

    def _keep_waiting(self, platform: Platform, webhook: Webhook) -> Response:
        signer = self._authentication.signer_of(platform, webhook)
        try:
            typing = platform.read_typing(webhook, signer=signer)
            for conversation in typing:
                encode_conversation(str(conversation))
        except InvalidInput as error:
            return self._refuse_body(platform, 400, str(error))
        require_authority(signer, (conversation.account for conversation in typing))
        conversations = extend_waits(self._while_time_is_left(dict.fromkeys(typing)), self._book, self._lane)
        self._telemetry.count("TypingEvents", len(conversations))
        self._telemetry.info("typing", platform=platform.name, conversations=list(conversations))
        return Response(200, to_json({"conversations": conversations}))

    def _refuse_unread(self, platform: str, status: int, problem: str) -> Response:
        """Refuse a body before its signature is checked."""
        self._unauthenticated.count("BodiesRefused")
        self._unauthenticated.warn("body refused", platform=platform, status=status, reason=problem)
        return refuse(status, problem)

    def _refuse_body(self, platform: Platform, status: int, problem: str) -> Response:
        report_refusal(self._telemetry, platform.name, status=status, problem=problem)
        return refuse(status, problem)
