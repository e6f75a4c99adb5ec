"""An author with a number and ids has one conversation, whichever instance learns of them, in whatever order."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Any

import pytest

from message_buffer.aliases.aliases import Aliases
from message_buffer.errors import SendFailed
from message_buffer.limits import (
    ALIAS_COPY_LIFE_MS,
    ALIAS_LIFE_MS,
    CHANGED_NUMBER_LIFE_MS,
    DAY_MS,
    MAX_ALIASES_KEPT,
    MAX_AUTHORS_LEARNED_AT_ONCE,
    MAX_BREAKER_PAUSE_MS,
    MAX_IDS_OF_AN_AUTHOR,
    MAX_LOOK_UP_MS_IN_A_WEBHOOK,
    MAX_MOVE_MS_IN_A_WEBHOOK,
    MIN_ALIAS_LIFE_LEFT_MS,
    MINUTE_MS,
    REMEMBERED_MS,
    UNDONE_PAUSES_SECONDS,
)
from message_buffer.messages.author_ids import AuthorIds, IdentityChange
from tests.support.aliases import ACCOUNT, TABLE, AliasScene
from tests.support.table_service import empty
from tests.support.window import failing

ADA, BO = "US.ada", "US.bo"


@pytest.fixture
def scene(database: Any) -> AliasScene:
    return AliasScene(database)


# -- what is learned ---------------------------------------------------------------------------------------


def test_an_id_that_came_with_a_number_leads_to_the_numbers_conversation(scene: AliasScene) -> None:
    assert [scene.user("491", ADA), scene.user(None, ADA), scene.user("491", ADA)] == ["491"] * 3


def test_an_id_that_came_first_keeps_its_conversation_when_the_number_is_shown(scene: AliasScene) -> None:
    assert [scene.user(None, ADA), scene.user("491", ADA), scene.user(None, ADA)] == [ADA] * 3


def test_a_number_that_comes_with_another_id_is_another_person(scene: AliasScene) -> None:
    assert scene.user("491", ADA) == "491"
    assert [scene.user("491", BO), scene.user(None, BO), scene.user("491", BO)] == [BO] * 3
    assert [scene.user("491", ADA), scene.user(None, ADA)] == ["491"] * 2, "the first person keeps the conversation"


def test_an_id_that_comes_with_another_number_is_the_same_person(scene: AliasScene) -> None:
    assert [scene.user("491", ADA), scene.user("492", ADA)] == ["491"] * 2


def test_a_number_alone_is_never_looked_up(scene: AliasScene) -> None:
    scene.user(None, ADA)
    scene.user("491", ADA)
    made = len(scene.wire.made)
    assert scene.user("491", None) == "491"
    assert len(scene.wire.made) == made


def test_letters_of_both_cases_are_different_ids(scene: AliasScene) -> None:
    assert [scene.user("491", "US.aBc"), scene.user(None, "US.abc")] == ["491", "US.abc"]


@pytest.mark.parametrize("field", ["tenant", "platform", "account"])
def test_an_alias_is_valid_in_one_account_only(scene: AliasScene, field: str) -> None:
    scene.user("491", ADA)
    elsewhere = ACCOUNT._replace(user=ADA)._replace(**{field: "other"})
    assert scene.table.get(elsewhere, now_ms=scene.clock()) is None


# -- numbers that change -----------------------------------------------------------------------------------


def test_the_new_id_leads_to_the_old_conversation(scene: AliasScene) -> None:
    scene.user("491", ADA)
    assert scene.moved((None, ADA), ("492", "US.ada2")) is not None
    assert [scene.user("492", "US.ada2"), scene.user(None, "US.ada2")] == ["491"] * 2
    assert scene.user("491", BO) == BO, "the old number was given to another person"


def test_a_chain_of_changes_leads_to_the_oldest_in_one_look_up(scene: AliasScene) -> None:
    scene.user("491", "US.1")
    for number in range(1, 6):
        scene.moved((None, f"US.{number}"), (None, f"US.{number + 1}"))
    instance = scene.another()
    made = len(scene.wire.made)
    assert scene.user(None, "US.6", instance=instance) == "491"
    assert scene.wire.made[made:] == ["get_item"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_reports_in_any_order_lead_to_one_conversation(scene: AliasScene, order: tuple[int, ...]) -> None:
    scene.user("491", "US.0")
    for number in order:
        scene.moved((None, f"US.{number}"), (None, f"US.{number + 1}"))
    assert {scene.user(None, f"US.{number}") for number in range(4)} == {"491"}


def test_a_message_before_the_report_of_its_new_id_is_alone_and_the_next_ones_are_not(scene: AliasScene) -> None:
    scene.user("491", ADA)
    assert scene.user("492", "US.ada2") == "492", "nobody knows yet that this is the same person"
    scene.moved((None, ADA), ("492", "US.ada2"))
    assert scene.user("492", "US.ada2") == "491"


def test_a_report_about_an_id_that_never_came_keeps_the_conversation_of_the_new_id(scene: AliasScene) -> None:
    scene.user("492", "US.new")
    scene.moved((None, "US.never"), (None, "US.new"))
    assert [scene.user(None, "US.new"), scene.user(None, "US.never")] == ["492"] * 2


def test_a_report_that_comes_again_changes_nothing(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.moved((None, ADA), (None, BO))
    before = scene.items()
    scene.moved((None, ADA), (None, BO))
    assert scene.items() == before


def test_changes_in_a_circle_all_lead_to_the_oldest(scene: AliasScene) -> None:
    scene.user("491", "US.a")
    for previous, current in (("US.a", "US.b"), ("US.b", "US.c"), ("US.c", "US.a"), ("US.b", "US.a")):
        scene.moved((None, previous), (None, current))
    assert {scene.user(None, each) for each in ("US.a", "US.b", "US.c")} == {"491"}


def test_the_old_number_alone_says_whose_change_it_is(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.moved(("491", None), (None, "US.ada2"))
    assert scene.user(None, "US.ada2") == "491"


def test_the_old_number_alone_says_nothing_once_two_persons_had_it(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.user("491", BO)
    assert scene.moved(("491", None), (None, "US.new")) is None
    assert scene.user(None, "US.new") == "US.new"


def test_the_first_id_of_a_changed_number_leads_to_the_old_conversation(scene: AliasScene) -> None:
    scene.moved(("491", None), ("492", None))
    assert [scene.user("492", ADA), scene.user(None, ADA)] == ["491"] * 2
    assert scene.user("492", BO) == BO
    assert scene.user("492", None) == "492", "a number alone is not looked up"


def test_a_changed_number_without_an_id_is_soon_forgotten_because_operators_give_numbers_away(
    scene: AliasScene,
) -> None:
    scene.moved(("491", None), ("492", None))
    scene.clock.advance(CHANGED_NUMBER_LIFE_MS)
    assert scene.user("492", BO) == "492"


def test_a_change_to_a_number_that_somebody_has_moves_nobody(scene: AliasScene) -> None:
    scene.user("492", BO)
    scene.moved(("491", None), ("492", None))
    assert scene.user("492", BO) == "492"


def test_an_author_with_too_many_ids_begins_a_new_conversation(scene: AliasScene) -> None:
    scene.user("491", "US.0")
    for number in range(MAX_IDS_OF_AN_AUTHOR):
        scene.moved((None, f"US.{number}"), (None, f"US.{number + 1}"))
    last = f"US.{MAX_IDS_OF_AN_AUTHOR}"
    assert [scene.user(None, f"US.{MAX_IDS_OF_AN_AUTHOR - 1}"), scene.user(None, last)] == ["491", last]
    assert max(len(str(item)) for item in scene.items()) < 2_000


# -- instances at the same time ----------------------------------------------------------------------------


def _steps(scene: AliasScene, act: Callable[[], object]) -> int:
    made = len(scene.wire.made)
    act()
    return len(scene.wire.made) - made


def before_request(scene: AliasScene, number: int, act: Callable[[], object]) -> None:
    """Let another instance act before the request of this number, counted from 1."""
    made = 0

    def look(_request: str) -> None:
        nonlocal made
        made += 1
        if made == number:
            scene.wire.before = lambda _: None
            act()

    scene.wire.before = look


PAIRS: list[tuple[Callable[[AliasScene], str], Callable[[AliasScene], str]]] = [
    (lambda scene: scene.user("491", ADA), lambda scene: scene.user("491", ADA)),
    (lambda scene: scene.user("491", ADA), lambda scene: scene.user(None, ADA)),
    (lambda scene: scene.user(None, ADA), lambda scene: scene.user("491", ADA)),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_two_instances_that_learn_at_the_same_time_agree(
    scene: AliasScene, one: Callable[[AliasScene], str], other: Callable[[AliasScene], str], step: int
) -> None:
    seen: list[str] = []
    before_request(scene, step, lambda: seen.append(other(scene)))
    seen.append(one(scene))
    scene.wire.before = lambda _: None
    seen += [scene.user("491", ADA), scene.user(None, ADA)]
    assert len(set(seen)) == 1, seen


@pytest.mark.parametrize("step", range(1, 5))
def test_only_one_of_two_persons_with_one_number_gets_its_conversation(scene: AliasScene, step: int) -> None:
    seen: list[str] = []
    before_request(scene, step, lambda: seen.append(scene.user("491", BO)))
    ada = scene.user("491", ADA)
    scene.wire.before = lambda _: None
    bo = scene.user("491", BO)
    assert sorted([ada, bo]) in (["491", BO], ["491", ADA])
    assert set(seen) <= {bo}


@pytest.mark.parametrize("step", range(1, 8))
def test_opposite_changes_at_the_same_time_make_no_circle(scene: AliasScene, step: int) -> None:
    scene.user(None, ADA)
    scene.user(None, BO)
    before_request(scene, step, lambda: scene.moved((None, BO), (None, ADA)))
    scene.moved((None, ADA), (None, BO))
    scene.wire.before = lambda _: None
    assert (scene.user(None, ADA), scene.user(None, BO)) in ((ADA, ADA), (BO, BO))


@pytest.mark.parametrize("step", range(1, 7))
def test_a_message_of_the_new_id_at_the_same_time_as_the_report_loses_no_report(scene: AliasScene, step: int) -> None:
    scene.user("491", ADA)
    before_request(scene, step, lambda: scene.user("492", "US.ada2"))
    scene.moved((None, ADA), ("492", "US.ada2"))
    scene.wire.before = lambda _: None
    assert {scene.user("492", "US.ada2"), scene.user(None, "US.ada2"), scene.user(None, ADA)} == {"491"}


@pytest.mark.parametrize("step", range(1, 4))
def test_after_a_crash_between_any_two_steps_the_next_message_continues(scene: AliasScene, step: int) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    with scene.wire.at_step(step, crash), pytest.raises(KeyboardInterrupt):
        scene.user("491", ADA)
    assert [scene.user("491", ADA), scene.user(None, ADA), scene.user("491", BO)] == ["491", "491", BO]


def test_any_history_keeps_persons_apart_and_aliases_in_one_step(scene: AliasScene) -> None:
    """Let persons change, inherit and hide numbers, and let reports come late or twice."""
    random_of = random.Random(7)
    for _ in range(40):
        fresh = AliasScene(scene._client, scene.clock)
        keys: dict[str, set[str]] = {"ada": set(), "bo": set()}
        ids = {"ada": ["US.ada0"], "bo": ["US.bo0"]}
        numbers = {"ada": "491", "bo": "492"}
        for _step in range(15):
            who = random_of.choice(["ada", "bo"])
            other = "bo" if who == "ada" else "ada"
            match random_of.randrange(4):
                case 0 | 1:
                    number = numbers[who] if random_of.random() < 0.6 else None
                    keys[who].add(fresh.user(number, ids[who][-1]))
                case 2:
                    ids[who].append(f"US.{who}{len(ids[who])}")
                    # The other person may next get the number that this person leaves.
                    numbers[who] = f"49{random_of.randrange(3)}"
                    if numbers[who] == numbers[other]:
                        numbers[who] += "9"
                    fresh.moved((None, ids[who][-2]), (None, ids[who][-1]))
                case _ if len(ids[who]) > 1:
                    fresh.moved((None, ids[who][0]), (None, ids[who][1]))
        assert not keys["ada"] & keys["bo"]
        for item in fresh.items():
            target = fresh.alias(item["leadsTo"]["S"])
            assert target is not None
            assert target.leads_to == item["leadsTo"]["S"]


# -- what it costs, and what bounds it ---------------------------------------------------------------------


def test_a_known_author_costs_no_request_until_the_copy_is_old(scene: AliasScene) -> None:
    requests = [_steps(scene, lambda: scene.user("491", ADA, instance=scene.instance)) for _ in range(3)]
    scene.clock.advance(ALIAS_COPY_LIFE_MS)
    requests.append(_steps(scene, lambda: scene.user(None, ADA, instance=scene.instance)))
    assert requests == [3, 0, 0, 1]
    assert scene.wire.made == ["get_item", "put_item", "put_item", "get_item"]


def test_an_author_who_always_hides_the_number_costs_one_write(scene: AliasScene) -> None:
    scene.user(None, ADA)
    scene.user(None, ADA)
    assert scene.wire.made == ["get_item", "put_item", "get_item"]


def test_an_instance_keeps_a_bounded_number_of_copies(scene: AliasScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("message_buffer.aliases.aliases.MAX_ALIASES_KEPT", 3)
    for number in range(5):
        scene.user(None, f"US.{number}", instance=scene.instance)
    assert [each.user for each in scene.instance._copies] == ["US.2", "US.3", "US.4"]
    assert MAX_ALIASES_KEPT >= 1_000


def test_an_alias_is_renewed_only_when_half_of_its_life_is_over(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.clock.advance(ALIAS_LIFE_MS - MIN_ALIAS_LIFE_LEFT_MS - MINUTE_MS)
    assert _steps(scene, lambda: scene.user(None, ADA)) == 1
    scene.clock.advance(2 * MINUTE_MS)
    assert _steps(scene, lambda: scene.user(None, ADA)) == 3
    assert _steps(scene, lambda: scene.user(None, ADA)) == 1


def test_the_number_stays_its_persons_as_long_as_the_person_writes_without_it(scene: AliasScene) -> None:
    scene.user("491", ADA)
    for _ in range(5):
        scene.clock.advance(ALIAS_LIFE_MS - MIN_ALIAS_LIFE_LEFT_MS)
        scene.user(None, ADA)
    assert scene.user("491", BO) == BO


def test_a_year_after_the_last_message_an_alias_is_gone_even_before_dynamodb_deletes_it(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.clock.advance(ALIAS_LIFE_MS)
    assert scene.user("491", BO) == "491"
    assert scene.user(None, ADA) == ADA


def test_an_item_that_a_person_spoiled_stops_no_message(scene: AliasScene) -> None:
    scene._client.put_item(TableName="aliases", Item={"conversation": {"S": str(ACCOUNT._replace(user=ADA))}})
    assert scene.user("491", ADA) == "491"


# -- without the table -------------------------------------------------------------------------------------


def test_without_the_table_the_id_that_came_is_used_because_the_number_may_be_another_persons(
    scene: AliasScene,
) -> None:
    scene.user("491", ADA)
    scene.wire.before = lambda _: failing()()
    assert [scene.user("491", BO), scene.user(None, ADA), scene.user("493", None)] == [BO, ADA, "493"]
    assert scene.telemetry.counts["AliasesUnreachable"] == 2


def test_in_an_outage_an_instance_uses_its_old_copies(scene: AliasScene) -> None:
    scene.user("491", ADA, instance=scene.instance)
    scene.clock.advance(100 * ALIAS_COPY_LIFE_MS)
    scene.wire.before = lambda _: failing()()
    assert [scene.user(None, ADA, instance=scene.instance), scene.user("491", ADA, instance=scene.instance)] == [
        "491",
        "491",
    ]


def test_after_an_outage_nothing_of_it_remains(scene: AliasScene) -> None:
    scene.wire.before = lambda _: failing()()
    assert scene.user("491", ADA) == ADA
    scene.wire.before = lambda _: None
    assert [scene.user("491", ADA), scene.user(None, ADA)] == ["491"] * 2


def test_a_table_that_fails_is_left_alone_for_a_while(scene: AliasScene) -> None:
    scene.wire.before = lambda _: failing()()
    for number in range(50):
        scene.user(None, f"US.{number}", instance=scene.instance)
    assert scene.telemetry.counts["AliasesUnreachable"] == 1
    assert len(scene.telemetry.said("aliases unreachable")) == 1
    scene.wire.before = lambda _: None
    scene.clock.advance(MAX_BREAKER_PAUSE_MS)
    scene.user("491", ADA, instance=scene.instance)
    assert scene.user(None, ADA) == "491"


def _pass(scene: AliasScene, ms: int) -> None:
    scene.clock.advance(ms)


def test_a_slow_table_takes_a_bounded_time_of_a_webhook(scene: AliasScene) -> None:
    scene.wire.before = lambda _: _pass(scene, 900)
    scene.instance.begin_webhook()
    began_ms = scene.clock()
    for number in range(1_000):
        scene.user(f"49{number}", f"US.{number}", instance=scene.instance)
    assert scene.clock() - began_ms <= MAX_LOOK_UP_MS_IN_A_WEBHOOK + 3 * 900
    scene.wire.before = lambda _: None
    scene.instance.begin_webhook()
    assert scene.user("49999", "US.999", instance=scene.instance) == "49999"


def test_changes_of_one_webhook_on_a_slow_table_take_a_bounded_time_and_the_next_delivery_goes_on(
    scene: AliasScene,
) -> None:
    scene.wire.before = lambda _: _pass(scene, 900)
    names = [(AuthorIds(None, f"US.{number}"), AuthorIds(None, f"CA.{number}")) for number in range(50)]
    changes = iter([IdentityChange(ACCOUNT.platform, ACCOUNT.account, *each) for each in names])
    began_ms = scene.clock()
    scene.instance.begin_webhook()
    while scene.clock() - began_ms < MAX_MOVE_MS_IN_A_WEBHOOK:
        assert scene.instance.move(ACCOUNT, next(changes))
    refused = next(changes)
    with pytest.raises(SendFailed, match="too slow"):
        scene.instance.move(ACCOUNT, refused)
    scene.instance.begin_webhook()
    assert scene.instance.move(ACCOUNT, refused)


# -- the authors of one webhook together -------------------------------------------------------------------


def looked_up(scene: AliasScene, authors: Sequence[tuple[str | None, str | None]], instance: Aliases) -> list[str]:
    """Look the authors up as ingest does for one webhook, and return the user part of each one's conversation."""
    pairs = [
        (ACCOUNT._replace(user=number or user_id or ""), AuthorIds(number, user_id)) for number, user_id in authors
    ]
    instance.begin_webhook()
    instance.look_up_all(pairs)
    return [instance.conversation_of(named, ids).user for named, ids in pairs]


