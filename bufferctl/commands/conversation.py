"""Lists, shows and controls conversations."""

import sys
import time
from collections import Counter
from typing import Annotated, Any

import typer

from bufferctl.errors import Incomplete, NotFound
from bufferctl.formatting import Pairs, clock_time, counted, listed, table
from bufferctl.options import Conversation, Ctx, Given, Shown, Yes, confirm, duration_ms
from bufferctl.stage import StageClient
from bufferctl.terminal import working
from message_buffer.json_object import Json
from message_buffer.limits import HOUR_MS, MAX_LISTED, REMEMBERED_MS

LISTED = ("conversation", "lane", "shard", "state", "count", "frozen", "reason", "dueAt", "replyUntil")
# An erasure takes a few calls, unless a queue is full of dead letters.
MAX_FORGET_CALLS = 20
UNFINISHED = "This command could not erase everything: run it again."

app = typer.Typer(help="List, show and control conversations.")
Words = Annotated[bool, typer.Option("--messages", help="Also show what people wrote.")]
HoldTime = Annotated[str, typer.Option("--for", metavar="TIME", help="How long, such as 15m, at most 24h.")]
Reason = Annotated[str | None, typer.Option(help="Why. It is published.")]
NoLimit = Annotated[bool, typer.Option("--no-limit", help="Until it is resumed; needs the stage's queue handoff.")]


@app.command("list")
def list_conversations(
    ctx: Ctx,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only conversations of this tenant.")] = None,
    platform: Annotated[str | None, typer.Option(help="Only conversations on this platform, such as whatsapp.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to list.")] = 50,
) -> Shown:
    """List conversations that wait or have a frozen batch, the earliest due first."""
    stage, filters = ctx.obj.find(), {"tenant": tenant, "platform": platform}
    found: dict[tuple[str, str], Json] = {}
    cursor, more = None, True
    while more and len(found) < limit:
        page = min(limit - len(found), MAX_LISTED)
        response = stage.ask("conversation.list", **filters, cursor=cursor, limit=page)
        # A conversation whose state changes between two requests may be on both pages. Keep it only once.
        found |= {(each["lane"], each["conversation"]): each for each in response["conversations"]}
        cursor, more = response["next"], response["more"]
        if cursor is None:
            break
    shown = list(found.values())[:limit]
    shown.sort(key=lambda each: (each["dueAt"] is None, each["dueAt"] or 0))
    result = {"conversations": shown, "more": more or len(found) > len(shown)}
    hint = ["There are more: filter them, or raise --limit."] if result["more"] else []
    nothing = "Nothing waits." if {*filters.values()} == {None} else "Nothing that matches waits."
    return result, listed(shown, nothing, LISTED), *hint


@app.command()
def show(ctx: Ctx, conversation: Conversation, *, messages: Words = False) -> Any:
    """Show a conversation's state, times, generation, holds and batch."""
    result = ctx.obj.ask("conversation.show", conversation=conversation, messages=messages)
    if not result.pop("known"):
        idle_hours = REMEMBERED_MS // HOUR_MS
        raise NotFound(f"The buffer has seen nothing of {conversation} for {idle_hours} h, or has forgotten it.")
    return result


@app.command()
def flush(ctx: Ctx, conversation: Conversation) -> Shown:
    """Send waiting messages now."""
    result = ctx.obj.ask("conversation.flush", conversation=conversation)
    return result, f"Due at {clock_time(result['dueAt'])}, with {counted(result['count'], 'waiting message')}."


@app.command()
def cancel(ctx: Ctx, conversation: Conversation, *, yes: Yes = False) -> Shown:
    """Drop waiting messages and the frozen batch, and publish a cancel event."""
    confirm(f"Drop all waiting messages of {conversation}?", yes=yes)
    result = ctx.obj.ask("conversation.cancel", conversation=conversation)
    text = "Dropped. Valkey's answer was lost, so the number of messages is unknown."
    if (result["dropped"], result["frozen"]) == (0, 0):
        text = "Nothing waited; published the cancel event."
    elif result["dropped"] is not None:
        text = f"Dropped {counted(result['dropped'], 'waiting message')} and {result['frozen']} of a frozen batch."
    if result["leaving"]:
        text += " That batch was just being sent, and may still be published once."
    if "heldUntil" in result:
        text += f" The hold until {clock_time(result['heldUntil'])} remains; `conversation resume` ends it."
    return result, text


@app.command()
def hold(ctx: Ctx, conversation: Conversation, *, duration: HoldTime = "1h") -> Shown:
    """Keep messages back, because a human agent has taken over."""
    return _hold(ctx.obj, "conversation.hold", conversation=conversation, holdMs=duration_ms(duration))


@app.command()
def handoff(
    ctx: Ctx,
    conversation: Conversation,
    *,
    reason: Reason = None,
    duration: HoldTime = "1h",
    no_limit: NoLimit = False,
) -> Shown:
    """Let people answer, and publish that. Hold, unless the stage has the queue handoff, which gets the batches."""
    hold_ms = None if no_limit else duration_ms(duration)
    return _hold(ctx.obj, "conversation.handoff", conversation=conversation, holdMs=hold_ms, reason=reason)


