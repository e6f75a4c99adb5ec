"""Changes and checks the secrets of the stage's webhooks: one JSON object, whose form `lambdas/ingest` describes."""

import hmac
import json
import sys
from getpass import getpass
from typing import Annotated

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
    """Set a platform's secret: type it, or give it on standard input. Other platforms' secrets stay."""
    if verify_token and (account or add):
        raise Misused("A platform has only one verify token: leave --account and --add out.")
    # The library would make every other command slow.
    from lambdas.ingest.webhook_secrets import described, secrets_of  # noqa: PLC0415

    _read(ctx, platform, account)
    name = f"account {account} of {platform}" if account else platform
    if not (value := _given(f"{'Verify token' if verify_token else 'Secret'} of {name}: ")):
        raise Misused("There is no secret on standard input.")
    # Read the secrets after the question, because another operator may have changed them while this one typed.
    stage, stored = _read(ctx, platform, account)
    try:
        secrets = dict(**json.loads(stored))
    except (TypeError, ValueError) as error:
        raise Failed("The stage's secret is not a JSON object: put one there first.") from error
    entry = secrets[platform] = described(secrets.get(platform))
    if account:
        if not isinstance(entry.get("accounts"), dict):  # ingest ignores accounts in another form
            entry["accounts"] = {}
        accounts = entry["accounts"]
        entry = accounts[account] = described(accounts.get(account))
    others = [each for each in secrets_of(entry) if each != value]
    entry["verifyToken" if verify_token else "secret"] = [value, *others] if add else value
    stage.client("secretsmanager").put_secret_value(
        SecretId=stage.webhook_secret_id(), SecretString=json.dumps(secrets)
    )
    what = "a new verify token" if verify_token else counted(len(secrets_of(entry)), "secret")
    shown = f"Now {name} has {what}, in force within {SECRET_LIFE_MS // 1_000} s, or at a refused webhook."
    if door := platform.partition("/")[2]:
        shown += f"\nA door without a mapping answers 404; `bufferctl rules set door:{door}` gives it one."
    return {"platform": platform, "account": account, "has": what}, shown


@app.command()
def check(ctx: Ctx, platform: Platform, *, account: Account = None) -> None:
    """Count the secrets of a platform. If standard input has a secret, say in which entries it is."""
    from lambdas.ingest.webhook_secrets import NOBODY, parse  # noqa: PLC0415 - as above

    found = parse(_read(ctx, platform, account)[1]).get(platform, NOBODY)
    entries = {"secret": found.secrets, "verifyToken": (found.verify_token,) if found.verify_token else ()}
    entries |= {f"account {name}": secrets for name, secrets in found.accounts.items()}
    given = b"" if sys.stdin.isatty() else _given("").encode()
    rows: list[Json] = []
    for name, secrets in entries.items():
        if secrets and (not account or name == f"account {account}"):
            same = any(hmac.compare_digest(given, each.encode()) for each in secrets)
            rows.append({"entry": name, "count": len(secrets)} | ({"same": same} if given else {}))
    if not rows:
        raise NotFound("This stage has no such secret.")
    show_result(ctx.obj, {"platform": platform, "entries": rows}, table(rows))
    if given and not any(row["same"] for row in rows):
        raise FoundProblems("The text on standard input is none of these secrets.")


def _read(ctx: Ctx, platform: str, account: str | None) -> tuple[StageClient, str]:
    """Return the stage, and its secrets in JSON. Raise Misused if there is no such platform or account."""
    from message_buffer.errors import InvalidInput  # noqa: PLC0415 - as above
    from message_buffer.rules.rules_and_defaults import check_platform_names  # noqa: PLC0415

    kind, _, door = platform.partition("/")
    try:
        check_platform_names([kind])
    except InvalidInput as error:
        raise Misused(f"{error}.") from error
    if bool(door) != (kind == "custom"):
        raise Misused("Name a platform, or a door as custom/<door>.")
    if account == "":  # an empty variable of a shell would otherwise change the secret of the platform
        raise Misused("The account is empty.")
    stage = ctx.obj.find()
    return stage, stage.webhook_secrets()


def _given(question: str) -> str:
    """Return the text that the operator types unseen, or that standard input has."""
    try:
        value = getpass(question) if sys.stdin.isatty() else sys.stdin.read().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise Misused("A secret is text in UTF-8.") from error
    if value != value.strip() or not value.isprintable():
        raise Misused("A secret is one line, without a space before or after it.")
    return value