def crowd(size: int) -> list[tuple[str | None, str | None]]:
    return [(f"49{number}", f"US.{number}") for number in range(size)]


def test_the_known_authors_of_a_webhook_are_read_by_the_hundred(scene: AliasScene) -> None:
    numbers = [str(number) for number, _ in crowd(250)]
    assert looked_up(scene, crowd(250), scene.instance) == numbers
    scene.wire.made.clear()
    assert looked_up(scene, crowd(250), scene.another()) == numbers
    assert scene.wire.made == ["batch_get_item"] * 3
    assert looked_up(scene, [(None, user_id) for _, user_id in crowd(250)], scene.another()) == numbers


def test_new_authors_are_learned_a_few_at_a_time_and_cost_two_writes_each(scene: AliasScene) -> None:
    at_once, most, lock = 0, 0, Lock()
    met = Event()

    def begin(request: str) -> None:
        nonlocal at_once, most
        if request == "put_item":
            with lock:
                at_once += 1
                most = max(most, at_once)
            if most >= MAX_AUTHORS_LEARNED_AT_ONCE:
                met.set()
            met.wait(5)
            with lock:
                at_once -= 1

    scene.wire.before = begin
    looked_up(scene, crowd(40), scene.instance)
    assert most == MAX_AUTHORS_LEARNED_AT_ONCE
    assert Counter(scene.wire.made) == {"batch_get_item": 1, "put_item": 80}