def _hold(given: Given, operation: str, **fields: Any) -> Shown:
    result = given.ask(operation, **fields)
    if "handedOffUntil" in result:
        until_ms = result["handedOffUntil"]
        until = "until it is resumed" if until_ms is None else f"until {clock_time(until_ms)}, or until it is resumed"
        return result, f"Handed off {until}. Its batches go to the queue handoff."
    return result, f"On hold until {clock_time(result['heldUntil'])}, or until it is resumed."


@app.command()
def resume(ctx: Ctx, conversation: Conversation, *, reason: Reason = None) -> Shown:
    """End all holds, and a hand-off, which is published. Messages on hold are due now."""
    result = ctx.obj.ask("conversation.resume", conversation=conversation, reason=reason)
    due = "no message is waiting" if result["dueAt"] is None else f"due at {clock_time(result['dueAt'])}"
    return result, f"Resumed: {due}."


@app.command()
def complete(
    ctx: Ctx,
    conversation: Conversation,
    *,
    summary: Annotated[str | None, typer.Option(help="What was done. It is published.")] = None,
) -> Shown:
    """Publish that the task is done. The next message then begins with an empty history."""
    result = ctx.obj.ask("conversation.complete", conversation=conversation, summary=summary)
    return result, f"Completed at {clock_time(result['at'])}, and published an event for consumers."


@app.command()
def history(
    ctx: Ctx,
    conversation: Conversation,
    *,
    messages: Words = False,
    older: Annotated[int, typer.Option(min=0, help="Also show N turns that are no longer in the record.")] = 0,
) -> Shown:
    """Show the status of a conversation, and the turns that the responder remembers, with ids, times and tokens."""
    result = ctx.obj.find().ask_responder("history", conversation=conversation, texts=messages, limit=older)
    if not any(result.values()):
        return result, "No turn is finished. If a reply is tried again, `bufferctl doctor` says why."
    summary = {name: value for name, value in result.items() if name != "turns"}
    return result, Pairs(summary), *map(Pairs, result["turns"])


@app.command()
def forget(
    ctx: Ctx,
    conversation: Conversation,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be erased, and where.")] = False,
    yes: Yes = False,
) -> Shown:
    """Erase all that the stage and its responder store about a conversation, and publish an event."""
    stage = ctx.obj.find()
    if not dry_run:
        confirm(f"Erase everything that this stage stores about {conversation}? This cannot be undone.", yes=yes)
    with working(ctx.obj, f"Look for {conversation}, and erase it"):
        counts = _erase_at_responder(stage, conversation, dryRun=True)
        if dry_run:
            result = stage.ask("conversation.forget", conversation=conversation, dryRun=True)
        else:
            result = erase(stage, conversation)
            # The stage publishes an event about the erasure. The responder may erase its items because of that event,
            # before this request asks it to. So use the count from before the event.
            counts |= _erase_at_responder(stage, conversation, at=result["at"])
    if result.get("againInMs") is not None:
        raise Incomplete(UNFINISHED)
    result["counts"] |= counts
    done = "It would erase:" if dry_run else "Erased, and published an event for consumers:"
    ages_out = table(result["agesOut"])
    other = result.get("otherName")
    hint = [f"The author also has the name {other}: forget that, too."] if other else []
    return result, done, Pairs(result["counts"]), "These copies cannot be erased, but expire:", ages_out, *hint


def erase(stage: StageClient, conversation: str) -> Json:
    """Let the admin function erase a conversation, call by call, until everything is erased.

    Return the first call's response, updated with the last call's fields, and with the sum of all calls' counts. If its
    `againInMs` is not null, something is left, because batches were being emitted during the calls.
    """
    first = result = stage.ask("conversation.forget", conversation=conversation)
    counts: Counter[str] = Counter(result["counts"])
    for _ in range(MAX_FORGET_CALLS):
        if result["againInMs"] is None:
            break
        print(f"Not everything is erased yet; trying again in {result['againInMs'] / 1_000:.0f} s.", file=sys.stderr)
        time.sleep(result["againInMs"] / 1_000)
        result = stage.ask("conversation.forget", conversation=conversation, at=result["at"])
        counts.update(result["counts"])
    return first | result | {"counts": dict(counts)}


def _erase_at_responder(stage: StageClient, conversation: str, **fields: Any) -> Counter[str]:
    """Return how many items of each kind the responder erased, or would erase. Empty without a responder."""
    counts: Counter[str] = Counter()
    if stage.responder_function() is None:
        return counts
    for _ in range(MAX_FORGET_CALLS):
        response = stage.ask_responder("forget", conversation=conversation, **fields)
        counts.update(response["counts"])
        if response["finished"] or "dryRun" in fields:
            return counts
    raise Incomplete(UNFINISHED)
