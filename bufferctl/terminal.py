"""Prints results: with colours on a terminal, as plain text for everything else.

`rich` is imported only to show something with colours, so that `--help` and pipes stay quick. It gets all texts as
`Text`, within which it interprets no markup.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from bufferctl.formatting import Block, Line, Lines, Pairs, Table, Tone, as_json, cell, printable
from bufferctl.limits import LATE_MS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

STYLES: dict[Tone, str] = {"good": "green", "warning": "yellow", "bad": "bold red", "plain": ""}
NAMES = ("conversation", "conversationId", "batch", "batchId", "scope", "rule", "check")


def has_colours(stream: TextIO) -> bool:
    """Return whether the stream is a terminal whose user has not refused colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show(*blocks: Block, stream: TextIO | None = None) -> None:
    """Print the blocks with an empty line between them."""
    stream = stream or sys.stdout
    if not has_colours(stream):
        print("\n\n".join(map(str, blocks)), file=stream, flush=True)
        return
    from rich.console import Console, Group  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for number, block in enumerate(blocks):
        console.print(Group(*([Text()] if number else []), _rendered(block)), soft_wrap=isinstance(block, str))


def show_result(given: Namespace, result: Any, *blocks: Block) -> None:
    """Print the result as JSON if the operator asked for JSON, and these blocks otherwise."""
    if given.json:
        print(as_json(result))
    else:
        show(*blocks)


class Step:
    """The current step of a long command. This class shows nothing; a subclass shows it on a terminal."""

    def say(self, text: str) -> None:
        """Say what begins now."""

    def advance(self) -> None:
        """Count one of the total as done."""


@contextmanager
def working(given: Namespace, text: str, *, total: int | None = None) -> Iterator[Step]:
    """Show on a terminal what a long command does and how far it is. Erase that at the end."""
    if given.json or not has_colours(sys.stderr):
        yield Step()
        return
    from rich.console import Console  # noqa: PLC0415 - it would make --help slow
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    counted = (BarColumn(), MofNCompleteColumn()) if total else ()
    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    words = TextColumn("{task.description}", markup=False)
    with Progress(SpinnerColumn(), words, *counted, TimeElapsedColumn(), console=console, transient=True) as shown:
        task = shown.add_task(printable(text), total=total)

        class Shown(Step):
            def say(self, text: str) -> None:
                shown.update(task, description=printable(text))

            def advance(self) -> None:
                shown.advance(task)

        yield Shown()


def _rendered(block: Block) -> "RenderableType":
    from rich.text import Text  # noqa: PLC0415 - it would make --help slow

    match block:
        case Table():
            return _table(block)
        case Pairs():
            return _pairs(block)
        case Lines():
            return Text("\n").join(_line(each) for each in block.lines)
        case _:
            return Text(printable(block, kept="\n"))


def _line(line: Line) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - it would make --help slow

    return Text(printable(line.text, kept="\n"), style=STYLES[line.tone])


def _table(block: Table) -> "RenderableType":
    from rich import box, table  # noqa: PLC0415 - it would make --help slow
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = table.Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for column in block.columns:
        values = [row.get(column) for row in block.rows]
        is_number = any(isinstance(each, int) for each in values) and not column.endswith(("At", "Until"))
        shown.add_column(Text(column), justify="right" if is_number else "left", overflow="fold")
    for row, cells in zip(block.rows, block.cells(), strict=True):
        shown.add_row(
            *(Text(text, style=_style(name, row.get(name))) for name, text in zip(block.columns, cells, strict=True))
        )
    return Group(shown, *(Text(printable(note)) for note in block.notes))


def _pairs(block: Pairs) -> "RenderableType":
    from rich.table import Table as Grid  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    grid = Grid.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in block.fields.items():
        grid.add_row(Text(name, style="bold"), Text(cell(name, value), style=_style(name, value)))
    return grid


def _style(name: str, value: Any) -> str:
    if value is None:
        return "dim"
    if (name, value) == ("reason", "hold") or name == "heldUntil" or (name == "overdueMs" and value > LATE_MS):
        return STYLES["warning"]
    if name == "problem" or (name == "found" and str(value).startswith("FAILED")):
        return STYLES["bad"]
    if name == "layer" and value != "defaults":
        return STYLES["good"]
    return "cyan" if name in NAMES else ""