def test_a_single_author_and_one_who_is_cached_or_has_only_a_number_cost_no_read_of_many(scene: AliasScene) -> None:
    assert looked_up(scene, [("491", ADA), ("491", ADA), ("492", None)], scene.instance) == ["491", "491", "492"]
    assert scene.wire.made == ["get_item", "put_item", "put_item"]
    looked_up(scene, [("491", ADA), ("493", BO)], scene.instance)
    assert "batch_get_item" not in scene.wire.made


@pytest.mark.parametrize("order", list(itertools.permutations([("491", ADA), ("491", BO), (None, BO), ("492", ADA)])))
def test_authors_looked_up_together_have_the_conversations_that_they_have_one_by_one(
    scene: AliasScene, order: list[tuple[str | None, str | None]]
) -> None:
    together = looked_up(scene, order, scene.instance)
    items = sorted(scene.items(), key=str)
    empty(scene._client, TABLE)
    alone = scene.another()
    assert together == [scene.user(number, user_id, instance=alone) for number, user_id in order]
    assert items == sorted(scene.items(), key=str)


@pytest.mark.parametrize("nth", [1, 2])
def test_reads_that_dynamodb_leaves_undone_are_repeated(
    scene: AliasScene, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up(scene, crowd(150), scene.instance)
    pauses = _leave_undone(scene, monkeypatch, times=nth)
    assert looked_up(scene, crowd(150), scene.another()) == [number for number, _ in crowd(150)]
    assert pauses == list(UNDONE_PAUSES_SECONDS[:nth])


def test_a_table_that_leaves_all_undone_counts_as_unreachable(
    scene: AliasScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = _leave_undone(scene, monkeypatch, times=100)
    assert looked_up(scene, crowd(3), scene.instance) == [user_id for _, user_id in crowd(3)]
    assert pauses == list(UNDONE_PAUSES_SECONDS)
    assert scene.telemetry.counts["AliasesUnreachable"] == 1


def _leave_undone(scene: AliasScene, monkeypatch: pytest.MonkeyPatch, *, times: int) -> list[float]:
    """Let the next reads of many leave out all but one item, and return the pauses that follow, as they come."""
    pauses: list[float] = []
    monkeypatch.setattr("message_buffer.aliases.aliases_table.time.sleep", pauses.append)
    whole = scene.table._client.batch_get_item

    def batch_get_item(RequestItems: Any) -> Any:  # noqa: N803 - the SDK's name
        if len(pauses) >= times:
            return whole(RequestItems=RequestItems)
        keys = RequestItems[TABLE]["Keys"]
        done = keys[:1] if len(keys) > 1 else []
        answer = whole(RequestItems={TABLE: RequestItems[TABLE] | {"Keys": done}}) if done else {"Responses": {}}
        return answer | {"UnprocessedKeys": {TABLE: {"Keys": keys[len(done) :]}}}

    scene.table._client.batch_get_item = batch_get_item
    return pauses


@pytest.mark.parametrize("call", ["batch_get_item", "put_item"])
def test_if_the_table_fails_while_many_are_looked_up_the_ids_that_came_are_used(scene: AliasScene, call: str) -> None:
    assert scene.user("491", ADA) == "491"

    def refuse(request: str) -> None:
        if request == call:
            raise SendFailed("throttled")

    scene.wire.before = refuse
    known = "491" if call == "put_item" else ADA
    found = looked_up(scene, [("491", ADA), *crowd(30)], scene.instance)
    assert found == [known, *(user_id for _, user_id in crowd(30))]
    assert scene.telemetry.counts["AliasesUnreachable"] == 1
    assert scene.wire.made.count("put_item") <= 2 + MAX_AUTHORS_LEARNED_AT_ONCE, "the threads end after a failure"
    assert len(scene.telemetry.said("aliases unreachable")) == 1


def test_on_a_slow_table_many_look_ups_take_a_bounded_time_of_a_webhook(scene: AliasScene) -> None:
    scene.wire.before = lambda _: _pass(scene, 900)
    began_ms = scene.clock()
    found = looked_up(scene, crowd(1_000), scene.instance)
    steps_of_an_author = 3
    longest_ms = MAX_LOOK_UP_MS_IN_A_WEBHOOK + MAX_AUTHORS_LEARNED_AT_ONCE * steps_of_an_author * 900
    assert scene.clock() - began_ms <= longest_ms
    assert found[-1] == "US.999"


def test_a_change_that_cannot_be_recorded_is_refused(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.wire.before = lambda _: failing()()
    with pytest.raises(SendFailed):
        scene.moved((None, ADA), (None, BO))


# -- forgetting --------------------------------------------------------------------------------------------


def forget(scene: AliasScene, user: str) -> int:
    conversation = ACCOUNT._replace(user=user)
    counted = scene.table.count(conversation, now_ms=scene.clock())
    assert scene.table.forget(conversation, now_ms=scene.clock()) == counted
    assert scene.table.count(conversation, now_ms=scene.clock()) == 0
    return counted


def test_a_forget_erases_all_names_of_the_author_and_no_other(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.moved((None, ADA), ("492", "US.ada2"))
    scene.user("493", BO)
    others = scene.table.other_names(ACCOUNT._replace(user="491"), now_ms=scene.clock())
    assert sorted(each.user for each in others) == [ADA, "US.ada2"]
    assert forget(scene, "491") == 3
    scene.clock.advance(REMEMBERED_MS)
    assert [scene.alias(each) for each in ("491", ADA, "US.ada2")] == [None] * 3
    assert scene.user(None, BO) == "493"


def test_a_forget_erases_changed_numbers_too(scene: AliasScene) -> None:
    scene.moved(("491", None), ("492", None))
    assert forget(scene, "491") == 2


@pytest.mark.parametrize("step", range(1, 8))
def test_a_forget_finds_the_ids_of_two_reports_at_the_same_time(scene: AliasScene, step: int) -> None:
    scene.user("491", ADA)
    before_request(scene, step, lambda: scene.moved((None, ADA), (None, "US.one")))
    scene.moved((None, ADA), (None, "US.two"))
    scene.wire.before = lambda _: None
    scene.moved((None, ADA), (None, "US.one"))
    assert forget(scene, "491") == 4


def test_for_a_day_a_redelivered_message_leads_to_the_forgotten_conversation(scene: AliasScene) -> None:
    """Keep a redelivery from restoring messages: the conversation remembers hashes of its message ids for a day."""
    scene.user("491", ADA)
    forget(scene, "491")
    scene.clock.advance(REMEMBERED_MS - MINUTE_MS)
    assert [scene.user(None, ADA), scene.user("491", ADA)] == ["491"] * 2
    assert scene.wire.made[-2:] == ["get_item"] * 2
    scene.clock.advance(MINUTE_MS)
    assert scene.alias(ADA) is None, "a redelivery does not renew it"


def test_what_is_learned_about_a_forgotten_author_is_forgotten_with_the_rest(scene: AliasScene) -> None:
    scene.user("491", ADA)
    forget(scene, "491")
    scene.moved((None, ADA), (None, "US.ada2"))
    assert scene.user(None, "US.ada2") == "491"
    scene.clock.advance(DAY_MS)
    assert scene.alias("US.ada2") is None


def test_a_forget_of_an_alias_erases_nothing_and_names_the_conversation(scene: AliasScene) -> None:
    scene.user("491", ADA)
    assert forget(scene, ADA) == 0
    by_number = ACCOUNT._replace(user="491")
    assert scene.table.leads_elsewhere(ACCOUNT._replace(user=ADA), now_ms=scene.clock()) == by_number
    assert scene.table.leads_elsewhere(by_number, now_ms=scene.clock()) is None


def test_no_number_stays_behind_when_the_id_came_alone_at_the_same_time(scene: AliasScene) -> None:
    instance: Aliases = scene.another()
    with scene.wire.at("put_item", lambda: scene.user(None, ADA), nth=2):
        assert scene.user("491", ADA, instance=instance) == ADA
    forget(scene, ADA)
    assert scene.alias("491") is None


# -- numbers that an author with another name for the conversation has had ----------------------------------


def test_a_number_of_an_author_whose_id_came_first_is_not_given_to_another_id(scene: AliasScene) -> None:
    """Protect the first person, whose messages with the number alone are in the number's conversation."""
    assert scene.user("491", None) == "491"
    assert [scene.user(None, ADA), scene.user("491", ADA)] == [ADA] * 2
    assert scene.user("491", BO) == BO


def test_the_new_number_of_a_known_author_is_not_given_to_another_id(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.moved((None, ADA), ("492", "US.ada2"))
    assert scene.user("492", "US.ada2") == "491"
    assert scene.user("492", None) == "492", "a number alone is not looked up"
    assert scene.user("492", BO) == BO
    assert [scene.user("492", "US.ada2"), scene.user("491", ADA)] == ["491"] * 2


def test_a_further_number_is_written_once_and_costs_a_read_then(scene: AliasScene) -> None:
    scene.user(None, ADA)
    made = len(scene.wire.made)
    scene.user("491", ADA)
    assert scene.wire.made[made:] == ["get_item", "get_item", "get_item", "transact_write_items"]
    assert _steps(scene, lambda: scene.user("491", ADA)) == 2
    assert _steps(scene, lambda: scene.user(None, ADA)) == 1


def test_a_forget_erases_further_numbers_too(scene: AliasScene) -> None:
    scene.user(None, ADA)
    scene.user("491", ADA)
    assert forget(scene, ADA) == 2


@pytest.mark.parametrize("call", ["update_item", "transact_write_items"])
def test_a_known_author_stays_in_one_conversation_if_the_table_refuses_writes(scene: AliasScene, call: str) -> None:
    """Reads may work while writes are throttled."""
    scene.user("491", ADA)
    scene.clock.advance(ALIAS_LIFE_MS - MIN_ALIAS_LIFE_LEFT_MS)

    def refuse(request: str) -> None:
        if request == call:
            raise SendFailed("throttled")

    scene.wire.before = refuse
    assert scene.user("492", ADA) == "491"
    assert scene.telemetry.counts["AliasesUnreachable"] == 1
