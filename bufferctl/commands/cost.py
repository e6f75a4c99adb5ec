"""`bufferctl cost`, which prints the bill of a stage by the cost model."""

from typing import Annotated

import typer

from bufferctl.options import Ctx

app = typer.Typer()


@app.command()
def cost(  # noqa: PLR0913 - an option for each number
    ctx: Ctx,
    *,
    overrides: Annotated[
        str | None, typer.Option(metavar="JSON", help="An object that is merged over the stage's values.")
    ] = None,
    messages_per_day: Annotated[float, typer.Option(help="messages that people send")] = 100_000,
    fragments_per_batch: Annotated[float, typer.Option(help="messages in a batch")] = 4,
    wait_seconds: Annotated[float, typer.Option(help="from a batch's first message to its due time")] = 14,
    statuses_per_batch: Annotated[float, typer.Option(help="webhooks without a message: sent, delivered, read")] = 3,
    text_bytes: Annotated[float, typer.Option(help="length of a message's text")] = 60,
    active_hours: Annotated[float, typer.Option(help="hours of the day in which people write")] = 16,
    peak: Annotated[float, typer.Option(help="traffic of the busiest second, divided by the average")] = 5,
) -> None:
    """Print what a stage of cdk.json costs in a month, by list prices; see docs/cost.md."""
    from bufferctl.cost import command  # noqa: PLC0415 - only this command needs the cost model

    traffic = {
        "messages_per_day": messages_per_day, "fragments_per_batch": fragments_per_batch, "wait_seconds": wait_seconds,
        "statuses_per_batch": statuses_per_batch, "text_bytes": text_bytes, "active_hours": active_hours, "peak": peak,
    }  # fmt: skip
    form = "json" if ctx.obj.json else "text"
    print(command.cost(ctx.obj.stage, traffic, overrides=overrides, form=form))
