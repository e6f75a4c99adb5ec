"""Serves the page, and answers its requests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bufferctl.errors import Failed, Unreachable
from message_buffer.json_object import Json
from message_buffer.limits import MAX_HOLD_MS
from tools.console.batches import Batches
from tools.console.bus import BusListener
from tools.console.customers import CannotDo, Customer
from tools.console.hub import Closed, Hub, framed
from tools.console.logs import Logs
from tools.console.outage import is_outage
from tools.console.pace import PacedStage
from tools.console.place import ShownStage
from tools.console.player import Player
from tools.console.polls import Polls
from tools.console.rules_in_words import RULES_IN_WORDS
from tools.console.scenarios import MAX_TEXT_CHARACTERS
from tools.console.simulator import Simulator, waiting_part
from tools.console.time_lines import TimeLines
from tools.console.why import why_due

KEEP_ALIVE_SECONDS = 15.0
PAGE = Path(__file__).parent / "page"
VALKEY_IS_OUT = "Valkey does not answer, so this is not possible now. Try again when it answers."
READ_ONLY = "This console only reads. Start it with --allow-changes to change something."


@dataclass(frozen=True)
class ConsoleParts:
    """The parts of the console that answer the page's requests."""

    place: ShownStage
    stage: PacedStage
    hub: Hub
    polls: Polls
    bus: BusListener
    time_lines: TimeLines
    batches: Batches
    simulator: Simulator
    player: Player
    logs: Logs


