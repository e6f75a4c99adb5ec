"""Erases a conversation from every place that stores a part of it, or counts what would be erased.

Each step may be repeated. The lanes are erased first, so that they write nothing new to the other places. A dead letter
is deleted after the object that it names, so that a later call can still find the object.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lambdas.admin.dead_letters import HiddenLetters, ReadsDeadLetters, parse_letter
from lambdas.admin.requests import ForgetConversation
from lambdas.operations import OperationRefused
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.events.batch_ready import BATCHES, DEAD_LETTERS, is_newer
from message_buffer.events.conversation_events import FORGOTTEN, forgotten_event
from message_buffer.events.dead_letters import Letter
from message_buffer.events.event_bus import EventBus
from message_buffer.json_object import Json
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.valkey.keys import batch_prefix
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.messages.conversation_id import ConversationId, parse_conversation_id
from message_buffer.rules.rule_book import conversation_scope
from message_buffer.telemetry import Telemetry

# If one call cannot erase everything, the caller waits this long before the next call, because the dead letters that
# the first call gave back to the queue need a moment to become visible again.
MIN_MS_BEFORE_A_FORGET_GOES_ON = 1_000
TimeLeft = Callable[[], int]


class ErasesObjects(Protocol):
    def keys(self, prefix: str) -> list[str]: ...

    def delete(self, keys: Sequence[str]) -> None: ...


class RulesOfScopes(Protocol):
    def read_all(self) -> Iterable[Any]: ...

    def delete(self, scope: str, *, by: str, at_ms: int, expected_version: int | None) -> bool: ...


class ErasesTakeovers(Protocol):
    def count(self, conversation: str) -> int: ...

    def forget(self, conversation: str) -> int: ...


class ErasesAliases(Protocol):
    def other_name(self, conversation: ConversationId, *, now_ms: int) -> ConversationId | None: ...

    def count(self, conversation: ConversationId, *, now_ms: int) -> int: ...

    def forget(self, conversation: ConversationId, *, now_ms: int) -> int: ...


class Places(NamedTuple):
    """The stores, besides the lanes, that contain parts of a conversation."""

    rules: RulesOfScopes
    objects: ErasesObjects
    dead_letters: ReadsDeadLetters
    takeovers: ErasesTakeovers
    ages_out: Sequence[Mapping[str, Any]]
    """The copies that this function cannot erase, each with the number of days for which it is kept."""
    aliases: ErasesAliases


class Forgetting:
    def __init__(
        self,
        lanes: Sequence[ValkeyLane | DynamoDbLane],
        places: Places,
        *,
        bus: EventBus,
        telemetry: Telemetry,
        time_left: TimeLeft,
        clock: Clock = system_clock,
    ) -> None:
        self._lanes = lanes
        self._places = places
        self._bus = bus
        self._telemetry = telemetry
        self._time_left = time_left
        self._clock = clock

    def forget(self, request: ForgetConversation) -> Json:
        """Erase the conversation, or count what would be erased.

        `againInMs` is set if a conversation processor may still emit a batch, or if one call could not erase
        everything. The caller must then call again after that time, and pass the `at` of this response. The repeated
        call erases only objects and dead letters of messages that arrived until `at`.

        Raise OperationRefused if `messages.conversation.forgotten` could not be published.
        """
        name = str(parse_conversation_id(request.conversation))
        if request.dry_run:
            return self._listed(name)
        if request.at_ms is not None:
            counts, finished = self._erase_copies(name, until_ms=request.at_ms)
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
        copies, finished = self._erase_copies(name, until_ms=None)
        self._telemetry.count("ErasedMessages", counts["waiting"] + counts["frozen"])
        # Ask for another call if a conversation processor read the batch before it was erased, because that processor
        # may still write an object or a dead letter.
        leaving_ms = max((each.leaving_until_ms or 0) - self._clock() for each in forgotten)
        is_done = finished and leaving_ms <= 0
        again_in_ms = None if is_done else max(MIN_MS_BEFORE_A_FORGET_GOES_ON, leaving_ms)
        return self._answer(name, counts | copies, other) | {"at": at_ms, "againInMs": again_in_ms}

    def _erase_copies(self, name: str, *, until_ms: int | None) -> tuple[dict[str, int], bool]:
        """Erase objects and dead letters. Return their counts, and whether the dead letters were read to the end."""
        letters = self._letters(name, until_ms=until_ms, keep=False)
        keys = self._keys(name, until_ms=until_ms)
        self._places.objects.delete(keys)
        if letters.messages:
            self._telemetry.count("ErasedMessages", letters.messages)
        return _counts(letters, keys), letters.finished

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
        counts |= _counts(self._letters(name, until_ms=None, keep=True), self._keys(name, until_ms=None))
        return self._answer(name, counts, self._other_name(name))

    def _answer(self, name: str, counts: Json, other: ConversationId | None) -> Json:
        response = {"conversation": name, "counts": counts, "agesOut": list(self._places.ages_out)}
        return response | ({"otherName": str(other)} if other else {})

    def _other_name(self, name: str) -> ConversationId | None:
        return self._places.aliases.other_name(parse_conversation_id(name), now_ms=self._clock())

    def _drop_rules(self, name: str, by: str) -> int:
        scope, at_ms = conversation_scope(name), self._clock()
        return int(self._places.rules.delete(scope, by=by, at_ms=at_ms, expected_version=None))

    def _publish(self, name: str, at_ms: int) -> None:
        try:
            self._bus.publish(FORGOTTEN, forgotten_event(parse_conversation_id(name), at_ms=at_ms))
        except SendFailed as error:
            raise OperationRefused(
                f"The lanes are erased, but the event was not published ({error}), and copies remain; forget again."
            ) from error

    def _keys(self, name: str, *, until_ms: int | None) -> list[str]:
        found = [self._places.objects.keys(f"{folder}/{batch_prefix(name)}/") for folder in (BATCHES, DEAD_LETTERS)]
        return [key for keys in found for key in keys if until_ms is None or not is_newer(key, until_ms)]

    def _letters(self, name: str, *, until_ms: int | None, keep: bool) -> "_FoundLetters":
        """Read the dead letters and return those of the conversation. Unless `keep`, delete them and their objects."""

        def is_wanted(letter: Letter) -> bool:
            parsed = parse_letter(letter)
            last_at = parsed.get("lastAt")
            is_old = until_ms is None or not isinstance(last_at, int) or last_at <= until_ms
            return parsed.get("conversationId") == name and is_old

        found: list[Letter] = []
        with HiddenLetters.at(self._places.dead_letters, self._time_left) as letters:
            for letter in letters:
                if not is_wanted(letter):
                    continue
                if not keep:
                    self._drop_object(letter)
                    letters.delete(letter)
                found.append(letter)
        return _FoundLetters(found, finished=letters.finished)

    def _drop_object(self, letter: Letter) -> None:
        reference = parse_letter(letter).get("payloadsRef")
        if isinstance(reference, dict) and str(reference.get("key")).startswith(f"{DEAD_LETTERS}/"):
            self._places.objects.delete([str(reference["key"])])


class _FoundLetters(NamedTuple):
    found: list[Letter]
    finished: bool
    """True if the queue was read to its end."""

    @property
    def messages(self) -> int:
        """Return how many messages the letters contain. Do not count messages that are in an object of the bucket."""
        payloads = [parse_letter(letter).get("payloads") for letter in self.found]
        return sum(len(each) for each in payloads if isinstance(each, list))


def _counts(letters: _FoundLetters, keys: Sequence[str]) -> dict[str, int]:
    return {
        "deadLetters": len(letters.found),
        "messagesInDeadLetters": letters.messages,
        "objects": len(keys),
    }
