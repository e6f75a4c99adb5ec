"""Doors refuse wrong mappings when they are written, read bodies by their mappings, and check proofs of the sender."""

import base64
import copy
import hmac
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bufferctl.__main__ import main
from lambdas.ingest.platforms.base import MAX_SIGNATURE_AGE_MS, Incoming, Intake, Signer, Webhook
from lambdas.ingest.platforms.custom import Custom
from lambdas.ingest.service import MAX_WORK_MS_IN_A_WEBHOOK
from message_buffer.errors import InvalidInput, InvalidRules
from message_buffer.json_object import Json
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK, MAX_MESSAGE_ID_BYTES, SECRET_LIFE_MS
from message_buffer.messages.changes import Deleted, Edited, Reacted
from message_buffer.messages.message import MAX_ATTACHMENTS, MAX_MESSAGE_BYTES
from message_buffer.rules.door_expressions import (
    _FUNCTIONS,
    CHARACTERS_IN_A_STEP,
    MAX_EXPRESSION_CHARACTERS,
    MAX_SEPARATOR_CHARACTERS,
    MAX_STEPS_IN_A_WEBHOOK,
    Interpreter,
    TooManySteps,
    compile_expression,
)
from message_buffer.rules.doors import MAX_DOOR_BYTES, read_door
from tests.support.any_json import any_json
from tests.support.engine import Engine
from tests.support.ingest_scene import SECRETS, Scene, function_url, gateway
from tests.support.platforms import described
from tests.unit.test_webhook_cases import with_odd_values

ROOT = Path(__file__).parents[2]
EXAMPLES = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "examples/doors").glob("*.json")}
FIXTURES = sorted(
    path for path in (ROOT / "tests/fixtures/doors").glob("*/*.json") if not path.name.endswith(".expected.json")
)
RECEIVED_AT_MS = 1_795_000_000_000
KEY = "the key of the door"
ANYBODY = Signer(all_but=frozenset())
# The smallest valid mapping.
SMALL: Json = {
    "proof": {"type": "hmac", "header": "X-Proof", "algorithm": "sha256", "prefix": "sha256="},
    "conversation": "item.chat",
    "id": "item.id",
    "text": "item.text",
}
BODY: Json = {"chat": "c1", "id": "m1", "text": "Hey"}
CHAT = "default/custom/shop/c1"


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def read(mapping: Json, body: Any, *, name: str = "shop") -> Intake:
    webhook = Webhook("POST", "https://api.example.com", {}, {}, json.dumps(body).encode())
    return Custom(read_door(name, mapping)).read(webhook, signer=ANYBODY, received_at_ms=RECEIVED_AT_MS)


def message(mapping: Json, body: Any) -> Json:
    (update,) = read(mapping, body).updates
    assert isinstance(update, Incoming)
    return update.message.model_dump(by_alias=True, exclude_defaults=True)


# -- bodies of two products ------------------------------------------------------------------------


@pytest.mark.parametrize("fixture", FIXTURES, ids=name_of)
def test_the_examples_read_the_webhooks_of_their_products(fixture: Path) -> None:
    door = fixture.parent.name
    intake = read(EXAMPLES[door], json.loads(fixture.read_text("utf-8")), name=door)
    assert described(intake) == json.loads(fixture.with_suffix(".expected.json").read_text("utf-8"))


