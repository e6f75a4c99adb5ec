"""Erases a conversation from every place that stores a part of it, or counts what would be erased.

Each step is idempotent. The lanes are erased first, so that they write nothing new to the other places. A dead letter
is deleted after the object that it names: if the object remains, a later call still finds it by the letter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lambdas.admin.dead_letters import HiddenLetters, parse_letter
from lambdas.admin.requests import ForgetConversation
from lambdas.operations import OperationRefused
from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.aws.object_store import ObjectStore
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.events.batch_ready import BATCHES, DEAD_LETTERS, is_newer
from message_buffer.events.conversation_events import FORGOTTEN, forgotten_event
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.events.idle import IdleTable
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.valkey.keys import batch_prefix
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.messages.conversation_id import ConversationId, parse_conversation_id
from message_buffer.rules.rule_book import conversation_scope
from message_buffer.rules.rules_table import RulesTable

# If one call cannot erase everything, the caller waits this long before the next call, because the dead letters that
# the first call gave back to the queue need a moment to become visible again.
MIN_MS_BEFORE_A_FORGET_GOES_ON = 1_000
TimeLeft = Callable[[], int]


class Places(NamedTuple):
    """The stores, besides the lanes, that contain parts of a conversation."""

    rules: RulesTable
    objects: ObjectStore
    dead_letters: Sequence[DeadLetterQueue]
    """The stage's dead letters, and those of each of its queues."""
    takeovers: IdleTable
    ages_out: Sequence[Mapping[str, Any]]
    """The copies that this function cannot erase, each with the number of days for which it is kept."""
    aliases: AliasesTable


class Forgetting:
    def __init__(
        self,
        lanes: Sequence[ValkeyLane | DynamoDbLane],
        places: Places,
        *,
        bus: EventBus,
        time_left: TimeLeft,
        clock: Clock = system_clock,
    ) -> None:
        self._lanes = lanes
        self._places = places
        self._bus = bus
        self._time_left = time_left
        self._clock = clock

    def forget(self, request: ForgetConversation) -> Json:
        """Erase the conversation, or count what would be erased.

        `againInMs` is set if a conversation processor may still emit a batch, or if one call could not erase
        everything. The caller must then call again after that time, and pass the `at` of this response. The repeated
        call erases only steps of silence, objects and dead letters of messages that arrived until `at`.

        Raise OperationRefused if `messages.conversation.forgotten` could not be published.
        """
        name = str(parse_conversation_id(request.conversation))
        if request.dry_run:
            return self._listed(name)
        if request.at_ms is not None:
            self._places.takeovers.forget_steps(name, until_ms=request.at_ms)
            counts, finished = self._copies(name, until_ms=request.at_ms, erase=True)
            return self._answer(name, counts, None) | {
                "at": request.at_ms,
                "againInMs": None if finished else MIN_MS_BEFORE_A_FORGET_GOES_ON,
            }
        begun_ms, other = self._clock(), self._other_name(name)
        forgotten = [lane.forget_conversation(name) for lane in self._lanes]
        # Consumers drop messages that arrived up to this time. Use the last known arrival rather than the present time,
        # because a host whose clock lags may give the next message a time before now.
        at_ms = max((each.last_at_ms for each in forgotten if each.last_at_ms is not None), default=begun_ms)
        self._publish(name, at_ms)
        counts = {
            "waiting": sum(each.waiting for each in forgotten),
            "frozen": sum(each.frozen for each in forgotten),
            "rules": self._drop_rules(name, request.by),
            "takeovers": self._places.takeovers.forget(name),
            "aliases": self._places.aliases.forget(parse_conversation_id(name), now_ms=self._clock()),
        }
        copies, finished = self._copies(name, until_ms=None, erase=True)
        # Ask for another call if a conversation processor read the batch before it was erased, because that processor
        # may still write an object or a dead letter.
        leaving_ms = max((each.leaving_until_ms or 0) - self._clock() for each in forgotten)
        is_done = finished and leaving_ms <= 0
        again_in_ms = None if is_done else max(MIN_MS_BEFORE_A_FORGET_GOES_ON, leaving_ms)
        return self._answer(name, counts | copies, other) | {"at": at_ms, "againInMs": again_in_ms}

    def _listed(self, name: str) -> Json:
        seen = [lane.peek_conversation(name) for lane in self._lanes]
        scopes = [each.scope for each in self._places.rules.read_all()]
        counts = {
            "waiting": sum(each.count for each in seen),
            "frozen": sum(each.frozen for each in seen),
            "rules": scopes.count(conversation_scope(name)),
            "takeovers": self._places.takeovers.count(name),
            "aliases": self._places.aliases.count(parse_conversation_id(name), now_ms=self._clock()),
        }
        copies, _ = self._copies(name, until_ms=None, erase=False)
        return self._answer(name, counts | copies, self._other_name(name))

    def _answer(self, name: str, counts: Json, other: ConversationId | None) -> Json:
        response = {"conversation": name, "counts": counts, "agesOut": list(self._places.ages_out)}
        return response | ({"otherName": str(other)} if other else {})

    def _other_name(self, name: str) -> ConversationId | None:
        return self._places.aliases.other_name(parse_conversation_id(name), now_ms=self._clock())

    def _drop_rules(self, name: str, by: str) -> int:
        scope, at_ms = conversation_scope(name), self._clock()
        return int(self._places.rules.erase(scope, by=by, at_ms=at_ms))

    def _publish(self, name: str, at_ms: int) -> None:
        try:
            self._bus.publish(FORGOTTEN, forgotten_event(parse_conversation_id(name), at_ms=at_ms))
        except SendFailed as error:
            raise OperationRefused(
                f"The lanes are erased, but the event was not published ({error}), and copies remain; forget again."
            ) from error

    def _copies(self, name: str, *, until_ms: int | None, erase: bool) -> tuple[dict[str, int], bool]:
        """Count the conversation's objects, and its dead letters with their messages. If `erase`, also erase them all.

        Return (the counts, True if the dead letters were read to the end).
        """
        count = messages = 0
        finished = True
        for queue in self._places.dead_letters:
            with HiddenLetters(queue, self._time_left) as letters:
                for letter in letters:
                    head = parse_letter(letter)
                    last_at_ms, payloads = head.get("lastAt"), head.get("payloads")
                    is_newer_letter = until_ms is not None and isinstance(last_at_ms, int) and last_at_ms > until_ms
                    if head.get("conversationId") != name or is_newer_letter:
                        continue
                    if erase:
                        self._drop_object(head.get("payloadsRef"))
                        letters.delete(letter)
                    count += 1
                    messages += len(payloads) if isinstance(payloads, list) else 0
            finished = finished and letters.finished
        found = [self._places.objects.keys(f"{folder}/{batch_prefix(name)}/") for folder in (BATCHES, DEAD_LETTERS)]
        keys = [key for keys in found for key in keys if until_ms is None or not is_newer(key, until_ms)]
        if erase:
            self._places.objects.delete(keys)
        return {"deadLetters": count, "messagesInDeadLetters": messages, "objects": len(keys)}, finished

    def _drop_object(self, reference: Any) -> None:
        if isinstance(reference, dict) and str(reference.get("key")).startswith(f"{DEAD_LETTERS}/"):
            self._places.objects.delete([str(reference["key"])])
