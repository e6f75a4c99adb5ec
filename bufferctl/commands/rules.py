"""Reads and changes rules while the stage runs."""

from typing import Annotated, Any

import typer

from bufferctl.formatting import counted, listed
from bufferctl.options import Conversation, Ctx, JsonText, Shown, read_json
from message_buffer.json_object import Json

LISTED = ("scope", "version", "updatedAt", "updatedBy", "problem")

app = typer.Typer(help="Read and change rules without a deployment.")
Scope = Annotated[
    str,
    typer.Argument(
        help="stage, tenant:T, agent:T/A, conversation:ID, account:PLATFORM/ACCOUNT for the owner of an account, "
        "or door:NAME for a mapping"
    ),
]
ExpectedVersion = Annotated[
    int | None, typer.Option(min=0, help="Refuse unless the scope has this version; 0: unless it has no rules.")
]


@app.command("list")
def list_rules(
    ctx: Ctx, prefix: Annotated[str, typer.Argument(help="only scopes that begin with this, such as tenant:")] = ""
) -> Shown:
    """List all scopes that have rules."""
    result = ctx.obj.ask("rules.list", prefix=prefix)
    hint = ["There are more. Narrow the list with a prefix."] if result["more"] else []
    return result, listed(result["rules"], f"No scope {prefix and prefix + '… '}has rules.", LISTED), *hint


@app.command()
def get(ctx: Ctx, scope: Scope) -> Any:
    """Show the rules of a scope."""
    return ctx.obj.ask("rules.get", scope=scope)


@app.command("set")
def replace(
    ctx: Ctx,
    scope: Scope,
    rules: JsonText,
    *,
    expected_version: ExpectedVersion = None,
) -> Shown:
    """Replace the rules of a scope."""
    parsed = read_json(rules, what="rules")
    result = ctx.obj.ask("rules.set", scope=scope, rules=parsed, expectedVersion=expected_version)
    return result, f"Version {result['version']}, in force within 10 s. {_retimed(result['open'])}"


@app.command()
def delete(ctx: Ctx, scope: Scope, *, expected_version: ExpectedVersion = None) -> Shown:
    """Remove all rules of a scope."""
    result = ctx.obj.ask("rules.delete", scope=scope, expectedVersion=expected_version)
    return result, f"Deleted. {_retimed(result['open'])}"


def _retimed(found: Json) -> str:
    text = f"Rescheduled {found['retimed']} of {counted(found['looked'], 'open buffer')} in this scope."
    if found["complete"]:
        return text
    why = found.get("problem", "the function ran out of time")
    return (
        f"{text} Some were not reached ({why}). They follow with their next message, or when you set the rules again."
    )


@app.command()
def explain(
    ctx: Ctx,
    conversation: Conversation,
    *,
    agent: Annotated[str | None, typer.Option(help="Default: the agent that owns the conversation's account.")] = None,
) -> Any:
    """Show which value of each rule is in force, and which layer sets it."""
    return ctx.obj.ask("rules.explain", conversation=conversation, agent=agent)
