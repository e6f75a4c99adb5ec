"""Webhooks of WhatsApp and Twilio whose author is named by a number, by an id, or by both."""

import json
from typing import Any

import pytest

from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import MINUTE_MS
from tests.support.aliases import AliasScene
from tests.support.engine import Engine
from tests.support.ingest_scene import SECRET, Scene, texts, whatsapp

ADA, BO = "US.ada", "US.bo"
BY_NUMBER, BY_ID = "default/whatsapp/555/491", f"default/whatsapp/555/{ADA}"


@pytest.fixture
def aliases(database: Any, fake: Engine) -> AliasScene:
    return AliasScene(database, fake.clock)


@pytest.fixture
def scene(fake: Engine, aliases: AliasScene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch, aliases=aliases.another())


def said(message_id: str, number: str | None, user_id: str | None, text: str = "Hey", **fields: Any) -> Json:
    ids = {"from": number, "from_user_id": user_id}
    return {
        **{name: value for name, value in ids.items() if value},
        "id": message_id, "type": "text", "timestamp": "1700000000", "text": {"body": text}, **fields,
    }  # fmt: skip


def conversations(scene: Scene, body: Json, platform: str = "whatsapp") -> list[str]:
    status, answer = scene.post(platform, body)
    assert status == 200
    return list(answer["conversations"])


def test_a_burst_across_the_switch_is_one_batch(scene: Scene) -> None:
    for body in (said("m1", "491", ADA, "Hey"), said("m2", None, ADA, "I have"), said("m3", "491", ADA, "a question")):
        assert conversations(scene, whatsapp(body)) == [BY_NUMBER]
    assert texts(scene, BY_NUMBER) == ["Hey", "I have", "a question"]
    scene.engine.clock.advance(60_000)
    assert scene.engine.claim() == [BY_NUMBER]
    taken = scene.engine.store.take_batch(BY_NUMBER, "token")
    assert isinstance(taken, BatchTaken)
    assert len(taken.payloads) == 3


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"type": "edit", "edit": {"original_message_id": "m1", "message": {"type": "text", "text": {"body": "Ho"}}}},
         ["Ho", "More"]),
        ({"type": "revoke", "revoke": {"original_message_id": "m1"}}, ["More"]),
    ],
)  # fmt: skip
def test_an_edit_or_a_deletion_under_the_other_name_finds_the_message(
    scene: Scene, change: Json, left: list[str]
) -> None:
    scene.post("whatsapp", whatsapp(said("m1", "491", ADA), said("m2", "491", ADA, "More")))
    item = {"from_user_id": ADA, "id": "e", "timestamp": "1700000001", **change}
    status, answer = scene.post("whatsapp", whatsapp(item))
    assert (status, answer["changed"]) == (200, 1)
    assert texts(scene, BY_NUMBER) == left


def test_a_failed_delivery_under_the_other_name_belongs_to_the_conversation(scene: Scene) -> None:
    scene.post("whatsapp", whatsapp(said("m1", "491", ADA)))
    scene.post("whatsapp", whatsapp(statuses=[{"id": "wamid.9", "status": "failed", "recipient_user_id": ADA}]))
    ((kind, detail),) = scene.bus.published
    assert (kind, json.loads(detail)["conversationId"]) == ("messages.reply.failed", BY_NUMBER)


