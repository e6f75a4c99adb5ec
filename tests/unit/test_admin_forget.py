"""The operators' request to forget a conversation, on the real engine; only AWS is replaced."""

import json

import pytest

from lambdas.admin.dead_letters import MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS
from message_buffer.errors import SendFailed
from message_buffer.events import batch_ready as batch
from message_buffer.events.dead_letters import Letter
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import MAX_CALL_MS
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import LogSettings
from message_buffer.takeovers.takeover import Takeover
from message_buffer.telemetry import Telemetry
from tests.support.engine import Engine
from tests.support.window import WindowScene
from tests.unit.test_admin import AGES_OUT, NAME, Desk, FakeLetters, events, letter

OTHER = "default/generic/shop/c2"
NOTHING = dict.fromkeys(
    (
        "waiting", "frozen", "rules", "aliases", "takeovers", "objects", "deadLetters", "messagesInDeadLetters",
    ),
    0,
)  # fmt: skip


@pytest.fixture
def desk(fake: Engine) -> Desk:
    return Desk(fake)


def keys_of(desk: Desk, conversation: str) -> list[str]:
    return sorted(name for name in iter(desk.engine.keys()) if name.endswith(conversation))


def key_of(conversation: str, last_at_ms: int, *, folder: str = "batches") -> str:
    taken = BatchTaken(f"b-{last_at_ms}", 1, 1, last_at_ms, last_at_ms, last_at_ms, "silence", "silenceMs", 0, [])
    return batch.object_key(folder, conversation, taken)


def fill(desk: Desk) -> None:
    """Put something of two conversations into every place."""
    for name in (NAME, OTHER):
        desk.engine.send(name, "m1", rules=Rules(priority="vip"))
    desk.engine.claim()
    for name in (NAME, OTHER):
        desk.engine.store.take_batch(name, f"token of {name}")
        desk.engine.store.retry_batch(name, f"token of {name}", retry_at_ms=desk.engine.clock.now_ms + 1)
        desk.engine.send(name, "m2")
        desk.takeovers.save(name, Takeover().after_hand_back(1), now_ms=1)
        desk.table.put(f"conversation:{name}", {"silenceMs": 5}, by="x", at_ms=1, expected_version=None)
        for folder in ("batches", "dead-letters"):
            desk.objects.put(key_of(name, 5, folder=folder), b"words")
        desk.aliases.link(name, f"{name}-id")
    desk.queue = FakeLetters(letter("mine", "a", "b"), letter("other", "a", conversationId=OTHER), "not a letter")


HELD = {
    "waiting": 1, "frozen": 1, "rules": 1, "aliases": 2, "objects": 2, "deadLetters": 1, "messagesInDeadLetters": 2,
    "takeovers": 1,
}  # fmt: skip


def everything(desk: Desk) -> Json:
    return {
        "valkey": desk.engine.settle(),
        "rules": dict(desk.table.items),
        "takeovers": dict(desk.takeovers.states),
        "objects": dict(desk.objects.kept),
        "letters": list(desk.queue.letters),
    }


def test_a_dry_run_counts_and_changes_nothing(desk: Desk) -> None:
    fill(desk)
    before = everything(desk)
    answer = desk.result("conversation.forget", conversation=NAME, dryRun=True)
    assert answer == {"conversation": NAME, "counts": HELD, "agesOut": AGES_OUT, "otherName": f"{NAME}-id"}
    assert everything(desk) == before
    assert desk.bus.published == []
    assert desk.queue.hidden == set()


def test_a_forget_erases_every_place_and_no_other_conversation(desk: Desk) -> None:
    fill(desk)
    others = keys_of(desk, OTHER)
    answer = desk.result("conversation.forget", conversation=NAME)
    assert answer["counts"] == HELD
    assert (answer["againInMs"], answer["agesOut"]) == (None, AGES_OUT)
    assert desk.result("conversation.forget", conversation=NAME, dryRun=True)["counts"] == NOTHING
    assert desk.result("conversation.forget", conversation=OTHER, dryRun=True)["counts"] == HELD | {
        "messagesInDeadLetters": 1
    }
    assert keys_of(desk, OTHER) == others
    assert [each.body for each in desk.queue.letters][1:] == ["not a letter"]