class _Wish(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


Id = Field(min_length=1, max_length=1_024)
Text = Field(default="", max_length=MAX_TEXT_CHARACTERS)


class ConversationWish(_Wish):
    conversation: str = Id


class Operate(ConversationWish):
    operation: str = Field(pattern="^(flush|hold|resume|cancel)$")
    hold_ms: int | None = Field(default=None, ge=1, le=MAX_HOLD_MS, alias="holdMs")


class Act(_Wish):
    platform: str = Id
    account: str = Id
    user: str = Id
    tenant: str | None = Field(default=None, min_length=1, max_length=256)
    kind: str = Id
    text: str = Text
    message_id: str | None = Field(default=None, alias="messageId", max_length=1_024)


class PlayWish(_Wish):
    name: str = Id
    run: str = Field(pattern="^[0-9]{1,9}$")


class BatchWish(_Wish):
    batch_id: str = Field(min_length=1, max_length=1_024, alias="batchId")


class Nothing(_Wish):
    pass


W = TypeVar("W", bound=_Wish)


def make_app(parts: ConsoleParts) -> Starlette:
    """Return the application, without the protection of `Access`."""
    answers = _Answers(parts)

    def post(path: str, model: type[W], act: Callable[[W], Any], *, changes: bool = False) -> Route:
        async def endpoint(request: Request) -> Response:
            if changes and not parts.place.options.allow_changes:
                return _problem(READ_ONLY, 403)
            try:
                wish = model.model_validate_json(await request.body())
            except ValidationError as error:
                return _problem("; ".join(_sentences(error)), 400)
            return await _answered(lambda: act(wish))

        return Route(path, endpoint, methods=["POST"])

    return Starlette(
        routes=[
            Route("/", _page),
            Route("/stream", answers.stream),
            post("/api/hello", Nothing, answers.hello),
            post("/api/conversation", ConversationWish, answers.conversation),
            post("/api/rules", ConversationWish, answers.rules),
            post("/api/logs", ConversationWish, answers.log_lines),
            post("/api/operate", Operate, answers.operate, changes=True),
            post("/api/redrive", BatchWish, answers.redrive, changes=True),
            post("/api/act", Act, answers.act, changes=True),
            post("/api/play", PlayWish, answers.play, changes=True),
            post("/api/stop", Nothing, answers.stop, changes=True),
            Mount("/page", StaticFiles(directory=PAGE)),
        ]
    )


async def _page(_request: Request) -> Response:
    return FileResponse(PAGE / "index.html")


class _Answers:
    def __init__(self, parts: ConsoleParts) -> None:
        self._parts = parts

    async def stream(self, _request: Request) -> Response:
        """Send everything that is known, and then each new message, as server-sent events."""

        async def messages() -> AsyncIterator[bytes]:
            reader = self._parts.hub.open()
            try:
                yield framed("hello", await run_in_threadpool(self.hello, Nothing()))
                yield framed("state", self._parts.polls.state())
                while True:
                    message = await reader.get(timeout_seconds=KEEP_ALIVE_SECONDS)
                    # A comment shows a proxy that the stream is alive, and shows this server whether the page is still
                    # open.
                    yield message or b": still here\n\n"
            except (Closed, asyncio.CancelledError):
                return
            finally:
                self._parts.hub.close(reader)

        return StreamingResponse(messages(), media_type="text/event-stream")

    def hello(self, _wish: Nothing) -> Json:
        """Return the data that a page needs first. The page requests it again when an unreachable stage is back."""
        options = self._parts.place.options
        try:
            platforms, scenarios, problem = self._parts.simulator.kinds, self._parts.player.offered(), None
            empty_since_ms = self._parts.place.empty_since_ms
        except Failed as error:
            platforms, scenarios, problem, empty_since_ms = {}, [], str(error), None
        return {
            "stage": options.stage,
            "isLocal": options.is_local,
            "allowChanges": options.allow_changes,
            "showWords": options.show_words,
            "platforms": platforms,
            "scenarios": scenarios,
            "scenario": self._parts.player.progress,
            "rulesInWords": RULES_IN_WORDS,
            "batches": self._parts.batches.all(),
            "busProblem": self._parts.bus.problem,
            "refused": {} if problem else self._parts.simulator.refused,
            "problem": problem,
            "emptySince": empty_since_ms,
        }

    def conversation(self, wish: ConversationWish) -> Json:
        shown = self._parts.stage.ask(
            "conversation.show", conversation=wish.conversation, messages=self._parts.place.options.show_words
        )
        time_line = self._parts.time_lines.of(wish.conversation)
        return shown | {"why": why_due(waiting_part(shown)), "timeLine": time_line}

    def rules(self, wish: ConversationWish) -> Json:
        return self._parts.stage.ask("rules.explain", conversation=wish.conversation)

    def log_lines(self, wish: ConversationWish) -> Json:
        return {"lines": self._parts.logs.of(wish.conversation)}

    def operate(self, wish: Operate) -> Json:
        result = self._parts.stage.ask(
            f"conversation.{wish.operation}", conversation=wish.conversation, holdMs=wish.hold_ms
        )
        self._parts.time_lines.add(wish.conversation, f"operator: {wish.operation}", self._parts.polls.clock())
        self._parts.polls.hurry()
        return result

    def redrive(self, wish: BatchWish) -> Json:
        result = self._parts.stage.ask("dead.redrive", batchId=wish.batch_id)
        self._parts.polls.forget_letters()
        return result

    def act(self, wish: Act) -> Json:
        customer = Customer(wish.platform, wish.account, wish.user, wish.tenant)
        self._parts.player.note_reader(customer)
        return self._parts.simulator.act(customer, wish.kind, text=wish.text, message_id=wish.message_id)

    def play(self, wish: PlayWish) -> Json:
        self._parts.player.play(wish.name, run=wish.run)
        return {}

    def stop(self, _wish: Nothing) -> Json:
        self._parts.player.stop()
        return {}


async def _answered(ask: Callable[[], Any]) -> Response:
    try:
        return JSONResponse(await run_in_threadpool(ask))
    except CannotDo as error:
        return _problem(str(error), 400)
    except Unreachable as error:
        if is_outage(error):
            return _problem(VALKEY_IS_OUT, 503)
        return _problem(str(error), 502)
    except Failed as error:
        return _problem(str(error), 409)


def _problem(text: str, status: int) -> Response:
    return JSONResponse({"problem": text}, status)


def _sentences(error: ValidationError) -> list[str]:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return [f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in problems]