@pytest.mark.parametrize("fixture", FIXTURES, ids=name_of)
def test_an_odd_value_is_at_most_refused(fixture: Path) -> None:
    body = json.loads(fixture.read_text("utf-8"))
    for mapping in (EXAMPLES[fixture.parent.name], EXAMPLES[fixture.parent.name] | {"unreadable": "ignore"}):
        for _place, odd in with_odd_values(copy.deepcopy(body)):
            try:
                for update in read(mapping, odd).updates:
                    str(update.conversation).encode()
            except InvalidInput as error:
                assert "unreadable" not in mapping
                field = re.match(r"(?:(?:edited|deleted|reaction)\.)?(\w+)", str(error))
                assert field
                assert field[1] in {*mapping, "emoji"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(body=any_json(), in_list=st.booleans())
def test_no_json_breaks_a_door(body: Any, in_list: bool) -> None:
    mapping = SMALL | {"unreadable": "ignore"} | ({"items": "body"} if in_list else {})
    try:
        read(mapping, body)
    except InvalidInput:
        assert in_list


# -- what a mapping can say ------------------------------------------------------------------------


def test_a_list_has_items_and_an_expression_also_sees_the_whole_body() -> None:
    mapping = SMALL | {"items": "body.items", "conversation": "body.room.id", "account": "body.team"}
    body = {"team": 7, "room": {"id": "r/1"}, "items": [{"id": "m1", "text": 7}, {"id": 2, "text": "b"}]}
    updates = read(mapping, body).updates
    assert [(str(each.conversation), each.message.id, each.message.text) for each in updates] == [  # type: ignore[union-attr]
        ("default/custom/shop:7/r%2F1", "m1", "7"),
        ("default/custom/shop:7/r%2F1", "2", "b"),
    ]
    assert read(mapping, {"team": 7}).updates == []
    assert len(read(SMALL | {"items": "body"}, [BODY, BODY | {"id": "m2"}]).updates) == 2
    odd: Any
    for odd in (BODY, [{}] * (MAX_ITEMS_IN_A_WEBHOOK + 1)):
        with pytest.raises(InvalidInput, match=f"^items must be a list of at most {MAX_ITEMS_IN_A_WEBHOOK} items"):
            read(SMALL | {"items": "body"}, odd)


def test_a_message_has_few_attachments_because_a_body_has_room_for_a_million() -> None:
    mapping = SMALL | {"attachments": ["item.files[].{url: u}"]}
    most = MAX_ATTACHMENTS
    assert len(message(mapping, BODY | {"files": [{"u": "a"}] * most})["attachments"]) == most
    with pytest.raises(InvalidInput, match=rf"^attachments.0: a message has at most {most} attachments"):
        read(mapping, BODY | {"files": [{"u": "a"}] * (most + 1)})
    twice = mapping | {"attachments": ["item.photos", "item.files"]}
    with pytest.raises(InvalidInput, match=r"^attachments.1: "):
        read(twice, BODY | {"photos": [{}], "files": [{}] * most})


def test_an_attachment_says_its_type_in_the_products_words() -> None:
    mapping = SMALL | {"types": {"voice": "audio", "file": "document"}, "attachments": ["item.files"]}
    kinds: list[Json] = [
        {"type": "voice"},
        {"type": "file"},
        {"type": "share"},
        {"mimeType": "image/png"},
        {"type": ""},
    ]
    read_as = message(mapping, BODY | {"files": kinds})
    assert [each["type"] for each in read_as["attachments"]] == ["audio", "document", "share", "image", "document"]
    assert message(mapping, BODY | {"text": "", "files": kinds})["type"] == "audio"
    odd = read(mapping, BODY | {"files": {"type": 3}})
    assert odd.left_out_value == "attachments.0.type must be a text."


def test_part_gives_a_part_of_a_text_or_the_whole_text() -> None:
    mapping = SMALL | {"group": "part(item.chat, '@', `1`) == 'g.us'", "id": "part(item.id, '_', `2`)"}

    def is_group(chat: Any) -> bool:
        (update,) = read(mapping, BODY | {"chat": chat}).updates
        assert isinstance(update, Incoming)
        return update.group

    assert [is_group(chat) for chat in ("1@g.us", "1@c.us", "1", 1, "g.us", "1@g.us@x")] == [
        True, False, False, False, True, True,
    ]  # fmt: skip
    ids = {"true_1_a": "a", "true_1_a_b": "a", "a": "a", "true_1_": "true_1_", 7: "7"}
    assert {given: message(mapping, BODY | {"id": given})["id"] for given in ids} == ids
    for odd in (
        "part(item.id, '_', `-1`)",
        "part(item.id, '_', `true`)",
        "part(item.id, '', `1`)",
        "part(item.id, 'm', `1000000000000000000000`)",
        "part(item.id, `1`, `1`)",
    ):
        assert message(SMALL | {"text": f"{odd} || 'none'"}, BODY)["text"] in {"none", "m1"}, odd


@pytest.mark.parametrize(
    ("time_format", "given_time", "sent_at_ms"),
    [
        ("seconds", 1_700_000_000.25, 1_700_000_000_250),
        ("milliseconds", "1700000000250", 1_700_000_000_250),
        ("iso", "2023-11-14T23:13:20.250+01:00", 1_700_000_000_250),
    ],
)
def test_a_time_in_any_format_is_read(time_format: str, given_time: Any, sent_at_ms: int) -> None:
    mapping = SMALL | {"time": "item.at", "timeFormat": time_format}
    assert message(mapping, BODY | {"at": given_time})["sentAt"] == sent_at_ms


@pytest.mark.parametrize(
    ("time_format", "given_time"),
    [
        ("seconds", 1_700_000_000_000_000), ("seconds", -1), ("seconds", "soon"), ("seconds", float("nan")),
        ("seconds", True), ("milliseconds", "9" * 40), ("milliseconds", 10**400), ("iso", 1_700_000_000),
        ("iso", "2023-11-14T22:13:20"), ("iso", "2023-11-14T25:13:20Z"), ("iso", "0001-01-01T00:00:00+23:59"),
    ],
)  # fmt: skip
def test_a_time_of_another_format_is_left_out_and_named(time_format: str, given_time: Any) -> None:
    intake = read(SMALL | {"time": "item.at", "timeFormat": time_format}, BODY | {"at": given_time})
    (update,) = intake.updates
    assert isinstance(update, Incoming)
    assert (update.message.text, update.message.sent_at) == ("Hey", None)
    assert (intake.left_out_value or "").startswith("time must be ")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"chat": None}, "conversation is missing."),
        ({"id": ""}, "id is missing."),
        ({"id": 10**40}, "id must be a text or a whole number."),
        ({"id": "i" * 2_000}, f"id has more than {MAX_MESSAGE_ID_BYTES} bytes."),
        ({"chat": "ä" * 512}, "conversation: a conversation id has 1 to 1024 bytes; this one has "),
        ({"from": {}, "room": 1}, "author must be a text or a whole number."),
        ({"mark": {"x": 1}}, "reaction.emoji must be a text."),
    ],
)
def test_a_value_that_names_a_conversation_or_message_or_its_reaction_is_refused_if_it_does_not_fit(
    wrong: Json, problem: str
) -> None:
    mapping = SMALL | {
        "items": "body.items",
        "account": "item.team",
        "author": "item.from",
        "group": "item.room",
        "reaction": {"when": "item.mark", "emoji": "item.mark"},
    }
    with pytest.raises(InvalidInput) as refused:
        read(mapping, {"items": [BODY, BODY | wrong]})
    assert str(refused.value).startswith(f"item 1: {problem}")


