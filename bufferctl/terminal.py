"""Prints results. A terminal gets colours and a layout that fits its width; a pipe or a file gets plain text.

`rich` is imported only for a terminal, so that `--help` and pipes stay quick. Every text is passed to `rich` as `Text`,
because `rich` would interpret markup in strings.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from bufferctl.formatting import (
    GAP,
    INDENT,
    Block,
    Lines,
    Pairs,
    TextLine,
    TextTable,
    Tone,
    as_json,
    cell,
    is_time,
    printable,
    without_today,
    wrapped,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

# In a healthy stage, no conversation is overdue for longer than this. A terminal shows longer times in another colour.
LATE_MS = 2_000
# In a narrow terminal, columns of long texts shrink to this width. If that is not enough, the layout changes.
MIN_FOLDED_CHARACTERS = 20
UNKNOWN_WIDTH = 80
STYLES: dict[Tone, str] = {"good": "green", "warning": "yellow", "bad": "bold red", "plain": ""}
NAMES = ("conversation", "conversationId", "batch", "batchId", "scope", "rule", "check")


def has_colours(stream: TextIO) -> bool:
    """Return whether the stream is a terminal whose user has not refused colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def has_progress(stream: TextIO) -> bool:
    """Return whether the stream is a terminal on which a line can be erased."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def show(*blocks: Block, stream: TextIO | None = None) -> None:
    """Print the blocks with an empty line between them. On a terminal, use a layout that fits its width."""
    stream = stream or sys.stdout
    if not stream.isatty():
        # Replace control characters, because a pipe may also lead to a terminal, for example through `less -R`.
        print("\n\n".join(printable(str(each), kept="\n") for each in blocks), file=stream, flush=True)
        return
    from rich.console import Group  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    console = _console(stream)
    for number, block in enumerate(blocks):
        shown = _rendered(block, console.width)
        console.print(Group(*([Text()] if number else []), shown), soft_wrap=isinstance(block, str))


def show_result(given: Namespace, result: Any, *blocks: Block) -> None:
    """Print the result as JSON if the operator asked for JSON, and these blocks otherwise."""
    if given.json:
        print(as_json(result))
    else:
        show(*blocks)


def show_error(text: str) -> None:
    """Print an error. This needs no `rich`, whose absence may be the error."""
    text = printable(text, kept="\n")
    print(wrapped(text, width=get_terminal_size().columns) if sys.stderr.isatty() else text, file=sys.stderr)


class Step:
    """The current step of a long command. This class shows nothing; a subclass shows it on a terminal."""

    def say(self, text: str) -> None:
        """Say what begins now."""

    def advance(self) -> None:
        """Count one part of the total as done."""


@contextmanager
def working(given: Namespace, text: str, *, total: int | None = None) -> Iterator[Step]:
    """Show the progress of a long command on a terminal. Erase it at the end."""
    if given.json or not has_progress(sys.stderr):
        yield Step()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    counted = (BarColumn(), MofNCompleteColumn()) if total else ()
    console = _console(sys.stderr)
    words = TextColumn("{task.description}", markup=False)
    with Progress(SpinnerColumn(), words, *counted, TimeElapsedColumn(), console=console, transient=True) as shown:
        task = shown.add_task(printable(text), total=total)

        class Shown(Step):
            def say(self, text: str) -> None:
                shown.update(task, description=printable(text))

            def advance(self) -> None:
                shown.advance(task)

        yield Shown()


def _console(stream: TextIO) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - it would make --help slow

    colours: Literal["auto"] | None = "auto" if has_colours(stream) else None
    console = Console(file=stream, highlight=False, markup=False, emoji=False, color_system=colours)
    if console.width == 0:
        # COLUMNS=0 means that the width is not known. Set one, because rich would print nothing.
        console.width = UNKNOWN_WIDTH
    return console


def _rendered(block: Block, width: int) -> "RenderableType":
    from rich.text import Text  # noqa: PLC0415 - it would make --help slow

    match block:
        case TextTable():
            return _table(block, width)
        case Pairs():
            return _pairs(block.fields)
        case Lines():
            return Text("\n").join(_line(each, width) for each in block.lines)
        case _:
            return Text(printable(block, kept="\n"))


def _line(line: TextLine, width: int) -> "Text":
    from rich.cells import cell_len  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    text, rest = printable(line.text, kept="\n"), printable(line.rest)
    between = " " * GAP if cell_len(text) + GAP + cell_len(rest) <= width else "\n" + " " * INDENT
    shown = wrapped(text + between + rest if rest else text, width=width, hang=line.hang)
    return Text(shown, style=STYLES[line.tone])


class _Column(NamedTuple):
    name: str
    cells: "list[Text]"
    width: int
    """The width of the column's longest text."""
    is_number: bool
    may_fold: bool
    """True for texts. False for times, and for names, because people copy these."""

    @property
    def min_width(self) -> int:
        return min(self.width, MIN_FOLDED_CHARACTERS) if self.may_fold else self.width


