"""Ingest: authenticates a webhook, reads it, buffers its messages, and applies or publishes its edits and deletions.

The status is 2xx only if every message is buffered, every control word carried out, and every change made or published;
or if the platform punishes refusals, and the refused messages are put aside. Otherwise the platform sends the whole
webhook again. Messages and stop words that were handled before are recognised by their ids, but changes are made or
published again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from lambdas.ingest.authentication import Authentication, Unauthentic, require_authority
from lambdas.ingest.buffering import Buffering
from lambdas.ingest.changes import apply_changes
from lambdas.ingest.charging import Refusals, charge_all
from lambdas.ingest.human_replies import hand_off_all
from lambdas.ingest.messages_put_aside import MessagesPutAside
from lambdas.ingest.platforms import PLATFORMS
from lambdas.ingest.platforms.base import Intake, Platform, Signer, TooManyItems, Webhook, to_json
from lambdas.ingest.preparation import Belongs, belongs, noted_replies, prepare
from lambdas.ingest.progress import Progress, ProgressTable
from lambdas.ingest.report import Done, report, report_refusal, report_refused_items
from lambdas.ingest.responses import Response, WebhookCall, in_form_of, refuse, refuse_over_quota
from lambdas.ingest.trace import traceparent_of
from lambdas.ingest.unauthenticated import UnauthenticatedLog
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.aliases.aliases import Aliases
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, MessageBufferError, MessageTooLarge, SendFailed, StoreError
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.events.hand_offs import HandOffs
from message_buffer.events.idle import IdleTable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.lane import Lane
from message_buffer.lanes.valkey.patience import WebhookPatience
from message_buffer.messages.conversation_id import ConversationId, encode_conversation
from message_buffer.rules.queues import HANDOFF
from message_buffer.rules.rule_book import RuleBook
from message_buffer.telemetry import Telemetry

# Ingest begins no further item of a webhook after this time, which leaves time for the item that it works on.
MAX_WORK_MS_IN_A_WEBHOOK = 10_000
# A 503 asks the platform to wait this long. A lost connection to Valkey is usually open again by then.
RETRY_AFTER_SECONDS = 5

T = TypeVar("T")


class OutOfTime(SendFailed):
    """The webhook takes too long. When the platform sends it again, ingest goes on with the next item."""


class Ingest:
    def __init__(  # noqa: PLR0913 - the handler makes each of them
        self,
        *,
        lane: Lane,
        secrets: WebhookSecrets,
        bus: EventBus,
        telemetry: Telemetry,
        book: RuleBook,
        takeovers: IdleTable,
        dead_letters: DeadLetterQueue,
        progress: ProgressTable,
        aliases: Aliases | None = None,
        clock: Clock = system_clock,
        time_is_required: bool = False,
        patience: WebhookPatience | None = None,
        notes_replies: bool = False,
    ) -> None:
        self._lane = lane
        self._notes_replies = notes_replies
        self._patience = patience
        self._unauthenticated = UnauthenticatedLog(telemetry, clock)
        self._authentication = Authentication(
            secrets, telemetry, self._unauthenticated, clock=clock, time_is_required=time_is_required
        )
        self._bus = bus
        self._takeovers = takeovers
        self._buffering = Buffering(lane, bus, takeovers, clock)
        self._hand_offs = HandOffs([lane], bus, takeovers, has_queue=HANDOFF in book.queues, clock=clock)
        self._put_aside = MessagesPutAside(lane, dead_letters, book, clock)
        self._telemetry = telemetry
        self._book = book
        self._aliases = aliases
        self._progress = progress
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
        # Do not log the name of a door that is not known: anybody may send a long one.
        platform, name = None, request.platform
        try:
            door = request.door
            platform = PLATFORMS.get(name) if door is None else self._platform_of_door(name, door)
            if platform is None or (request.route == "typing" and not platform.reports_typing):
                response = refuse(404, f"There is no such {'door' if door and name == 'custom' else 'platform'}.")
            else:
                name = platform.name
                response = self._answer(platform, request)
        except Unauthentic as error:
            self._unauthenticated.count("Unauthentic")
            # The query may contain a secret.
            checked = {"url": request.webhook.url.partition("?")[0]} if platform and platform.signs_url else {}
            self._unauthenticated.warn("signature refused", platform=name, reason=error.args[-1], **checked)
            response = refuse(401, error.args[0])
        except (StoreError, SendFailed) as error:
            response = self._refuse_after(error, name)
        return in_form_of(platform, response)

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

    def _answer(self, platform: Platform, request: WebhookCall) -> Response:
        match request.webhook.method, request.route:
            # Check the size first, because checking the signature takes longer for a larger body.
            case "POST", _ if len(request.webhook.body) > platform.max_body_bytes:
                problem = f"A webhook has at most {platform.max_body_bytes} bytes."
                self._unauthenticated.count("BodiesRefused")
                self._unauthenticated.warn("body refused", platform=platform.name, status=413, reason=problem)
                return refuse(413, problem)
            case "GET", "webhook":
                echo = self._authentication.pass_challenge(platform, request.webhook)
                return (
                    refuse(403, "The challenge is not passed.") if echo is None else Response(200, echo, "text/plain")
                )
            case "POST", "webhook":
                signer = self._authentication.signer_of(platform, request.webhook)
                return self._take(platform, request.webhook, signer, puts_aside=platform.punishes_refusals)
            case "POST", "typing":
                return self._keep_waiting(platform, request.webhook)
        return refuse(405, "Use POST.", {"Allow": "POST" if request.route == "typing" else "GET, POST"})

    def _platform_of_door(self, platform: str, name: str) -> Platform | None:
        """Return the platform that reads the door's webhooks. Raise SendFailed if the doors were never read."""
        door = self._book.door(name) if platform == "custom" else None
        if door is None:
            return None
        from lambdas.ingest.platforms.custom import Custom  # noqa: PLC0415 - most stages have no doors

        return Custom(door)

    def _take(self, platform: Platform, webhook: Webhook, signer: Signer, *, puts_aside: bool) -> Response:
        try:
            intake = platform.read(webhook, signer=signer, received_at_ms=self._clock())
            # Check this before learning aliases, because a sender may name authors of accounts for which the sender's
            # secret is not valid.
            require_authority(signer, intake.accounts)
            intake.traceparent = traceparent_of(webhook.headers)
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
        done = Done(ignored=Counter(intake.ignored))
        if intake.left_out_value:
            self._telemetry.warn("value left out", platform=platform.name, reason=intake.left_out_value)
        count = len(prepared.messages) + len(prepared.changes)
        progress = Progress(self._progress, platform.name, webhook.body, count=count, clock=self._clock)
        in_time, refusals = self._while_time_is_left, Refusals()
        try:
            refusals = charge_all(self._lane, prepared.items(), done, comes_again=platform.comes_again)
            messages = progress.undone(in_time(prepared.messages))
            self._buffering.buffer_all(messages, done, refusals, comes_again=platform.comes_again)
            # Apply changes after all messages, because a body may contain a change before the message that it changes.
            changes = progress.undone(in_time(prepared.changes))
            allowed = (each for each in changes if self._may(each.change.conversation, done, refusals))
            apply_changes(self._lane, self._bus, allowed, done)
            newest_first = sorted(prepared.human_replies, key=lambda reply: reply.at_ms, reverse=True)
            replies = (each for each in newest_first if self._may(each.conversation, done, refusals))
            hand_off_all(self._hand_offs, in_time(replies), done)
            is_refused = bool(refusals) and not (puts_aside and self._put_aside.put(refusals.messages, in_time))
            self._note_replies(platform, intake)
            if refusals and not is_refused:
                done.count("put_aside", len(refusals.messages))
                done.count("dropped", done.refused.total() - len(refusals.messages))
        except OutOfTime:
            if not refusals:
                progress.save()
            raise
        finally:
            report(self._telemetry, platform.name, done)
        if is_refused:
            return refuse_over_quota(refusals.wait_ms) if refusals.are_by_quota else self._refuse_for_now()
        return Response(200, to_json(done.summary()), unreadable=intake.ignored["unreadable"])

    def _note_replies(self, platform: Platform, intake: Intake) -> None:
        """Note when the business replied, for the counts of gaps and of silence. Nothing else depends on this."""
        try:
            noted = noted_replies(intake, self._book, self._aliases, notes_all=self._notes_replies)
            for name, at_ms, has_steps in self._while_time_is_left(noted):
                self._lane.note_reply(name, at_ms=at_ms)
                if has_steps:
                    self._takeovers.note_reply(name, at_ms=min(at_ms, self._clock()))
        except MessageBufferError as error:
            self._telemetry.info("replies not noted", platform=platform.name, reason=str(error))

    @staticmethod
    def _may(conversation: ConversationId, done: Done, refusals: Refusals) -> bool:
        """Return whether a change may be made. If its quota is used up, or an item before it was refused, count it."""
        reason = refusals.of_change(conversation)
        if reason:
            done.note_refused(conversation, reason)
        return reason is None

    def _refuse_for_now(self) -> Response:
        """Return the 503 after which a platform sends the webhook again."""
        return refuse(503, "Not everything could be kept; send it again.", {"Retry-After": str(RETRY_AFTER_SECONDS)})

    def _keep_waiting(self, platform: Platform, webhook: Webhook) -> Response:
        signer = self._authentication.signer_of(platform, webhook)
        try:
            typing = dict.fromkeys(platform.read_typing(webhook, signer=signer))
            for named in typing:
                encode_conversation(str(named))
        except InvalidInput as error:
            return self._refuse_body(platform, 400, str(error))
        require_authority(signer, (named.account for named in typing))
        found = [belongs(named, self._book.owner_of(named.platform, named.account)) for named in typing]
        # Typing has a quota of its own. Otherwise the authors' typing would use up that of their stop words.
        charges = ((name, self._book.charge_for(name).under("typing"), False) for name, _ in found)
        done = Done()
        refusals = charge_all(self._lane, charges, done)
        allowed = (each for each in found if self._may(each.conversation, done, refusals))
        conversations = dict(map(self._extend_wait, self._while_time_is_left(allowed)))
        report_refused_items(self._telemetry, platform.name, done)
        if refusals:
            return refuse_over_quota(refusals.wait_ms)
        return Response(200, to_json({"conversations": conversations}))

    def _extend_wait(self, typing: Belongs) -> tuple[str, dict[str, int | None]]:
        """Let a buffer wait a little longer, but at most `maxWaitMs`. Return (conversation, due time as JSON)."""
        timing = self._book.for_conversation(*typing).rules.timing
        extend_ms = max(timing.typing_ms, timing.silence_ms)
        name = str(typing.conversation)
        outcome = self._lane.extend_wait(name, extend_ms=extend_ms, max_wait_ms=timing.max_wait_ms)
        return name, {"dueAt": None if isinstance(outcome, o.BufferEmpty) else outcome.due_at_ms}

    def _refuse_body(self, platform: Platform, status: int, problem: str) -> Response:
        report_refusal(self._telemetry, platform.name, status=status, problem=problem)
        return refuse(status, problem)