def test_an_author_with_a_buffer_in_a_group_keeps_it(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/555", {"tenant": "acme", "perAuthor": True})
    body = whatsapp(said("m1", "491", ADA, group_id="G1"), said("m2", None, ADA, group_id="G1"))
    (found,) = conversations(scene, body)
    assert found == "acme/whatsapp/555/G1%2F491"


# -- changed numbers, and odd bodies -----------------------------------------------------------------------

LONG_ACCOUNT, LONG_ID, HUGE = "5" * 900, "US." + "x" * 200, "4" * 5_000


@pytest.mark.parametrize(
    "odd",
    [
        whatsapp(said("m0", None, LONG_ID), account=LONG_ACCOUNT),
        whatsapp(said("m0", "491", LONG_ID), said("m00", "492", LONG_ID + "y"), account=LONG_ACCOUNT),
        whatsapp(said("m0", None, "US.odd"), contacts=[{"wa_id": HUGE, "user_id": "US.odd"}]),
        whatsapp(field="smb_message_echoes", account=LONG_ACCOUNT, message_echoes=[
            {"id": "e", "type": "text", "to": "491", "to_user_id": LONG_ID, "timestamp": "1700000000"}]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", [True, False])
def test_an_entry_with_an_impossible_name_harms_none_of_its_neighbours(scene: Scene, odd: Json, before: bool) -> None:
    good = whatsapp(said("m1", "491", ADA), said("m2", "492", BO))
    entries = [*odd["entry"], *good["entry"]] if before else [*good["entry"], *odd["entry"]]
    assert {BY_NUMBER, "default/whatsapp/555/492"} <= set(conversations(scene, good | {"entry": entries}))


# -- without the table, and unauthenticated clients --------------------------------------------------------


def test_without_a_table_the_name_that_came_is_the_key(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(fake, monkeypatch)
    found = [conversations(scene, whatsapp(said(f"m{n}", number, ADA)))[0] for n, number in enumerate(("491", None))]
    assert found == [BY_NUMBER, BY_ID]


def test_only_a_signer_with_authority_teaches_anything(scene: Scene, aliases: AliasScene) -> None:
    body = whatsapp(said("m1", "491", ADA))
    scene.secrets.text = json.dumps({"whatsapp": {"accounts": {"777": {"secret": SECRET}}}})
    assert scene.post("whatsapp", body)[0] == 401
    assert scene.post("whatsapp", body, secret="forged")[0] == 401
    assert aliases.wire.made == []


# -- Twilio ------------------------------------------------------------------------------------------------


def twilio(message_id: str, sender: str, **fields: str) -> Json:
    return {"MessageSid": message_id, "To": "whatsapp:+15558675310", "From": sender, "Body": "Hey", **fields}


def test_twilios_authors_keep_one_conversation(scene: Scene) -> None:
    forms = [
        twilio("m1", "whatsapp:+491", ExternalUserId=ADA),
        twilio("m2", f"whatsapp:{ADA}"),
        twilio("m3", "whatsapp:", ExternalUserIdentifier=ADA),
    ]
    for form in forms:
        assert scene.post("twilio", form)[0] == 200
    assert len(texts(scene, "default/twilio/whatsapp:15558675310/491")) == 3
    scene.post("twilio", twilio("m4", "whatsapp:+491", ExternalUserId=BO))
    assert len(texts(scene, f"default/twilio/whatsapp:15558675310/{BO}")) == 1


@pytest.mark.parametrize("holds", [True, False])
def test_a_person_who_answers_by_the_customers_id_is_subject_to_the_conversations_own_rules(
    scene: Scene, holds: bool
) -> None:
    scene.post("whatsapp", whatsapp(said("m1", "491", ADA)))
    on, off = {"onHumanReply": {"hold": "12h"}}, {"onHumanReply": None}
    scene.rules.write("stage", off if holds else on)
    scene.rules.write(f"conversation:{BY_NUMBER}", on if holds else off)
    scene.engine.clock.advance(MINUTE_MS)
    echo = {
        "to_user_id": ADA, "id": "wamid.9", "timestamp": str(scene.engine.clock.now_ms // 1_000),
        "type": "text", "text": {"body": "I am on it."},
    }  # fmt: skip
    scene.post("whatsapp", whatsapp(field="smb_message_echoes", message_echoes=[echo]))
    held_until_ms = scene.engine.store.peek_conversation(BY_NUMBER).held_until_ms
    assert bool(held_until_ms) is holds


@pytest.mark.parametrize("quota", [{"conversationsPerMinute": 1}, {"messagesPerMinute": 1}], ids=str)
def test_authors_whose_messages_are_refused_are_not_learned(scene: Scene, aliases: AliasScene, quota: Json) -> None:
    scene.rules.write("account:whatsapp/555", {"quota": quota})
    body = whatsapp(*(said(f"m{n}", f"49{n}", f"US.{n}") for n in range(20)))
    assert scene.post("whatsapp", body)[0] == 200
    assert len(scene.dead_letters.bodies) == 19
    # Two items of the author whose message was buffered, and two of the first one who was refused.
    assert len(aliases.items()) == 4
    scene.engine.clock.advance(MINUTE_MS)
    assert scene.post("whatsapp", body)[0] == 200
    assert len(aliases.items()) <= 8
