"""To which tenant, agent and conversation ingest assigns a message."""

import json

import pytest

from message_buffer.json_object import Json
from message_buffer.limits import MIN_MS_BETWEEN_RULES_CHECKS
from tests.support.ingest_scene import Scene, message, texts, waits_ms

GROUP = "-100"


def telegram(text: str, *, message_id: int = 1, author: int = 7, edited: bool = False) -> Json:
    told = {
        "message_id": message_id, "from": {"id": author}, "chat": {"id": int(GROUP), "type": "supergroup"},
        "date": 1_700_000_000, "text": text,
    }  # fmt: skip
    return {"update_id": 1, ("edited_message" if edited else "message"): told}


def test_what_a_message_says_of_itself_goes_before_what_is_known_of_its_account(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme", "agent": "sales"})
    scene.rules.write("agent:acme/sales", {"silenceMs": 77, "typingInferenceMs": 0})
    scene.rules.write("agent:acme/support", {"silenceMs": 88, "typingInferenceMs": 0})
    _, answer = scene.post("generic", message(agent="support"))
    assert waits_ms(scene, answer, "acme/generic/shop/c1") == 88
    _, answer = scene.post("generic", message(tenant="other"))
    assert waits_ms(scene, answer, "other/generic/shop/c1") == 1_000


@pytest.mark.promise("P9")
def test_who_has_an_accounts_secret_alone_writes_in_the_name_of_no_other_tenant(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"generic": {"secret": "everybodys", "accounts": {"shop": "the shop's"}}})
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    status, answer = scene.post("generic", [message("m1"), message("m2", tenant="other")], secret="the shop's")
    assert (status, answer["error"].partition(":")[0]) == (400, "[1].tenant may not be named here")
    assert scene.is_empty()
    assert scene.post("generic", message(tenant="default"), secret="the shop's")[0] == 200
    assert texts(scene, "acme/generic/shop/c1") == ["Hey"]


@pytest.mark.promise("P9")
def test_who_has_an_accounts_secret_alone_names_no_agent_but_that_of_the_rules(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"generic": {"secret": "everybodys", "accounts": {"shop": "the shop's"}}})
    scene.rules.write("account:generic/shop", {"tenant": "acme", "agent": "sales"})
    for named in (message(agent="support"), message(agent="support", edited=True)):
        status, answer = scene.post("generic", named, secret="the shop's")
        assert (status, answer["error"].partition(":")[0]) == (400, "agent may not be named here")
    assert scene.is_empty()
    assert scene.post("generic", message(agent="sales"), secret="the shop's")[0] == 200
    assert texts(scene, "acme/generic/shop/c1") == ["Hey"]


def test_a_group_is_one_buffer_or_one_an_author(scene: Scene) -> None:
    scene.post("telegram", telegram("one", message_id=1, author=7))
    scene.post("telegram", telegram("two", message_id=2, author=8))
    assert texts(scene, f"default/telegram/shopbot/{GROUP}") == ["one", "two"]
    scene.rules.write("account:telegram/shopbot", {"perAuthor": True})
    scene.engine.clock.advance(MIN_MS_BETWEEN_RULES_CHECKS)
    scene.post("telegram", telegram("three", message_id=3, author=7))
    scene.post("telegram", telegram("four", message_id=4, author=8))
    scene.post("telegram", telegram("drei", message_id=3, author=7, edited=True))
    assert texts(scene, f"default/telegram/shopbot/{GROUP}%2F7") == ["drei"]
    assert texts(scene, f"default/telegram/shopbot/{GROUP}%2F8") == ["four"]


def test_an_owner_whose_name_fits_into_no_id_costs_no_message(scene: Scene) -> None:
    scene.rules.write("account:telegram/shopbot", {"tenant": "a" * 1_024})
    scene.post("telegram", telegram("Hey"))
    assert texts(scene, f"default/telegram/shopbot/{GROUP}") == ["Hey"]
    assert scene.telemetry.counts["RulesSkipped"] == 1


@pytest.mark.promise("P9")
def test_a_new_instance_without_the_table_takes_no_message_for_the_wrong_tenant(scene: Scene) -> None:
    scene.rules.write("account:generic/shop", {"tenant": "acme"})
    scene.rules.is_away = True
    assert scene.post("generic", message())[0] == 503
    assert scene.is_empty()
    scene.rules.is_away = False
    scene.engine.clock.advance(5_000)
    status, answer = scene.post("generic", message())
    assert (status, list(answer["conversations"])) == (200, ["acme/generic/shop/c1"])
