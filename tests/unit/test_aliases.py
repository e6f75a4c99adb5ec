"""An author with a number and ids has one conversation, whichever instance learns of them, in whatever order."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from message_buffer.aliases.aliases import ALIAS_COPY_LIFE_MS, MAX_ALIASES_KEPT, MAX_LOOK_UP_MS_IN_A_WEBHOOK
from message_buffer.aliases.aliases_table import ALIAS_LIFE_MS
from message_buffer.lanes.circuit_breaker import MAX_BREAKER_PAUSE_MS
from message_buffer.messages.conversation_id import AuthorIds
from tests.support.aliases import ACCOUNT, AliasScene
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


def test_a_number_alone_is_never_looked_up(scene: AliasScene) -> None:
    scene.user(None, ADA)
    scene.user("491", ADA)
    made = len(scene.wire.made)
    assert scene.user("491", None) == "491"
    assert len(scene.wire.made) == made


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


@pytest.mark.parametrize("step", range(1, 4))
def test_after_a_crash_between_any_two_steps_the_next_message_continues(scene: AliasScene, step: int) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    with scene.wire.at_step(step, crash), pytest.raises(KeyboardInterrupt):
        scene.user("491", ADA)
    assert [scene.user("491", ADA), scene.user(None, ADA), scene.user("491", BO)] == ["491", "491", BO]


def test_any_history_keeps_persons_apart_and_never_moves_an_alias(scene: AliasScene) -> None:
    """Let persons inherit, show and hide numbers."""
    random_of = random.Random(7)
    for _ in range(40):
        fresh = AliasScene(scene._client, scene.clock)
        first: dict[str, str] = {}
        ids = {"491": [ADA, BO], "492": [BO, "US.eve"], "493": ["US.eve"]}
        for _step in range(15):
            number = random_of.choice(list(ids))
            user_id = random_of.choice(ids[number])
            user = fresh.user(random_of.choice([number, None]), user_id)
            assert first.setdefault(user_id, user) == user
        assert len(set(first.values())) == len(first)


# -- what it costs, and what bounds it ---------------------------------------------------------------------


def test_a_known_author_costs_no_request_until_the_copy_is_old(scene: AliasScene) -> None:
    requests = [_steps(scene, lambda: scene.user("491", ADA, instance=scene.instance)) for _ in range(3)]
    scene.clock.advance(ALIAS_COPY_LIFE_MS)
    requests.append(_steps(scene, lambda: scene.user(None, ADA, instance=scene.instance)))
    assert requests == [3, 0, 0, 1]
    assert scene.wire.made == ["get_item", "put_item", "put_item", "get_item"]


def test_an_instance_keeps_a_bounded_number_of_copies(scene: AliasScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("message_buffer.aliases.aliases.MAX_ALIASES_KEPT", 3)
    for number in range(5):
        scene.user(None, f"US.{number}", instance=scene.instance)
    assert [each.user for each in scene.instance._copies] == ["US.2", "US.3", "US.4"]
    assert MAX_ALIASES_KEPT >= 1_000


def test_after_a_year_an_alias_is_learned_again_even_before_dynamodb_deletes_it(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.clock.advance(ALIAS_LIFE_MS)
    assert [scene.user("491", BO), scene.user(None, ADA)] == ["491", ADA]


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
    assert scene.telemetry.counts["TablesUnreachable"] == 2


def test_in_an_outage_an_instance_uses_its_old_copies(scene: AliasScene) -> None:
    scene.user("491", ADA, instance=scene.instance)
    scene.clock.advance(100 * ALIAS_COPY_LIFE_MS)
    scene.wire.before = lambda _: failing()()
    assert [scene.user(None, ADA, instance=scene.instance), scene.user("491", ADA, instance=scene.instance)] == [
        "491",
        "491",
    ]


def test_a_table_that_fails_is_left_alone_for_a_while(scene: AliasScene) -> None:
    scene.wire.before = lambda _: failing()()
    for number in range(50):
        scene.user(None, f"US.{number}", instance=scene.instance)
    assert scene.telemetry.counts["TablesUnreachable"] == 1
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
        ids = AuthorIds(f"49{number}", f"US.{number}")
        scene.instance.conversation_of(ACCOUNT._replace(user=f"49{number}"), ids, learn=False)
    assert scene.clock() - began_ms <= MAX_LOOK_UP_MS_IN_A_WEBHOOK + 3 * 900
    scene.wire.before = lambda _: None
    scene.instance.begin_webhook()
    assert scene.user("49999", "US.999", instance=scene.instance) == "49999"


# -- forgetting --------------------------------------------------------------------------------------------


def forget(scene: AliasScene, user: str) -> int:
    conversation = ACCOUNT._replace(user=user)
    counted = scene.table.count(conversation, now_ms=scene.clock())
    assert scene.table.forget(conversation, now_ms=scene.clock()) == counted
    assert scene.table.count(conversation, now_ms=scene.clock()) == 0
    return counted


@pytest.mark.parametrize("user", ["491", ADA])
def test_a_forget_under_either_name_erases_both_and_no_other_persons(scene: AliasScene, user: str) -> None:
    scene.user("491", ADA)
    scene.user("491", BO)
    scene.user("493", "US.eve")
    assert forget(scene, user) == 2
    assert ADA not in str(scene.items())
    assert [scene.user(None, BO), scene.user(None, "US.eve")] == [BO, "493"]


def test_each_name_of_an_author_says_the_other(scene: AliasScene) -> None:
    scene.user("491", ADA)
    scene.user(None, BO)
    other = {
        user: scene.table.other_name(ACCOUNT._replace(user=user), now_ms=scene.clock()) for user in ("491", ADA, BO)
    }
    assert other == {"491": ACCOUNT._replace(user=ADA), ADA: ACCOUNT._replace(user="491"), BO: None}
