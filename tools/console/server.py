"""Serves the page, and answers its requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bufferctl.doctor import examine, shown
from bufferctl.errors import Failed, Unreachable
from bufferctl.lateness import explain
from bufferctl.reasons import waiting_part, why_due
from message_buffer.json_object import Json
from message_buffer.limits import MAX_HOLD_MS
from message_buffer.tuning.curve import MIN_BATCHES, going_on
from tools.console.bus import Bus
from tools.console.customers import Customer, webhook
from tools.console.history import History
from tools.console.hub import Hub, Reader, framed
from tools.console.pace import PacedStage
from tools.console.place import ShownStage
from tools.console.polls import Polls, now_ms

KEEP_ALIVE_SECONDS = 15.0
MAX_TEXT_CHARACTERS = 4_000
MAX_FOUND = 50
MS_BETWEEN_REPORTS = 60_000
MAX_SCOPES_SHOWN = 20
PAGE = Path(__file__).parent / "page"
READ_ONLY = "This console only reads. Start it with --allow-changes to change something."


@dataclass(frozen=True)
class ConsoleParts:
    """The parts of the console that answer the page's requests."""

    place: ShownStage
    stage: PacedStage
    hub: Hub
    polls: Polls
    bus: Bus
    history: History


class _Wish(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


Id = Field(min_length=1, max_length=1_024)


class Show(_Wish):
    conversation: str = Id
    messages: bool = False


class Operate(_Wish):
    conversation: str = Id
    operation: str = Field(pattern="^(flush|hold|resume|cancel)$")
    hold_ms: int | None = Field(default=None, ge=1, le=MAX_HOLD_MS, alias="holdMs")


class Why(_Wish):
    id: str = Id


class Search(_Wish):
    text: str = Id


class Act(_Wish):
    platform: str = Id
    account: str = Id
    user: str = Id
    tenant: str | None = Field(default=None, min_length=1, max_length=256)
    kind: str = Id
    text: str = Field(default="", max_length=MAX_TEXT_CHARACTERS)
    message_id: str | None = Field(default=None, alias="messageId", max_length=1_024)


W = TypeVar("W", bound=_Wish)


def make_app(parts: ConsoleParts) -> Starlette:
    """Return the application, without the protection of `Access`."""
    answers = _Answers(parts)

    def post(path: str, model: type[W], act: Callable[[W], Json], *, changes: bool = True) -> Route:
        async def endpoint(request: Request) -> Response:
            if changes and not parts.place.options.allow_changes:
                return _problem(READ_ONLY, 403)
            try:
                wish = model.model_validate_json(await request.body())
                return JSONResponse(await run_in_threadpool(act, wish))
            except ValidationError:
                return _problem("The console does not understand this request.", 400)
            except Failed as error:
                return _problem(str(error), 502 if isinstance(error, Unreachable) else 409)

        return Route(path, endpoint, methods=["POST"])

    return Starlette(
        routes=[
            Route("/stream", answers.stream),
            Route("/event/{id}", answers.event),
            post("/api/conversation", Show, answers.conversation, changes=False),
            post("/api/operate", Operate, answers.operate),
            post("/api/act", Act, answers.act),
            post("/api/why", Why, answers.why, changes=False),
            post("/api/search", Search, answers.search, changes=False),
            post("/api/doctor", _Wish, answers.doctor, changes=False),
            post("/api/tune", _Wish, answers.tune, changes=False),
            Mount("/", StaticFiles(directory=PAGE, html=True)),
        ]
    )


class _Answers:
    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts
        self._report: Json = {"at": 0}
        self._going_on: Json = {"at": 0}

    async def stream(self, _request: Request) -> Response:
        """Send everything that is known, and then each new message, as server-sent events."""

        async def messages() -> AsyncIterator[bytes]:
            reader = self._parts.hub.open()
            try:
                yield framed("hello", self._hello())
                yield framed("state", self._parts.polls.state())
                while message := await _next(reader):
                    yield message
            except asyncio.CancelledError:
                return
            finally:
                self._parts.hub.close(reader)

        return StreamingResponse(messages(), media_type="text/event-stream")

    async def event(self, request: Request) -> Response:
        """Return an event as consumers get it, in lines that a person can read."""
        if event := self._parts.history.whole(request.path_params["id"]):
            return Response(json.dumps(event, indent=2, ensure_ascii=False), media_type="application/json")
        return _problem("The console does not keep this event.", 404)

    def _hello(self) -> Json:
        """Return the data that a page needs first."""
        options = self._parts.place.options
        return {
            "stage": options.stage,
            "allowChanges": options.allow_changes,
            "showWords": options.show_words,
            "events": self._parts.history.events,
            "busProblem": self._parts.bus.problem,
            "now": now_ms(),
        }

    def conversation(self, wish: Show) -> Json:
        with_messages = wish.messages and self._parts.place.options.show_words
        state = self._parts.stage.ask("conversation.show", conversation=wish.conversation, messages=with_messages)
        part = waiting_part(state)
        waiting = {name: part.get(name) for name in ("count", "dueAt", "firstAt")} | {"why": why_due(part)}
        return state | {"waiting": waiting, "timeLine": self._parts.history.of(wish.conversation)}

    def operate(self, wish: Operate) -> Json:
        result = self._parts.stage.ask(
            f"conversation.{wish.operation}", conversation=wish.conversation, holdMs=wish.hold_ms
        )
        self._parts.history.add(wish.conversation, f"operator: {wish.operation}", now_ms())
        self._parts.polls.hurry()
        return result

    def why(self, wish: Why) -> Json:
        """Return why a batch, or a conversation's batch, is late. Read the logs."""
        with self._parts.place.errors():
            return explain(self._parts.place.facts, self._parts.stage.ask, wish.id)

    def search(self, wish: Search) -> Json:
        """Return the conversations whose ids contain the text: open ones, then those of the history, newest first."""
        exact, text = wish.text.strip(), wish.text.strip().lower()
        newest = self._parts.history.with_text(text)
        found = {row["conversation"]: row for row in self._parts.polls.open_with(text)}
        if exact.count("/") == 3 and exact not in found:  # tenant/platform/account/user
            with suppress(Failed):
                state = self._parts.stage.ask("conversation.show", conversation=exact)
                found = ({exact: state} if state["known"] else {}) | found
        rows = [
            {key: found.get(name, {}).get(key) for key in ("state", "lane", "count", "dueAt")}
            | {"conversation": name, "lastAt": newest.get(name)}
            for name in found | newest
        ]
        return {"conversations": rows[:MAX_FOUND], "more": len(rows) > MAX_FOUND}

    def doctor(self, _wish: _Wish) -> Json:
        """Return the doctor's findings, at most a minute old."""
        if now_ms() - self._report["at"] >= MS_BETWEEN_REPORTS:
            with self._parts.place.errors():
                self._report = {"at": now_ms(), **shown(examine(self._parts.place.facts))}
        return self._report

    def tune(self, _wish: _Wish) -> Json:
        """Return how often authors go on, by scope, or that its batches are too few. It is at most a minute old."""
        if now_ms() - self._going_on["at"] >= MS_BETWEEN_REPORTS:
            # The stage names the scopes with the most batches first.
            counted = list(self._parts.stage.ask("tune.read", weeks=4)["scopes"].items())[:MAX_SCOPES_SHOWN]
            rows = [
                {"scope": scope, "batches": (n := each["batches"]), "few": n < MIN_BATCHES, **going_on(each)._asdict()}
                for scope, each in counted
            ]
            self._going_on = {"at": now_ms(), "scopes": rows}
        return self._going_on

    def act(self, wish: Act) -> Json:
        """Post a webhook as the customer's platform would, and return how the stage answered."""
        customer, sender = Customer(wish.platform, wish.account, wish.user, wish.tenant), self._parts.place.sender
        if wish.kind not in sender.kinds.get(wish.platform, ()):
            raise Failed(f"This console cannot send '{wish.kind}' by {wish.platform}.")
        posted = webhook(customer, wish.kind, text=wish.text, message_id=wish.message_id)
        began_ms = now_ms()
        with self._parts.place.errors():
            response = sender.send(wish.platform, posted)
        # The stage names the conversation if its rules assign the account to a tenant.
        conversation, known = next(iter((response.body.get("conversations") or {customer.conversation: {}}).items()))
        self._parts.history.add(conversation, f"sent {wish.kind}", began_ms, status=response.status)
        self._parts.polls.hurry()
        sent = {"messageId": posted.message_id, "at": began_ms, "tookMs": now_ms() - began_ms, **known}
        return sent | {"conversation": conversation, "status": response.status, "answer": response.body}


async def _next(reader: Reader) -> bytes | None:
    """Return the next message, or after a while a comment: sending it fails if the page was closed."""
    try:
        return await asyncio.wait_for(reader.get(), KEEP_ALIVE_SECONDS)
    except TimeoutError:
        return b": still here\n\n"


def _problem(text: str, status: int) -> Response:
    return JSONResponse({"problem": text}, status)
