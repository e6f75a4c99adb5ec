"""Shows dead letters, and sends them again."""

from typing import Annotated, Any

import typer

from bufferctl.errors import Failed, Incomplete, Misused, errors_of_aws
from bufferctl.formatting import counted, listed, table
from bufferctl.options import Ctx, Shown, Yes, confirm
from bufferctl.terminal import show_result, working
from message_buffer.limits import MAX_LISTED

app = typer.Typer(help="Show batches that could not be sent, and send them again.")


@app.command("list")
def list_letters(
    ctx: Ctx,
    *,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LISTED, help="How many to list.")] = 50,
    replies: Annotated[bool, typer.Option("--replies", help="List those of the stage's queues.")] = False,
) -> Shown:
    """List dead letters, without what people wrote. The list hides them from others for a moment."""
    result = ctx.obj.ask("dead.list", limit=limit, replies=replies or None)
    if not result["letters"]:
        hidden = f" About {result['inQueue']} are hidden; try again in 90 s." if result["inQueue"] else ""
        return result, f"No dead letter is visible.{hidden}"
    again = " docs/runbook.md#sending-replies-again says how to send them again." if replies else ""
    return result, table(result["letters"]), f"In the queue: about {result['inQueue']}.{again}"


@app.command()
def show(
    ctx: Ctx,
    batch: Annotated[str, typer.Argument(help="its batch id")],
    *,
    payloads: Annotated[bool, typer.Option("--payloads", help="Also show what people wrote.")] = False,
) -> Any:
    """Show one dead letter."""
    return ctx.obj.ask("dead.show", batchId=batch, payloads=payloads)


@app.command()
def redrive(
    ctx: Ctx,
    batches: Annotated[list[str] | None, typer.Argument(help="batch ids")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help=f"Every listed batch, at most {MAX_LISTED}.")] = False,
    yes: Yes = False,
) -> None:
    """Send batches again under their old ids."""
    if every == bool(batches):
        raise Misused("Give the ids of batches, or --all.")
    stage, ids, unreadable = ctx.obj.find(), batches or [], 0
    if every:
        found = stage.ask("dead.list", limit=MAX_LISTED)
        ids = list(dict.fromkeys(each["batchId"] for each in found["letters"] if each["batchId"]))
        unreadable = sum(not each["batchId"] for each in found["letters"])
        confirm(f"Send {counted(len(ids), 'batch')} again, of about {found['inQueue']} dead letters?", yes=yes)
    done: list[str] = []
    failed: dict[str, Failed] = {}
    with working(ctx.obj, "Send batches again", total=len(ids)) as step:
        for batch in ids:
            try:
                with errors_of_aws():
                    done.append(stage.ask("dead.redrive", batchId=batch)["redriven"])
            except Failed as error:
                failed[batch] = error
            step.advance()
    outcomes = [{"batchId": batch, "outcome": "sent again"} for batch in done]
    outcomes += [{"batchId": batch, "outcome": str(error)} for batch, error in failed.items()]
    refused = [{"batchId": batch, "message": str(error)} for batch, error in failed.items()]
    result = {"redriven": done, "failed": refused, "unreadable": unreadable}
    show_result(ctx.obj, result, listed(outcomes, "There is no batch to send again."))
    problems = [f"{len(failed)} of {len(ids)} were not sent again."] if failed else []
    if unreadable:
        problems.append(
            f"{counted(unreadable, 'letter')} without a batch id stayed in the queue: "
            "docs/bufferctl.md says how to remove one."
        )
    if problems:
        kinds = {type(error) for error in failed.values()}
        same = kinds.pop() if len(kinds) == 1 else Failed
        raise (Incomplete if done or unreadable else same)(" ".join(problems))
