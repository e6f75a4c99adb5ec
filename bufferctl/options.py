"""The options that every command has, and the arguments that several commands share."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bufferctl.errors import Failed, Misused
from bufferctl.stage import LOCAL, LOCAL_OUTPUTS, StageClient, find_stage
from bufferctl.terminal import ask
from message_buffer.limits import HOUR_MS, MAX_HOLD_MS

UNITS_MS = {"s": 1_000, "m": 60_000, "h": HOUR_MS}

# A result, and the blocks that show it.
Shown = tuple[Any, ...]
JsonText = Annotated[str, typer.Argument(help="a JSON object; - reads it from standard input")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def checked_id(conversation: str | None) -> str | None:
    if conversation is not None and not re.fullmatch("[^/]+(/[^/]+){3}", conversation):
        raise typer.BadParameter(f"{conversation!r} is no conversation id, which reads tenant/platform/account/user")
    return conversation


Conversation = Annotated[str, typer.Argument(help="tenant/platform/account/user", callback=checked_id)]


@dataclass
class Given:
    """The values of the options that every command has."""

    stage: str = LOCAL
    profile: str | None = None
    region: str | None = None
    outputs: Path = LOCAL_OUTPUTS
    json: bool = False

    def find(self) -> StageClient:
        return find_stage(self.stage, profile=self.profile, region=self.region, outputs=self.outputs)

    def ask(self, operation: str, **fields: Any) -> Any:
        """Return the admin function's response."""
        return self.find().ask(operation, **fields)


class Ctx(typer.Context):
    """The context that typer passes to a command."""

    obj: Given


def confirm(question: str, *, yes: bool) -> None:
    """Return if the operator agrees. Raise Failed otherwise."""
    if not yes and ask(question) not in ("y", "yes"):
        raise Failed("Nothing was done.")


def read_json(text: str, *, what: str) -> Any:
    """Return the value that an argument of the type JsonText means. Raise Misused, which names `what` it should be."""
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise Misused(f"The {what} are not JSON: {error}.") from error


def duration_ms(text: str) -> int:
    """Return the milliseconds of a time such as 30s, 15m or 2h."""
    match = re.fullmatch(r"(\d{1,9})([smh])", text)
    value = int(match[1]) * UNITS_MS[match[2]] if match else 0
    if not 0 < value <= MAX_HOLD_MS:
        raise Misused(f"A time reads 30s, 15m or 2h, and is at most {MAX_HOLD_MS // HOUR_MS}h, not {text!r}.")
    return value
