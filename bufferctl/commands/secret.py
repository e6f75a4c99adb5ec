"""Changes and checks the secrets of the stage's webhooks: one JSON object, whose form `lambdas/ingest` describes."""

import hmac
import json
import sys
from getpass import getpass
from typing import Annotated, Any

import typer

from bufferctl.errors import Failed, FoundProblems, Misused, NotFound
from bufferctl.formatting import counted, table
from bufferctl.options import Ctx, Shown
from bufferctl.stage import StageClient
from bufferctl.terminal import show_result
from message_buffer.json_object import Json
from message_buffer.limits import SECRET_LIFE_MS

app = typer.Typer(help="Change and check the secrets of the platforms' webhooks.")
Platform = Annotated[str, typer.Argument(help="such as whatsapp, or custom/DOOR")]
Account = Annotated[str | None, typer.Option(help="Only this account, which has secrets of its own.")]


@app.command("set")
def change(
    ctx: Ctx,
    platform: Platform,
    *,
    account: Account = None,
    add: Annotated[bool, typer.Option("--add", help="Keep the present secrets valid, too.")] = False,
    verify_token: Annotated[bool, typer.Option("--verify-token", help="Set the platform's verify token.")] = False,
) -> Shown:
    """Set the secret of a platform, which is asked for or read from standard input. The other secrets stay."""
    if verify_token and (account or add):
        raise Misused("A platform has only one verify token: leave --account and --add out.")
    stage, secrets = _read(ctx, platform)
    name = f"account {account} of {platform}" if account else platform
    if not (value := _given(f"{'Verify token' if verify_token else 'Secret'} of {name}: ")):
        raise Misused("There is no secret on standard input.")
    entry = secrets[platform] = _described(secrets.get(platform))
    if account:
        accounts = entry.setdefault("accounts", {})
        entry = accounts[account] = _described(accounts.get(account))
    others = [each for each in _texts(entry) if each != value]
    entry["verifyToken" if verify_token else "secret"] = [value, *others] if add else value
    stage.client("secretsmanager").put_secret_value(
        SecretId=stage.webhook_secret_id(), SecretString=json.dumps(secrets)
    )
    what = "a new verify token" if verify_token else counted(len(_texts(entry)), "secret")
    soon = f"in force within {SECRET_LIFE_MS // 1_000} s, or at a refused webhook"
    return {"platform": platform, "account": account, "has": what}, f"Now {name} has {what}, {soon}."


@app.command()
def check(ctx: Ctx, platform: Platform, *, account: Account = None) -> None:
    """Count the secrets of a platform. Say which of them is the text on standard input, if there is one."""
    described = _described(_read(ctx, platform)[1].get(platform))
    entries = {"secret": _texts(described), "verifyToken": _texts({"secret": described.get("verifyToken")})}
    entries |= {f"account {name}": _texts(_described(own)) for name, own in described.get("accounts", {}).items()}
    given = b"" if sys.stdin.isatty() else _given("").encode()
    rows: list[Json] = []
    for name, secrets in entries.items():
        if secrets and (not account or name == f"account {account}"):
            same = any(hmac.compare_digest(given, each.encode("utf-8", "replace")) for each in secrets)
            rows.append({"entry": name, "count": len(secrets)} | ({"same": same} if given else {}))
    if not rows:
        raise NotFound("This stage has no such secret.")
    show_result(ctx.obj, {"platform": platform, "entries": rows}, table(rows))
    if given and not any(row["same"] for row in rows):
        raise FoundProblems("The text on standard input is none of these secrets.")


def _read(ctx: Ctx, platform: str) -> tuple[StageClient, Json]:
    """Return the stage and its secrets. Raise Misused if there is no such platform."""
    # The library would make every other command slow.
    from message_buffer.errors import InvalidInput  # noqa: PLC0415
    from message_buffer.rules.doors import is_door_name  # noqa: PLC0415
    from message_buffer.rules.rules_and_defaults import check_platform_names  # noqa: PLC0415

    kind, slash, door = platform.partition("/")
    try:
        check_platform_names([kind])
    except InvalidInput as error:
        raise Misused(f"{error}.") from error
    if slash if kind != "custom" else not is_door_name(door):
        raise Misused("Name a platform, or a door as custom/<door>.")
    stage = ctx.obj.find()
    found = stage.client("secretsmanager").get_secret_value(SecretId=stage.webhook_secret_id())["SecretString"]
    try:
        secrets = json.loads(found)
    except ValueError:
        secrets = None
    if not isinstance(secrets, dict):
        raise Failed("The stage's secret is not a JSON object: put one there first (docs/runbook.md#webhook-secrets).")
    return stage, secrets


def _given(question: str) -> str:
    """Return the text that the operator types unseen, or that standard input has."""
    value = getpass(question) if sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")
    if value != value.strip() or not value.isprintable():
        raise Misused("A secret is one line, without a space before or after it.")
    return value


def _described(entry: Any) -> Json:
    """Return the long form of an entry, whose short form is a secret or a list of secrets."""
    return entry if isinstance(entry, dict) else {"secret": entry or []}


def _texts(described: Json) -> list[str]:
    """Return an entry's secrets, without what ingest ignores."""
    secrets = described.get("secret")
    listed = secrets if isinstance(secrets, list) else [secrets]
    return [each for each in listed if isinstance(each, str) and each]