def test_consumers_are_told_and_the_erased_messages_counted(desk: Desk) -> None:
    fill(desk)
    answer = desk.result("conversation.forget", conversation=NAME)
    (event,) = events(desk, "messages.conversation.forgotten")
    assert event == {
        "version": 1, "conversationId": NAME, "tenant": "default", "at": answer["at"],
        "metadata": {"platform": "generic"},
    }  # fmt: skip


@pytest.mark.parametrize(("name", "other"), [(NAME, OTHER), (OTHER, NAME)])
def test_a_forget_names_the_authors_other_conversation(desk: Desk, name: str, other: str) -> None:
    desk.aliases.link(NAME, OTHER)
    assert desk.result("conversation.forget", conversation=name, dryRun=True)["otherName"] == other
    assert desk.result("conversation.forget", conversation=name)["otherName"] == other
    assert "otherName" not in desk.result("conversation.forget", conversation=other), "the names are erased"


def test_while_a_batch_leaves_the_answer_says_when_to_go_on(desk: Desk) -> None:
    desk.engine.send(NAME, "m1", rules=Rules(priority="vip"))
    desk.engine.claim()
    desk.engine.store.take_batch(NAME, "token")
    first = desk.result("conversation.forget", conversation=NAME)
    assert first["counts"]["frozen"] == 1
    assert first["againInMs"] == desk.engine.store.settings.token_ms + MAX_CALL_MS
    # The run that had the batch writes an object and a dead letter; the person writes again, and that batch leaves.
    last_at_ms = first["at"] - 1
    desk.objects.put(key_of(NAME, last_at_ms), b"words")
    desk.queue = FakeLetters(
        letter("old", "a", lastAt=last_at_ms), letter("new", "a", lastAt=first["at"] + 1), letter("odd", lastAt=None)
    )
    newer = key_of(NAME, first["at"] + 1)
    desk.objects.put(newer, b"words")
    desk.engine.clock.advance(first["againInMs"])
    desk.engine.send(NAME, "m2")
    again = desk.result("conversation.forget", conversation=NAME, at=first["at"])
    assert again["counts"] == {"objects": 1, "deadLetters": 2, "messagesInDeadLetters": 1}
    assert (again["at"], again["againInMs"]) == (first["at"], None)
    assert list(desk.objects.kept) == [newer]
    assert ["new" in each.body for each in desk.queue.letters] == [True]
    assert desk.engine.store.peek_conversation(NAME).count == 1
    assert len(events(desk, "messages.conversation.forgotten")) == 1


def test_a_dead_letter_goes_after_the_object_that_it_names(desk: Desk) -> None:
    key = "dead-letters/w-of-an-earlier-version.json"
    desk.objects.put(key, b"words")
    desk.queue = FakeLetters(letter("mine", payloads=None, payloadsRef={"key": key}))
    desk.objects.failures = [SendFailed("delete objects: SlowDown")]
    assert desk.error("conversation.forget", conversation=NAME)[0] == "unavailable"
    assert len(desk.queue.letters) == 1
    assert desk.result("conversation.forget", conversation=NAME)["counts"]["deadLetters"] == 1
    assert desk.objects.kept == {}


def given_up(conversation: str, last_at_ms: int) -> str:
    """Return a dead letter of a queue: the entry as the emission has sent it."""
    detail = {"conversationId": conversation, "messages": [{}, {}], "metadata": {"lastMessageAt": last_at_ms}}
    return json.dumps({"source": "message-buffer", "detail-type": batch.DETAIL_TYPE, "detail": detail})