@pytest.mark.parametrize("odd", [{}, [], True, {"body": "x"}])
@pytest.mark.parametrize("field", ["text", "type", "author", "authorName", "replyTo", "time"])
def test_any_other_value_that_does_not_fit_is_left_out_and_named(field: str, odd: Any) -> None:
    mapping = SMALL | {name: f"item.{name}" for name in ("type", "author", "replyTo", "time", "authorName")}
    body = BODY | {"author": "a", "authorName": "Ada", "replyTo": "m0"}
    intake = read(mapping, body | {field: odd})
    assert message(mapping, body | {field: odd}) == message(mapping, {**body, field: None})
    assert (intake.left_out_value or "").startswith(f"{field} must be ")
    assert read(mapping, body).left_out_value is None


def test_null_false_and_an_empty_text_are_no_value() -> None:
    mapping = SMALL | {"text": "item.location && item.text", "attachments": ["item.location && {url: item.text}"]}
    none: Any
    for none in (None, False, "", [], {}):
        intake = read(mapping | {"time": "item.location", "author": "item.location"}, BODY | {"location": none})
        assert intake.left_out_value is None or none in ([], {})
        assert message(mapping, BODY | {"location": none})["type"] == "unsupported"
    assert message(SMALL | {"author": "item.zero"}, BODY | {"zero": 0})["author"] == "0"
    assert read(SMALL | {"items": "body.gone && body"}, BODY | {"gone": False}).updates == []


def test_an_odd_value_of_an_attachment_is_left_out_and_named() -> None:
    mapping = SMALL | {"attachments": ["item.files[].{url: href, mimeType: mime, sizeBytes: size}", "item.map"]}
    place = {"type": "location", "latitude": "north", "longitude": 2}
    body = BODY | {"files": [{}, {"href": {}, "mime": "image/png", "size": "12"}], "map": place}
    assert message(mapping, body)["attachments"] == [
        {"type": "document"},
        {"type": "image", "mimeType": "image/png", "sizeBytes": 12},
        {"type": "location", "longitude": 2.0},
    ]
    assert read(mapping, body).left_out_value == "attachments.0.url must be a text or a whole number."
    for odd, problem in (
        ({"sizeBytes": -1}, "attachments.1.sizeBytes must be a number of bytes."),
        ({"sizebytes": 1}, "attachments.1 must give objects of type, url, id, mimeType, "),
        ("a.png", "attachments.1 must give objects of type, url, id, mimeType, "),
    ):
        assert (read(mapping, BODY | {"map": odd}).left_out_value or "").startswith(problem)


def test_a_wrong_type_gives_null_where_it_stands_and_not_for_the_whole_expression() -> None:
    mapping = SMALL | {"ignore": "starts_with(item.gone, 'x') || item.gone > `1` || item.own"}
    assert read(mapping, BODY | {"own": True}).ignored == {"filtered": 1}
    assert len(read(mapping, BODY).updates) == 1
    for expression in (
        "join(', ', item.names)",
        f"join('{'-' * (MAX_SEPARATOR_CHARACTERS + 1)}', item.letters)",
        "length(item.n)",
        "contains(item.n, 'a')",
        "item.n < 'a'",
        "item[].x[]",
    ):
        found = read(
            SMALL | {"text": f"{expression} || 'else'"}, BODY | {"names": ["a", 1], "letters": ["a", "b"], "n": 5}
        )
        assert found.updates[0].message.text == "else", expression  # type: ignore[union-attr]


