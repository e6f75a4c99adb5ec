"""What the console's server answers to its page."""

import asyncio
import json
import random
from contextlib import suppress
from typing import Any
from unittest.mock import PropertyMock

import pytest
from botocore.exceptions import ClientError

from bufferctl.doctor import Report
from bufferctl.errors import Unreachable
from message_buffer.json_object import Json
from message_buffer.tuning.curve import going_on
from tests.support.asgi import Answer, call
from tests.support.console import ImitatedPlace, ImitatedStage, row
from tests.support.gaps import counts_of
from tools.console import server
from tools.console.history import History
from tools.console.running import make_parts
from tools.console.senders import SenderResponse
from tools.console.server import make_app

ACT = {"platform": "generic", "account": "shop", "user": "1", "tenant": "acme", "kind": "text", "text": "Hey"}


class Place(ImitatedPlace):
    """A place with a stage that may be changed, and whose webhook answers as the test says."""

    def __init__(self, response: SenderResponse | Exception, **options: Any) -> None:
        super().__init__(ImitatedStage(), allow_changes=True, sends={"generic": ("text",)}, **options)
        self._response = response

    def send(self, _platform: str, _posted: Any) -> SenderResponse:
        if isinstance(self._response, Exception):
            raise self._response
        return self._response


def post(place: ImitatedPlace, path: str, wish: Json) -> Answer:
    return call(make_app(make_parts(place)), "POST", path, body=json.dumps(wish).encode())


@pytest.mark.parametrize(
    ("body", "conversation"),
    [
        ({}, "acme/generic/shop/1"),
        ({"conversations": {}}, "acme/generic/shop/1"),
        ({"conversations": {"other/generic/shop/1": {"dueAt": 7, "count": 2}}}, "other/generic/shop/1"),
    ],
)
def test_a_webhook_is_answered_with_the_conversation_that_the_stage_names(body: Json, conversation: str) -> None:
    answer = post(Place(SenderResponse(200, body)), "/api/act", ACT).json
    assert (answer["conversation"], answer["status"], answer["answer"]) == (conversation, 200, body)
    assert answer.get("dueAt") == (7 if body.get("conversations") else None)


def test_a_customer_whose_webhook_cannot_be_signed_gets_a_sentence() -> None:
    """Reproduce a defect: the page said only that the console answered 500."""
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "not allowed"}}, "GetSecretValue")
    answer = post(Place(refused), "/api/act", ACT)
    assert (answer.status, answer.json) == (409, {"problem": "AWS refuses GetSecretValue: not allowed"})


@pytest.mark.parametrize(
    ("wish", "status"),
    [
        ({"kind": "nonsense"}, 409),
        ({"platform": "telegram"}, 409),
        ({"text": "x" * 4_001}, 400),
        ({"user": ""}, 400),
        ({"other": 1}, 400),
    ],
)
def test_a_webhook_that_cannot_be_sent_is_refused(wish: Json, status: int) -> None:
    answer = post(Place(SenderResponse(200, {})), "/api/act", ACT | wish)
    assert (answer.status, bool(answer.json["problem"])) == (status, True)


@pytest.mark.parametrize(
    ("path", "wish"),
    [("/api/act", ACT), ("/api/operate", {"conversation": "t/p/a/u", "operation": "flush"})],
)
def test_a_console_that_only_reads_changes_nothing(path: str, wish: Json) -> None:
    stage = ImitatedStage()
    assert post(ImitatedPlace(stage, sends={"generic": ("text",)}), path, wish).status == 403
    assert (stage.asked, stage.posted) == ([], [])


@pytest.mark.parametrize("show_words", [False, True])
def test_messages_are_asked_for_only_if_words_may_be_shown(show_words: bool) -> None:
    stage = ImitatedStage()
    stage.rows = [row("t/p/a/u", due_at_ms=1, text="a secret")]
    wish = {"conversation": "t/p/a/u", "messages": True}
    answer = post(ImitatedPlace(stage, show_words=show_words), "/api/conversation", wish)
    assert (b"a secret" in answer.body) == show_words
    assert answer.json["waiting"]["why"]["rule"] == "silenceMs"
    assert stage.asked[-1][1]["messages"] == show_words


@pytest.mark.parametrize("show_words", [False, True])
def test_an_event_is_kept_as_it_came_with_words_only_if_they_may_be_shown(show_words: bool) -> None:
    parts = make_parts(ImitatedPlace(ImitatedStage(), show_words=show_words))
    event = {"id": "e1", "detail-type": "messages.amended", "detail": {"conversationId": "t/p/a/u", "text": "a word"}}
    seen = event if show_words else event | {"detail": {"conversationId": "t/p/a/u"}}
    parts.bus._understand({"event": event, "at": 1})
    answer = call(make_app(parts), "GET", "/event/e1")
    assert (answer.status, answer.json) == (200, seen)
    assert parts.history.events[0]["id"] == "e1"
    assert call(make_app(parts), "GET", "/event/e2").status == 404