def _table(block: TextTable, width: int) -> "RenderableType":
    """Return the first layout that fits: rows, rows without today's date, rows below their names, a line per field."""
    from rich.console import Group  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    columns = _columns(block)
    first, *others = columns
    indented = width - INDENT
    shown: list[RenderableType] = []
    shortened = _columns(block, without_dates=True)
    if widths := _fitted(columns, width):
        shown.append(_grid(columns, widths, range(len(block.rows)), has_header=True))
    elif widths := _fitted(shortened, width):
        shown.append(_grid(shortened, widths, range(len(block.rows)), has_header=True))
    elif others and first.name in NAMES and (widths := _fitted(others, indented)):
        shown += [Text(first.name, style="bold"), _padded(_grid(others, widths, (), has_header=True))]
        for number, name in enumerate(first.cells):
            shown += [name, _padded(_grid(others, widths, (number,), has_header=False))]
    else:
        for number, row in enumerate(block.rows):
            fields = {each: row.get(each) for each in block.columns[1:]}
            name = first.cells[number] if first.name in NAMES else Text(f"{first.name} {first.cells[number]}")
            shown += [*([Text()] if number else []), name, _padded(_pairs(fields))]
    return Group(*shown, *(Text(printable(note)) for note in block.notes))


def _padded(shown: "RenderableType") -> "RenderableType":
    from rich.padding import Padding  # noqa: PLC0415 - it would make --help slow

    return Padding(shown, (0, 0, 0, INDENT))


def _columns(block: TextTable, *, without_dates: bool = False) -> list[_Column]:
    from rich.cells import cell_len  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    rows, columns = block.cells(), []
    for place, name in enumerate(block.columns):
        values = [row.get(name) for row in block.rows]
        texts = [without_today(cells[place]) if without_dates and is_time(name) else cells[place] for cells in rows]
        columns.append(
            _Column(
                name,
                [Text(text, style=_style(name, value)) for text, value in zip(texts, values, strict=True)],
                max(map(cell_len, (name, *texts))),
                is_number=any(isinstance(each, int) for each in values) and not is_time(name),
                may_fold=not is_time(name) and name not in NAMES,
            )
        )
    return columns


def _fitted(columns: list[_Column], width: int) -> list[int] | None:
    """Return widths for the columns, or None if they do not fit. Columns that may wrap share the remaining width."""
    room = width - GAP * (len(columns) - 1) - sum(each.min_width for each in columns)
    if room < 0:
        return None
    widths = []
    for each in columns:
        more = min(each.width - each.min_width, room)
        room -= more
        widths.append(each.min_width + more)
    return widths


def _grid(columns: list[_Column], widths: list[int], rows: Iterable[int], *, has_header: bool) -> "RenderableType":
    from rich import box, table  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    # The padding is one less than the gap, because the box itself adds a space between two columns.
    shown = table.Table(
        box=box.SIMPLE_HEAD, show_header=has_header, header_style="bold", padding=(0, GAP - 1, 0, 0), pad_edge=False,
        show_edge=False,
    )  # fmt: skip
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["right", "left"] = "right" if column.is_number else "left"
        shown.add_column(Text(column.name), justify=justify, overflow="fold", width=width)
    for row in rows:
        shown.add_row(*(column.cells[row] for column in columns))
    return shown


def _pairs(fields: Mapping[str, Any]) -> "RenderableType":
    from rich.table import Table as Grid  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    grid = Grid.grid(padding=(0, GAP))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields.items():
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