def test_what_is_ignored_is_nothing_else_and_a_deletion_comes_before_an_edit() -> None:
    kinds: Json = {name: {"when": f"item.{name} == `true`"} for name in ("reaction", "edited", "deleted")}
    kinds["reaction"]["emoji"] = "item.emoji"
    mapping = SMALL | {"ignore": "item.own", "when": "item.kind == 'message'", **kinds}
    assert read(mapping, BODY | {"kind": 1}).ignored == {"unknown": 1}
    marks: Json = {"kind": "message"}
    for mark, kind in ((None, Incoming), ("reaction", Reacted), ("edited", Edited), ("deleted", Deleted)):
        marks |= {} if mark is None else {mark: True}
        (update,) = read(mapping, BODY | marks).updates
        assert isinstance(update, kind)
    assert read(mapping, BODY | marks | {"own": True}).ignored == {"filtered": 1}


def test_what_cannot_be_read_may_be_left_out_and_its_neighbours_are_kept() -> None:
    items = {"items": [{"id": "m0"}, BODY, BODY | {"id": [], "text": "x"}]}
    intake = read(SMALL | {"items": "body.items", "unreadable": "ignore"}, items)
    assert (len(intake.updates), intake.ignored) == (1, {"unreadable": 2})


# -- wrong mappings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"conversaton": "c"}, "conversaton: unknown field; did you mean conversation?"),
        ({"proof": {"type": "hmac", "headr": "X"}}, "proof.headr: unknown field; did you mean header?"),
        ({"proof": {"type": "hmac", "header": "X", "algorithm": "md5"}}, "proof.algorithm: got 'md5'; use sha256, sha"),
        ({"proof": {"type": "hmac", "header": "X"}}, "proof.algorithm: is missing"),
        ({"proof": {"type": "token"}}, "proof.header: is missing"),
        ({"proof": {"type": "basic", "timeHeader": "x"}}, "proof.timeHeader: unknown field of basic; remove it"),
        ({"proof": {"type": "none"}}, "proof.type: got 'none'; use hmac, token or basic"),
        ({"id": "/payload/id"}, "id: is not a JMESPath expression: "),
        ({"id": ["item.id"]}, "id: use a JMESPath expression of at most 2000 characters, such as item.payload.id"),
        (
            {"text": "part(item.id, '_', 2)"},
            "text: is not a JMESPath expression: invalid token: Parse error at column 19",
        ),
        ({"text": "payload.text"}, "text: sees only item and body; begin with one of them, such as item.payload.id"),
        ({"text": "part(item.id)"}, "text: part needs 3 arguments, not 1"),
        ({"text": "map(&x, item.all)"}, "text: unknown function map; use one of contains, "),
        ({"when": "!item.payload.own"}, "when: ! binds tighter than a full stop; use parentheses, such as !(item.p"),
        ({"timeFormat": "s"}, "timeFormat: got 's'; use seconds, milliseconds or iso"),
        ({"attachments": ["item.a", 3]}, "attachments.1: use a JMESPath expression"),
        ({"attachments": "item.a"}, "attachments: got 'item.a'; use a list of JMESPath expressions"),
        ({"types": {"a": ""}}, "types.a: got ''; use "),
        ({"deleted": {"when": "item.d", "text": "item.t"}}, "deleted.text: unknown field; use one of"),
        ({"edited": {"when": "item["}}, "edited.when: is not a JMESPath expression: "),
        ({"reaction": {"when": "item.r"}}, "reaction.emoji: is missing; use a JMESPath expression"),
    ],
)
def test_a_wrong_mapping_is_refused_with_the_place(change: Json, problem: str) -> None:
    with pytest.raises(InvalidRules) as refused:
        read_door("shop", SMALL | change)
    assert any(line.startswith(problem) for line in str(refused.value).splitlines()), str(refused.value)


@settings(max_examples=200)
@given(mapping=any_json())
def test_no_mapping_breaks_its_reader(mapping: Any) -> None:
    with pytest.raises(InvalidRules):
        read_door("shop", mapping)


# -- hostile expressions ---------------------------------------------------------------------------


