"""Reads and changes rules while the stage runs."""

import json
from typing import Annotated, Any

import typer

from bufferctl.errors import NotFound
from bufferctl.formatting import blocks_of, counted, listed
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
def change(
    ctx: Ctx,
    scope: Scope,
    rules: JsonText,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Remove the rules that are not given.")] = False,
    expected_version: ExpectedVersion = None,
) -> Shown:
    """Add rules to those of a scope; null removes one. Replace a door's mapping whole."""
    parsed, stage = read_json(rules, what="rules"), ctx.obj.find()
    try:
        found = stage.ask("rules.get", scope=scope)
    except NotFound:
        found = {"rules": {}, "version": 0}
    before = found["rules"]
    after = parsed if replace or scope.startswith("door:") else merge(before, parsed)
    expected = found["version"] if expected_version is None else expected_version
    result = stage.ask("rules.set", scope=scope, rules=after, expectedVersion=expected)
    return _changed(result, before, after)


@app.command()
def undo(ctx: Ctx, scope: Scope) -> Shown:
    """Undo the last change of a scope's rules; a deletion, within 30 days. A second undo restores the change."""
    result = ctx.obj.ask("rules.undo", scope=scope)
    return _changed(result, result["before"], result["after"])


def merge(before: Any, patch: Any) -> Any:
    """Return the value after a JSON merge patch (RFC 7386), in which null removes a field."""
    if not isinstance(patch, dict):
        return patch
    kept = before if isinstance(before, dict) else {}
    merged = kept | {name: merge(kept.get(name), value) for name, value in patch.items()}
    return {name: value for name, value in merged.items() if name not in patch or patch[name] is not None}


def differences(before: Any, after: Any) -> list[str]:
    """Return a line for each field that was added, removed or changed."""
    old, new = _fields(before), _fields(after)
    signs = {name: "-" if name not in new else "~" if name in old else "+" for name in old | new}
    shown = {name: " → ".join(each[name] for each in (old, new) if name in each) for name in signs}
    return [f"{sign} {name}: {shown[name]}" for name, sign in signs.items() if old.get(name) != new.get(name)]


def _fields(value: Any, name: str = "") -> dict[str, str]:
    """Return the JSON of each field, with its path as the key."""
    if not isinstance(value, dict) or (name and not value):
        return {name or "rules": json.dumps(value, ensure_ascii=False)}
    inner = (_fields(each, f"{name}.{key}" if name else key) for key, each in value.items())
    return {path: text for fields in inner for path, text in fields.items()}


def _changed(result: Json, before: Any, after: Any) -> Shown:
    lines = differences(before or {}, after or {})
    sentence = f"Version {result['version']}, in force within 10 s. {_retimed(result['open'])}"
    if longer_ms := result.get("typingInferenceMs"):
        seconds = f"{longer_ms / 1_000:g} s"
        sentence += f"\nFragments within {seconds} of each other still wait {seconds} (`typingInferenceMs`)."
    return {**result, "differences": lines}, "\n".join([*(lines or ["No rule is different."]), sentence])


@app.command()
def delete(ctx: Ctx, scope: Scope, *, expected_version: ExpectedVersion = None) -> Shown:
    """Remove all rules of a scope. `undo` brings them back."""
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
) -> Shown:
    """Show which value of each rule is in force, and which layer sets it."""
    found = ctx.obj.ask("rules.explain", conversation=conversation, agent=agent)
    rules = dict(found["rules"])
    if model := rules.get("learned", {}).get("value"):
        # All numbers of a model would make the table too wide.
        rules["learned"] = {**rules["learned"], "value": f"{len(model)} numbers"}
    return found, *blocks_of({**found, "rules": rules})