def test_an_operators_command_is_in_the_time_line() -> None:
    place = Place(SenderResponse(200, {}))
    parts = make_parts(place)
    hold = {"conversation": "t/p/a/u", "operation": "hold", "holdMs": 60_000}
    assert call(make_app(parts), "POST", "/api/operate", body=json.dumps(hold).encode()).status == 200
    assert [entry["kind"] for entry in parts.history.of("t/p/a/u")] == ["operator: hold"]


def test_a_search_finds_open_conversations_then_kept_ones_then_an_exact_id() -> None:
    place = Place(SenderResponse(200, {}))
    place.stage.rows = [row("t/p/a/Ada", due_at_ms=5)]
    parts = make_parts(place)
    parts.polls.sweep()
    for at_ms, name in enumerate(("t/p/a/ada-1", "t/p/a/ada-2", "t/p/a/bo")):
        parts.history.add(name, "poll", at_ms)

    def found(text: str) -> list[tuple[str, str | None, int | None]]:
        answer = call(make_app(parts), "POST", "/api/search", body=json.dumps({"text": text}).encode()).json
        return [(each["conversation"], each["state"], each["lastAt"]) for each in answer["conversations"]]

    assert [name for name, *_ in found("ADA")] == ["t/p/a/Ada", "t/p/a/ada-2", "t/p/a/ada-1"]
    assert found("t/p/a/cy") == [("t/p/a/cy", "idle", None)]
    assert found("t/p/a/bo") == [("t/p/a/bo", "idle", 2)]
    place.stage.unknown = {"t/p/a/never"}
    assert not found("t/p/a/never")


def test_the_age_of_the_data_is_that_of_the_newest_answer() -> None:
    place = Place(SenderResponse(200, {}))
    parts = make_parts(place)
    assert parts.polls.state()["readAt"] is None
    parts.polls.sweep()
    read_at = parts.polls.state()["readAt"]
    place.stage.is_away = True
    with suppress(Unreachable):
        parts.polls.sweep()
    assert parts.polls.state()["readAt"] == read_at


def test_why_and_the_doctor_only_read_and_the_doctor_keeps_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    explained: list[str] = []
    examined: list[Any] = []

    def explain(_facts: Any, _ask: Any, name: str) -> Json:
        explained.append(name)
        return {"causes": []}

    def examine(facts: Any) -> Report:
        examined.append(facts)
        return Report([], {"alarms": "no"})

    monkeypatch.setattr(Place, "facts", "the facts")
    monkeypatch.setattr(server, "explain", explain)
    monkeypatch.setattr(server, "examine", examine)
    app = make_app(make_parts(Place(SenderResponse(200, {}))))
    for name in ("b1", "t/p/a/u"):
        assert call(app, "POST", "/api/why", body=json.dumps({"id": name}).encode()).json == {"causes": []}
    assert explained == ["b1", "t/p/a/u"]
    first, second = (call(app, "POST", "/api/doctor", body=b"{}").json for _ in range(2))
    assert (first["unread"], first, len(examined)) == ({"alarms": "no"}, second, 1)


def test_authors_going_on_is_shown_for_the_scopes_with_most_batches_and_asked_for_once_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, now = ImitatedStage(), 1_000_000
    monkeypatch.setattr(server, "now_ms", lambda: now)
    many = counts_of(random.Random(1), turns=300, silence_ms=2_000, reply_ms=4_000)
    stage.counted = {"acme/whatsapp/sales": many} | {f"t{n}/telegram/": {"batches": 299 - n} for n in range(25)}
    app = make_app(make_parts(ImitatedPlace(stage)))

    def read() -> Any:
        return call(app, "POST", "/api/tune", body=b"{}").json

    first = read()
    assert first["scopes"][0] == {
        "scope": "acme/whatsapp/sales", "batches": 300, "few": False, **going_on(many)._asdict()
    }  # fmt: skip
    assert [(each["batches"], each["few"]) for each in first["scopes"][1:]] == [(299 - n, True) for n in range(19)]
    now += 59_999
    assert (read(), len(stage.asked)) == (first, 1)
    now += 1
    assert read()["at"] == now
    assert stage.asked == [("tune.read", {"weeks": 4})] * 2


def test_what_refuses_the_question_how_many_go_on_is_said_and_not_kept() -> None:
    stage = ImitatedStage()
    app = make_app(make_parts(ImitatedPlace(stage)))
    stage.is_away = True
    assert call(app, "POST", "/api/tune", body=b"{}").json == {"problem": stage.problem}
    stage.is_away = False
    assert call(app, "POST", "/api/tune", body=b"{}").json["scopes"] == []


class Nonsense(ValueError):
    """The page cannot be opened."""


def test_a_page_that_cannot_be_opened_is_not_taken_for_an_open_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduce a defect: the console went on to ask the stage for days, although no page was open."""
    monkeypatch.setattr(History, "events", PropertyMock(side_effect=Nonsense))
    parts = make_parts(ImitatedPlace(ImitatedStage()))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_message: Any) -> None:
        return

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "path": "/stream", "raw_path": b"/stream", "root_path": "", "query_string": b"", "headers": [],
    }  # fmt: skip
    with suppress(Nonsense):
        asyncio.run(make_app(parts)(scope, receive, send))
    assert not parts.hub.wait_for_a_reader(timeout_seconds=0)