def expressions() -> st.SearchStrategy[str]:
    """Return expressions that are mostly valid, and mostly do more than a mapping needs."""
    leaves = st.sampled_from(
        [
            "body",
            "item",
            "@",
            "*",
            "item.a",
            "[]",
            "[*]",
            "[0]",
            "'x'",
            "''",
            "`[1, [2]]`",
            "`-1`",
            "null",
            "a.b[].c",
            "[-1]",
        ]
    )

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        call = st.builds("{}({})".format, st.sampled_from([*_FUNCTIONS, "map", "sort"]), inner)
        twice = st.builds("{0}({1}, {2})".format, st.sampled_from(["join", "contains", "ends_with"]), inner, inner)
        pair = st.builds("{1}{0}{2}".format, st.sampled_from(["|", "||", "&&", "==", "<", "."]), inner, inner)
        form = st.sampled_from(["[{0}, {0}]", "[{0}, {0}][]", "({0})[]", "!{0}", "({0})[?{0}]", "*.{{a: {0}}}", "&{0}"])
        return st.one_of(
            call, twice, pair, st.builds(str.format, form, inner), st.builds("part({0},{0},`1`)".format, inner)
        )

    return st.recursive(leaves, larger, max_leaves=30)


@settings(max_examples=500)
@given(expression=expressions(), body=any_json())
def test_no_expression_takes_more_than_its_steps(expression: str, body: Any) -> None:
    try:
        tree = compile_expression(expression)
    except InvalidInput:
        return
    with suppress(TooManySteps):
        CountedInterpreter(body).visit(tree, {"body": body, "item": body})


