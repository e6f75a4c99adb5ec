"""The commands that concern the whole stage, or use it from outside."""

import math
import os
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bufferctl.errors import Failed, NotFound, Unreachable
from bufferctl.formatting import as_json, counted, moment, printable, second_of
from bufferctl.options import Ctx, Shown, checked_id, duration_ms
from bufferctl.stage import ROOT, find_account
from lambdas.canary.listening import LONG_POLL_SECONDS
from message_buffer.json_object import Json

if TYPE_CHECKING:
    from bufferctl.events import Subscription


app = typer.Typer()


@app.command()
def status(ctx: Ctx) -> Any:
    """Show what waits, is in flight and is late, by shard."""
    return ctx.obj.ask("status")


@app.command()
def logged(
    ctx: Ctx, name: Annotated[str, typer.Argument(metavar="ID", help="tenant/platform/account/user, or a batch id")]
) -> Shown:
    """Show how the logs name a conversation or a batch."""
    result = ctx.obj.ask("id.look_up", id=name)
    return result, str(result["logged"])


@app.command()
def send(
    ctx: Ctx,
    text: Annotated[str, typer.Argument(help="what the customer writes")],
    *,
    account: Annotated[str, typer.Option(help="The account that receives the message.")] = "bufferctl",
    user: Annotated[str, typer.Option(help="The conversation's last part.")] = "test",
    tenant: Annotated[str | None, typer.Option(help="Default: default.")] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", help="The message's id; the same id again is a redelivery.")
    ] = None,
) -> Any:
    """Send a signed test message to the generic webhook, as a customer's program would."""
    from lambdas.canary.webhook import GenericWebhook, WebhookUnreachable  # noqa: PLC0415 - only this command needs it

    message = {"account": account, "conversation": user, "id": message_id or f"test-{uuid.uuid4().hex}", "text": text}
    stage = ctx.obj.find()
    try:
        response = GenericWebhook(stage.api_endpoint, stage.webhook_secret()).post(
            message | ({"tenant": tenant} if tenant else {})
        )
    except WebhookUnreachable as error:
        raise Unreachable(str(error)) from error
    if response.status != HTTPStatus.OK:
        again = response.status == HTTPStatus.TOO_MANY_REQUESTS or response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        raise (Unreachable if again else Failed)(f"The webhook answers {response.status}: {response.body}")
    return response.json


@app.command()
def tail(
    ctx: Ctx,
    *,
    conversation: Annotated[str | None, typer.Option(help="Show only its events.", callback=checked_id)] = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="Also show what people wrote, as --json always does.")
    ] = False,
    seconds: Annotated[int | None, typer.Option(min=1, help="End after this time; default: with Ctrl-C.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after this number of events.")] = None,
) -> None:
    """Show events as they arrive. Those of the first minute may be missing."""
    from bufferctl.events import EVERYTHING, subscribe  # noqa: PLC0415 - only this command needs it
    from bufferctl.interrupts import endings_interrupt  # noqa: PLC0415

    stage = ctx.obj.find()
    pattern: Json = EVERYTHING | ({"detail": {"conversationId": [conversation]}} if conversation else {})
    try:
        with (
            endings_interrupt(),
            subscribe(stage.client, stage.event_bus, pattern=pattern, prefix="bufferctl-tail") as subscription,
        ):
            print("Listening; Ctrl-C ends it.", file=sys.stderr, flush=True)
            event = None
            for event in _events(subscription, seconds=seconds, count=count):
                print(as_json(event, indent=None) if ctx.obj.json else _line(event, messages=messages), flush=True)
            if event is None:
                print("No event arrived.", file=sys.stderr)
    except (KeyboardInterrupt, BrokenPipeError):
        return


def _events(subscription: "Subscription", *, seconds: int | None, count: int | None) -> Iterator[Json]:
    deadline = time.monotonic() + seconds if seconds else math.inf
    seen = 0
    while time.monotonic() < deadline:
        for arrival in subscription.poll(wait_seconds=LONG_POLL_SECONDS):
            yield arrival.event
            seen += 1
            if seen == count:
                return


def _line(event: Json, *, messages: bool) -> str:
    detail = event["detail"]
    count = detail.get("messageCount")
    parts = (
        second_of(event["time"]),
        event["detail-type"],
        detail.get("conversationId") or detail.get("subject"),
        detail.get("flushReason") or detail.get("operation") or detail.get("reason") or detail.get("change"),
        f"step {detail['step']} of {detail['steps']}" if "steps" in detail else None,
        None if count is None else counted(count, "message"),
        detail.get("batchId"),
        (detail.get("text") or " ".join(part["text"] for part in detail.get("parts", ()))) if messages else None,
    )
    return "  ".join(printable(str(each)) for each in parts if each)


@app.command()
def doctor(ctx: Ctx) -> None:
    """Say what is wrong with the stage, worst first. This only reads."""
    from bufferctl.doctor import doctor as diagnose  # noqa: PLC0415 - only this command needs it

    given = ctx.obj
    account = find_account(given.stage, profile=given.profile, region=given.region, outputs=given.outputs)
    diagnose(account, Namespace(stage=given.stage, json=given.json))


@app.command()
def why(
    ctx: Ctx, name: Annotated[str, typer.Argument(metavar="ID", help="tenant/platform/account/user, or a batch id")]
) -> Shown:
    """Say why a batch, or a conversation's batch, is late, and which log lines prove it."""
    from bufferctl.facts import StageFacts  # noqa: PLC0415 - only this command needs it
    from bufferctl.lateness import explain  # noqa: PLC0415

    stage = ctx.obj.find()
    found = explain(StageFacts(ctx.obj.stage, stage.client), stage.ask, name)
    if found["state"] == "unknown":
        raise NotFound(found["summary"])
    lines = [found["summary"], *filter(None, [found["due"]])]
    for cause in found["causes"]:
        at = f"{moment(cause['at'])}  " if cause["at"] else ""
        lines += [f"- {at}{cause['text']}", *(f"  read from {each}" for each in cause["from"])]
    return found, "\n".join(lines)


@app.command()
def verify(
    ctx: Ctx,
    *,
    fallback: Annotated[bool, typer.Option("--fallback", help="Also send a batch through the fallback.")] = False,
    load: Annotated[
        str | None, typer.Option(metavar="RATE", help="Then send as many customers do, such as 50/s or 30/m.")
    ] = None,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long --load sends, such as 10m, at most 1h.")
    ] = "1m",
) -> None:
    """Try the stage as a customer, then remove what the trial made."""
    from bufferctl.load import plan_of  # noqa: PLC0415 - only this command needs it
    from bufferctl.verify import verify as try_out  # noqa: PLC0415

    plan = plan_of(load, duration_ms(duration)) if load else None
    try_out(ctx.obj.find(), ctx.obj, with_fallback=fallback, plan=plan)


@app.command()
def console(
    ctx: Ctx,
    *,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let the page send, hold, resume, flush and cancel, too.")
    ] = False,
    show_words: Annotated[bool, typer.Option("--show-words", help="Also show what people wrote.")] = False,
) -> None:
    """Show the stage on a web page, which this machine serves."""
    given = ctx.obj
    options = {"--stage": given.stage, "--profile": given.profile, "--region": given.region, "--outputs": given.outputs}
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    words += [name for name, is_set in {"--allow-changes": allow_changes, "--show-words": show_words}.items() if is_set]
    # The console is a separate program, so that the other commands do not need its packages.
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "tools.console", *words])
