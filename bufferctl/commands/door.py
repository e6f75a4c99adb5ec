"""Tries a door's mapping on the body of a webhook. This needs no stage: ingest's own code reads the body here."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bufferctl.errors import Failed, Misused
from bufferctl.formatting import as_json
from bufferctl.options import Shown
from bufferctl.terminal import show_error

if TYPE_CHECKING:
    from message_buffer.rules.door_reading import DoorItem
    from message_buffer.rules.doors import Door

DEFAULT_NAME = "door"

app = typer.Typer(help="Try the mapping of a door, which turns webhooks into messages.")


@app.callback()
def group() -> None:
    """Keep `try` a command of its own: typer would make the only command of a group the group itself."""


@app.command("try")
def try_mapping(
    mapping: Annotated[Path, typer.Argument(help="a file with the mapping")],
    body: Annotated[Path, typer.Argument(help="a file with the body of a webhook")],
    *,
    name: Annotated[str | None, typer.Option(help="The door's name; default: that of the file.")] = None,
    secret_file: Annotated[
        Path | None, typer.Option(help="A file with the door's secret: check the proof, too. - is standard input.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="A header of the webhook, such as 'X-Signature: abc'. May be repeated.")
    ] = None,
) -> Shown:
    """Show the messages that a mapping makes of a body. This needs no stage."""
    # The library would make every other command slow.
    from message_buffer.clock import system_clock  # noqa: PLC0415
    from message_buffer.errors import InvalidInput  # noqa: PLC0415
    from message_buffer.rules.door_reading import items_of  # noqa: PLC0415
    from message_buffer.rules.doors import is_door_name, read_door  # noqa: PLC0415

    name = name or (mapping.stem if is_door_name(mapping.stem) else DEFAULT_NAME)
    if not is_door_name(name):
        raise Misused("A door's name has at most 31 lower-case letters, digits and single hyphens.")
    described, received = _json_of(mapping), _json_of(body)
    try:
        door = read_door(name, described)
    except InvalidInput as error:
        raise Failed(f"The mapping is wrong:\n{error}") from error
    if secret_file:
        secret = sys.stdin.read() if str(secret_file) == "-" else _bytes_of(secret_file).decode(errors="replace")
        show_error(_checked(door, _bytes_of(body), header or (), secret.rstrip("\r\n"), now_ms=system_clock()))
    elif header:
        raise Misused("--header checks nothing without --secret-file.")
    try:
        items = items_of(door, received, received_at_ms=system_clock())
        read = [_shown(item, leave_out=door.mapping.unreadable == "ignore") for item in items]
    except InvalidInput as error:
        raise Failed(f"This body would be refused: {error}") from error
    return read, as_json(read)


def _checked(door: "Door", body: bytes, headers: Sequence[str], secret: str, *, now_ms: int) -> str:
    """Return a sentence about the webhook's proof, which ingest's own code checks. Raise Failed if it is wrong."""
    from lambdas.ingest.platforms.base import Credentials, Webhook  # noqa: PLC0415 - as above
    from lambdas.ingest.platforms.custom import Custom  # noqa: PLC0415

    split = (each.partition(":") for each in headers)
    webhook = Webhook("POST", "", {name.strip().lower(): value.strip() for name, _, value in split}, {}, body)
    platform, proof = Custom(door), door.mapping.proof
    if platform.authenticate(webhook, Credentials((secret,))):
        is_fresh = platform.is_fresh(webhook, now_ms=now_ms, time_is_required=True)
        return "The proof is right." if is_fresh else "The proof is right, but its time is too far from now for ingest."
    # Print no secret.
    secretless = {"token": f"{proof.prefix}(the secret)", "basic": "Basic (the secret in base64)"}
    value = secretless.get(proof.type) or platform.expected(webhook, secret)
    time = f", made with the header {proof.time_header}" if proof.time_header else ""
    missing = [each for each in (proof.header, proof.time_header) if each and each not in webhook.headers]
    given = f" Missing: {', '.join(missing)}." if missing else ""
    raise Failed(f"Ingest would answer 401. By this secret it expects the header {proof.header}: {value}{time}.{given}")


def _shown(item: "DoorItem", *, leave_out: bool) -> Mapping[str, Any]:
    from message_buffer.errors import InvalidInput  # noqa: PLC0415 - as above
    from message_buffer.rules.door_reading import require_room  # noqa: PLC0415

    try:
        read = item.read()
        if isinstance(read, str):
            return {"ignored": read}
        fields = read._asdict()
        conversation = str(fields.pop("conversation"))
        if message := fields.pop("message", None):
            # Refuse a message that is too large, as ingest does.
            require_room(message)
            fields["message"] = message.model_dump(by_alias=True, exclude_unset=True)
    except InvalidInput as error:
        if leave_out:
            return {"ignored": "unreadable", "because": str(error)}
        raise
    shown = {"is": type(read).__name__.lower(), "conversation": conversation} | fields
    return shown | ({"leftOut": item.left_out} if item.left_out else {})


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror}.") from error


def _json_of(path: Path) -> Any:
    try:
        return json.loads(_bytes_of(path))
    except (ValueError, RecursionError) as error:
        raise Misused(f"{path} is not JSON in UTF-8: {error}.") from error