class CountedInterpreter(Interpreter):
    """Checks that everything an evaluation makes was paid for with steps, beside what stands in the body."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.visits, self.free = 0, len(json.dumps(body)) + MAX_EXPRESSION_CHARACTERS

    def visit(self, node: Json, value: Any) -> Any:
        self.visits += 1
        found = super().visit(node, value)
        a_step = CHARACTERS_IN_A_STEP + MAX_SEPARATOR_CHARACTERS if isinstance(found, str) else 1
        assert not isinstance(found, list | str) or len(found) <= self.free + self.steps * a_step
        assert self.visits <= self.steps <= MAX_STEPS_IN_A_WEBHOOK
        return found


DOUBLED = " | ".join(["[@, @][]"] * 30)
# Of few lists, but anything that follows it into all of them would never end.
SHARED = " | ".join(["[@, @]"] * 40)


@pytest.mark.parametrize(
    "expression",
    [
        DOUBLED,
        " | ".join(["[@, @, @, @, @, @, @, @]"] * 7 + ["[] | [] | [] | [] | [] | [] | [] | []"]),
        " | ".join(["join('', [@, @])"] * 40).replace("@", "body.text", 2),
        f"({SHARED}) == ({SHARED})",
        f"({SHARED}) | length(@)",
        f"[{', '.join(['body.many == body.many'] * 30)}]",
        "[body.many, body.many][][].{a: [body.many[], body.many[]]}[].a[][]",
        f"[{', '.join(['contains(body.text, `1`)', 'contains(body.text, body.text)'] * 30)}]",
        "body.many[].[@, @, @, @, @, @, @, @, @, @][] | [].[@, @, @, @, @, @, @, @, @, @][]",
    ],
)
def test_an_expression_that_grows_what_it_reads_is_stopped(expression: str) -> None:
    body = {"many": [[number] for number in range(20_000)], "text": "x" * 1_000_000}
    with pytest.raises(TooManySteps):
        CountedInterpreter(body).visit(compile_expression(expression), {"body": body, "item": body})


@pytest.mark.parametrize("expression", ["body.a == body.b", "body.a != body.b", "contains([body.a], body.b)"])
def test_lists_that_are_nested_too_deeply_to_be_compared_give_null(expression: str) -> None:
    body: Json = {"a": [], "b": []}
    for _ in range(20_000):
        body = {name: [value] for name, value in body.items()}
    assert Interpreter().visit(compile_expression(expression), {"body": body, "item": body}) is None


def test_the_items_of_a_webhook_share_its_steps_and_too_many_refuse_it() -> None:
    mapping = SMALL | {"items": "body", "text": "length(body)", "unreadable": "refuse"}
    items = [BODY | {"id": f"m{number}", "padding": [0] * 50} for number in range(MAX_ITEMS_IN_A_WEBHOOK)]
    assert len(read(mapping, items[:50]).updates) == 50
    with pytest.raises(TooManySteps, match=f"^The mapping needs more than {MAX_STEPS_IN_A_WEBHOOK} steps"):
        read(mapping, items)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 500 + "item" + ")" * 500,
        "!" * 900 + "item",
        "[" * 900 + "item" + "]" * 900,
        " | ".join(["item"] * 90),
        "`" + "[" * 990 + "]" * 990 + "`",
        "a" * 2_001,
        "item[::2]",
        "sort_by(item, &a)",
    ],
)
def test_an_expression_that_is_too_deep_or_long_is_refused(expression: str) -> None:
    with pytest.raises(InvalidInput):
        compile_expression(expression)


# -- through ingest --------------------------------------------------------------------------------


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(fake, monkeypatch)
    scene.rules.write("door:shop", SMALL)
    keep_secrets(scene, {"custom/shop": KEY})
    return scene


def keep_secrets(scene: Scene, secrets: Json) -> None:
    scene.secrets.text = json.dumps(SECRETS | secrets)
    scene.secrets_now_ms += SECRET_LIFE_MS + 1


def door_event(body: Any, headers: dict[str, str], *, door: str = "shop", method: str = "POST") -> Json:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    event = gateway("custom", raw, headers=headers, method=method)
    event["routeKey"] = f"{method} /webhook/{{platform}}/{{door}}"
    event["pathParameters"]["door"] = door
    return event


def proof(body: Any, key: str = KEY) -> dict[str, str]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return {"X-Proof": "sha256=" + hmac.digest(key.encode(), raw, "sha256").hex()}


def test_a_message_through_a_door_is_buffered_once(scene: Scene) -> None:
    for accepted, duplicates in ((1, 0), (0, 1)):
        status, answer = scene.call(door_event(BODY, proof(BODY)))
        assert (status, answer["accepted"], answer["duplicates"]) == (200, accepted, duplicates)
        assert answer["conversations"][CHAT]["count"] == 1
    assert [each["text"] for each in scene.buffered(CHAT)] == ["Hey"]


def test_at_ingests_own_address_the_path_names_the_door(scene: Scene) -> None:
    raw = json.dumps(BODY).encode()
    assert scene.call(function_url("/webhook/custom/shop", raw, headers=proof(BODY)))[0] == 200
    assert [each["text"] for each in scene.buffered(CHAT)] == ["Hey"]
    for path in ("/webhook/custom/", "/webhook/custom/other", "/typing/custom/shop", "/webhook/generic/shop"):
        assert scene.call(function_url(path, raw, headers=proof(BODY)))[0] == 404


@pytest.mark.promise("P9")
@pytest.mark.parametrize("headers", [{}, {"X-Proof": ""}, {"X-Proof": "sha256="}, proof(BODY, "another"), proof(b"x")])
def test_without_the_proof_nothing_is_read(scene: Scene, headers: dict[str, str]) -> None:
    assert scene.call(door_event(BODY, headers))[0] == 401
    assert scene.is_empty()
    assert ("warning", "custom/shop") in {(level, fields["platform"]) for level, _, fields in scene.telemetry.lines}


@pytest.mark.promise("P9")
def test_the_secret_of_one_door_opens_no_other(scene: Scene) -> None:
    scene.rules.write("door:other", SMALL | {"account": "item.account"})
    keep_secrets(scene, {"custom/shop": KEY, "custom/other": "the other key"})
    assert scene.call(door_event(BODY, proof(BODY, "the other key")))[0] == 401
    body = BODY | {"account": "shop"}
    status, answer = scene.call(door_event(body, proof(body, "the other key"), door="other"))
    assert (status, list(answer["conversations"])) == (200, ["default/custom/other:shop/c1"])


def test_the_progress_of_one_door_says_nothing_about_another_with_the_same_body(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of doors were compared only in their first 25 characters, so the second door's messages were lost."""
    doors = [f"the-webhook-of-our-customer-{n}" for n in (1, 2)]
    for door in doors:
        scene.rules.write(f"door:{door}", SMALL | {"items": "body.all"})
    keep_secrets(scene, {f"custom/{door}": KEY for door in doors})
    body = {"all": [BODY | {"id": f"m{n}"} for n in range(30)]}
    buffer = ValkeyLane.buffer_message

    def slowly(lane: ValkeyLane, *given: Any, **named: Any) -> Any:
        scene.engine.clock.advance(MAX_WORK_MS_IN_A_WEBHOOK // 4 + 1)
        return buffer(lane, *given, **named)

    with monkeypatch.context() as patched:
        patched.setattr(ValkeyLane, "buffer_message", slowly)
        assert scene.call(door_event(body, proof(body), door=doors[0]))[0] == 503
    status, answer = scene.call(door_event(body, proof(body), door=doors[1]))
    assert (status, answer["accepted"]) == (200, 30)


def test_a_door_without_a_secret_is_shut(scene: Scene) -> None:
    keep_secrets(scene, {})
    assert scene.call(door_event(BODY, proof(BODY)))[0] == 401


@pytest.mark.parametrize(
    ("described", "header"),
    [
        ({"type": "token", "header": "X-Token"}, {"x-token": KEY}),
        ({"type": "token", "header": "Authorization", "prefix": "Bearer "}, {"Authorization": f"Bearer {KEY}"}),
        ({"type": "basic"}, {"Authorization": f"basic {base64.b64encode(KEY.encode()).decode()}"}),
        (
            {"type": "hmac", "header": "X-Sig", "algorithm": "sha512"},
            {"X-Sig": hmac.digest(KEY.encode(), json.dumps(BODY).encode(), "sha512").hex().upper()},
        ),
        (
            {"type": "hmac", "header": "X-Sig", "algorithm": "sha1", "encoding": "base64", "prefix": "v1,"},
            {"X-Sig": "v1," + base64.b64encode(hmac.digest(KEY.encode(), json.dumps(BODY).encode(), "sha1")).decode()},
        ),
    ],
    ids=["token", "bearer", "basic", "sha512", "base64"],
)
def test_every_kind_of_proof_is_checked(scene: Scene, described: Json, header: dict[str, str]) -> None:
    scene.rules.write("door:shop", SMALL | {"proof": described})
    ((name, value),) = header.items()
    for wrong in (value[:-1], f"{value}x", f"x{value}", value.replace("e", "f", 1) + "\ud83d", ""):
        assert scene.call(door_event(BODY, {name: wrong}))[0] == 401
    assert scene.call(door_event(BODY, {"X-Other": value}))[0] == 401
    assert scene.is_empty()
    assert scene.call(door_event(BODY, header))[0] == 200


def test_a_signature_may_cover_a_time_which_must_be_near(scene: Scene) -> None:
    described = {"type": "hmac", "header": "X-Sig", "algorithm": "sha256", "prefix": "sha256=", "timeHeader": "X-Time"}
    scene.rules.write("door:shop", SMALL | {"proof": described})
    raw, now_ms = json.dumps(BODY).encode(), scene.engine.clock.now_ms

    def status(time: str | None, *, signed: str | None = None) -> int:
        covered = (time or "" if signed is None else signed).encode() + b"." + raw
        header = {"X-Sig": "sha256=" + hmac.digest(KEY.encode(), covered, "sha256").hex()}
        return int(scene.call(door_event(BODY, header | ({} if time is None else {"X-Time": time})))[0])

    now_seconds, too_far = now_ms // 1_000, MAX_SIGNATURE_AGE_MS // 1_000 + 1
    for time in (str(now_seconds - too_far), str(now_seconds + too_far), "", "soon", "-1", "9" * 400, None):
        assert status(time) == 401
    # The time of a captured webhook cannot be replaced, and a signature of the body alone is none.
    assert status(str(now_seconds), signed=str(now_seconds - too_far)) == 401
    assert scene.call(door_event(BODY, {"X-Sig": proof(BODY)["X-Proof"], "X-Time": str(now_seconds)}))[0] == 401
    assert scene.is_empty()
    assert status(str(now_seconds)) == status(str(now_ms)) == 200


@pytest.mark.parametrize("door", ["none", "", "../shop", "d" * 5_000])
def test_an_unknown_door_is_an_unknown_platform(scene: Scene, door: str) -> None:
    assert scene.call(door_event(BODY, proof(BODY), door=door)) == scene.call(gateway("nosuch", b"{}"))
    assert scene.call(door_event(BODY, proof(BODY), door=door))[0] == 404


def test_no_other_platform_has_doors_and_doors_have_no_other_routes(scene: Scene) -> None:
    event = door_event(BODY, proof(BODY))
    event["pathParameters"]["platform"] = "generic"
    assert scene.call(event)[0] == 404
    assert scene.call(gateway("custom", b"{}"))[0] == 404
    typing = door_event(BODY, proof(BODY)) | {"routeKey": "POST /typing/{platform}"}
    assert scene.call(typing)[0] == 404
    assert scene.call(door_event(b"", {}, method="GET"))[0] == 403


def test_before_the_doors_were_read_once_the_sender_is_asked_to_come_again(
    fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(fake, monkeypatch)
    scene.rules.is_away = True
    assert scene.call(door_event(BODY, proof(BODY), door="d" * 5_000))[0] == 503
    assert "ddd" not in str(scene.telemetry.lines)


def test_a_mapping_that_was_written_by_hand_and_is_wrong_is_no_door(scene: Scene) -> None:
    scene.rules.write("door:hand", SMALL | {"text": "/text"})
    assert scene.call(door_event(BODY, proof(BODY), door="hand"))[0] == 404
    assert scene.telemetry.counts["RulesSkipped"] == 1


def test_a_value_that_is_left_out_is_logged_once_for_a_webhook(scene: Scene) -> None:
    scene.rules.write("door:shop", SMALL | {"items": "body.items", "type": "item.type"})
    body = {"items": [BODY | {"type": {}}, BODY | {"id": "m2", "type": []}]}
    assert scene.call(door_event(body, proof(body)))[0] == 200
    assert scene.telemetry.said("value left out") == [
        {"platform": "custom/shop", "reason": "item 0: type must be a text."}
    ]


def test_a_door_is_charged_beside_the_account_that_its_sender_names(scene: Scene) -> None:
    scene.rules.write("door:shop", SMALL | {"account": "item.team"})
    scene.rules.write("account:custom/shop", {"quota": {"messagesPerMinute": 3}})
    scene.rules.write("account:custom/shop:7", {"quota": {"messagesPerMinute": 1}})
    scene.rules.write("account:custom/shop:8", {"quota": {"messagesPerMinute": 100}})
    statuses = []
    for number, team in enumerate((7, 7, 7, 8, 8, 8, 9)):
        body = BODY | {"id": f"m{number}", "team": team}
        statuses.append(scene.call(door_event(body, proof(body)))[0])
    assert statuses == [200, 429, 429, 200, 200, 429, 429], "what account 7 is refused costs the door nothing"


def test_a_sender_that_does_not_come_again_is_not_refused_by_a_quota(scene: Scene) -> None:
    scene.rules.write("door:shop", SMALL | {"comesAgain": False})
    scene.rules.write("account:custom/shop", {"quota": {"messagesPerMinute": 1}})
    for number in range(3):
        body = BODY | {"id": f"m{number}"}
        assert scene.call(door_event(body, proof(body)))[0] == 200
    assert len(scene.buffered(CHAT)) == 3


# -- bufferctl -------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    mapping, body = tmp_path / "shop.json", tmp_path / "body.json"
    mapping.write_text(json.dumps(SMALL))
    body.write_text(json.dumps(BODY))
    return mapping, body


def test_bufferctl_shows_what_a_body_becomes(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["door", "try", *map(str, files)]) == 0
    ((shown),) = json.loads(capsys.readouterr().out)
    assert (shown["is"], shown["conversation"], shown["message"]["text"]) == ("sent", CHAT, "Hey")
    assert main(["door", "try", *map(str, files), "--name", "other"]) == 0
    assert "default/custom/other/c1" in capsys.readouterr().out


def test_bufferctl_says_what_is_wrong_with_a_mapping_or_a_body(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mapping, body = files
    body.write_text(json.dumps(BODY | {"id": {}}))
    assert main(["door", "try", str(mapping), str(body)]) == 1
    assert capsys.readouterr().err == "This body would be refused: id must be a text or a whole number.\n"
    mapping.write_text(json.dumps(SMALL | {"unreadable": "ignore"}))
    assert main(["door", "try", str(mapping), str(body)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["ignored"] == "unreadable"
    mapping.write_text(json.dumps(SMALL | {"texd": "item.text"}))
    assert main(["door", "try", str(mapping), str(body)]) == 1
    assert "texd: unknown field; did you mean text?" in capsys.readouterr().err
    mapping.write_text("{")
    assert main(["door", "try", str(mapping), str(body)]) == 2
    assert main(["door", "try", str(mapping.with_name("none")), str(body)]) == 2
    assert main(["door", "try", *map(str, files), "--name", "A/B"]) == 2


def test_a_reply_to_an_id_that_no_message_can_have_is_kept_without_it() -> None:
    found = message(SMALL | {"replyTo": "item.to"}, BODY | {"to": "ä" * 513})
    assert (found["text"], "replyTo" in found) == ("Hey", False)


def test_bufferctl_says_that_a_message_is_too_large_for_ingest(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mapping, body = files
    body.write_text(json.dumps(BODY | {"text": "x" * MAX_MESSAGE_BYTES}))
    assert main(["door", "try", *map(str, files)]) == 1
    assert "This body would be refused: the message takes" in capsys.readouterr().err
    mapping.write_text(json.dumps(SMALL | {"unreadable": "ignore"}))
    assert main(["door", "try", *map(str, files)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["ignored"] == "unreadable"


def test_every_problem_of_a_mapping_is_named() -> None:
    with pytest.raises(InvalidRules) as refused:
        read_door("shop", {"proof": {"type": "basic"}, "unreadable": 1})
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == ["conversation", "id", "unreadable"]


def test_bufferctl_tries_no_door_that_could_not_be_stored(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mapping, _ = files
    types = {f"{number}{'x' * 120}": "y" * 128 for number in range(64)}
    mapping.write_text(json.dumps(SMALL | {"types": types}))
    assert main(["door", "try", *map(str, files)]) == 1
    assert f"at most {MAX_DOOR_BYTES} bytes" in capsys.readouterr().err
    assert main(["door", "try", *map(str, files), "--name", "A/B"]) == 2