def test_dead_letters_of_the_stages_queues_are_erased_too(desk: Desk) -> None:
    other, odd = given_up(OTHER, 5), json.dumps({"detail": {"conversationId": OTHER, "metadata": None}})
    desk.queue_letters = FakeLetters(given_up(NAME, 5), other, odd, given_up(NAME, 6))
    answer = desk.result("conversation.forget", conversation=NAME)
    assert (answer["counts"]["deadLetters"], answer["counts"]["messagesInDeadLetters"]) == (2, 4)
    newer = given_up(NAME, answer["at"] + 1)
    desk.queue_letters = FakeLetters(newer, given_up(NAME, answer["at"]), other, odd)
    again = desk.result("conversation.forget", conversation=NAME, at=answer["at"])
    assert (again["counts"]["deadLetters"], again["againInMs"]) == (1, None)
    assert [each.body for each in desk.queue_letters.letters] == [newer, other, odd]


def test_a_letter_cannot_name_an_object_elsewhere(desk: Desk) -> None:
    desk.objects.put("batches/of-another.json", b"words")
    desk.queue = FakeLetters(letter("mine", payloads=None, payloadsRef={"key": "batches/of-another.json"}))
    desk.result("conversation.forget", conversation=NAME)
    assert list(desk.objects.kept) == ["batches/of-another.json"]


def test_a_queue_that_takes_too_long_is_looked_through_by_the_next_call(desk: Desk) -> None:
    desk.queue = FakeLetters(*(letter(f"b{n}", "a") for n in range(4)))
    looks = iter([60_000, MIN_MS_LEFT_TO_LOOK_AT_DEAD_LETTERS, *[60_000] * 9])
    receive = desk.queue.receive

    def slow(*, hidden_seconds: int) -> list[Letter]:
        found = receive(hidden_seconds=hidden_seconds)
        desk.time_left_ms = next(looks)
        return found

    desk.queue.receive = slow  # type: ignore[method-assign]
    desk.time_left_ms = next(looks)
    first = desk.result("conversation.forget", conversation=NAME)
    assert (first["counts"]["deadLetters"], first["againInMs"]) == (2, 1_000)
    desk.time_left_ms = 60_000
    again = desk.result("conversation.forget", conversation=NAME, at=first["at"])
    assert (again["counts"]["deadLetters"], again["againInMs"]) == (2, None)


def test_if_the_event_is_not_published_the_answer_says_so_and_a_repeat_finishes(desk: Desk) -> None:
    fill(desk)
    desk.bus.failures = [SendFailed("put event: Throttling")]
    code, message = desk.error("conversation.forget", conversation=NAME)
    assert (code, "forget again" in message) == ("refused", True)
    counts = desk.result("conversation.forget", conversation=NAME)["counts"]
    assert counts == HELD | {"waiting": 0, "frozen": 0}


def test_an_operator_looks_up_how_the_logs_name_a_conversation(desk: Desk) -> None:
    assert desk.result("id.look_up", id=NAME) == {"logged": NAME}
    desk.telemetry._settings = LogSettings("a key")
    logged = desk.result("id.look_up", id=NAME)["logged"]
    assert logged == Telemetry(LogSettings("a key")).logged_id(NAME) != NAME


def test_consumers_drop_what_arrived_until_the_last_arrival_in_either_lane(desk: Desk, window: WindowScene) -> None:
    """A message that comes next, through a host whose clock lags, must not count as erased."""
    desk.fallback.append(window.lane)
    desk.engine.send(NAME, "m1")
    in_valkey_ms = desk.engine.clock.now_ms
    window.clock.now_ms = in_valkey_ms + 500
    desk.engine.clock.advance(1_000)
    assert desk.result("conversation.forget", conversation=NAME)["at"] == in_valkey_ms
    desk.engine.send(NAME, "m1")
    window.send("m2", conversation=NAME)
    assert desk.result("conversation.forget", conversation=NAME)["at"] == in_valkey_ms + 1_000
    window.clock.advance(1)
    window.send("m3", conversation=NAME)
    assert desk.result("conversation.forget", conversation=NAME)["at"] == window.clock.now_ms


def test_if_no_arrival_is_known_consumers_drop_what_arrived_until_now(desk: Desk, window: WindowScene) -> None:
    desk.fallback.append(window.lane)
    assert desk.result("conversation.forget", conversation=NAME)["at"] == desk.engine.clock.now_ms
