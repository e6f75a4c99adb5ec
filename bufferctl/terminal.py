"""Prints results by `rich`. A terminal gets colours and a layout that fits its width; a pipe gets a line for each row.

`rich` is imported when something is printed, so that `--help` stays quick. Every text is passed to it as `Text`,
because `rich` would interpret markup in strings.
"""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from bufferctl.errors import Misused
from bufferctl.formatting import (
    GAP,
    Block,
    Lines,
    Pairs,
    TextTable,
    Tone,
    as_json,
    cell,
    is_time,
    printable,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

# In a healthy stage, no conversation is overdue for longer than this. A terminal shows longer times in another colour.
LATE_MS = 2_000
# No line of a pipe is wrapped.
PIPE_WIDTH = 1_000_000
STYLES: dict[Tone, str] = {"good": "green", "warning": "yellow", "bad": "bold red", "plain": ""}
# People copy these, so they are never wrapped.
NAMES = ("conversation", "conversationId", "batch", "batchId", "scope", "rule", "check")


class _Given(Protocol):
    json: bool


def show(*blocks: Block) -> None:
    """Print the blocks with an empty line between them."""
    if not sys.stdout.isatty():
        print(as_text(*blocks))
        return
    console = _console(sys.stdout)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        console.print(_rendered(block, console), soft_wrap=isinstance(block, str))


def as_text(*blocks: Block) -> str:
    """Return the blocks as plain text, in which each row has one line."""
    from rich.console import Console  # noqa: PLC0415 - it would make --help slow

    console = Console(file=io.StringIO(), width=PIPE_WIDTH, color_system=None, force_terminal=False)
    texts = []
    for block in blocks:
        with console.capture() as captured:
            console.print(_rendered(block, console))
        texts.append("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))
    return "\n\n".join(texts)


def show_result(given: _Given, result: Any, *blocks: Block) -> None:
    """Print the result as JSON if the operator asked for JSON, and these blocks otherwise."""
    if given.json:
        print(as_json(result))
    else:
        show(*blocks)


def show_error(text: str) -> None:
    print(_wrapped(text, get_terminal_size().columns if sys.stderr.isatty() else PIPE_WIDTH), file=sys.stderr)


def ask(question: str) -> str:
    """Return the operator's answer in lower case. Raise Misused if there is no terminal."""
    if not sys.stdin.isatty():
        raise Misused("There is no terminal to ask at: add --yes.")
    # Ask on stderr, because stdout may be a pipe, and with `--json` it may contain only JSON.
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return input().strip().lower()
    except EOFError:
        return ""


class Step:
    """The current step of a long command."""

    def __init__(self, update: Callable[[str], object], text: str, total: int | None) -> None:
        self._update, self._text, self._total, self._done = update, text, total, 0

    def say(self, text: str) -> None:
        """Say what begins now."""
        self._update(printable(text))

    def advance(self) -> None:
        """Count one part of the total as done."""
        self._done += 1
        self.say(f"{self._text}: {self._done} of {self._total}")


@contextmanager
def working(given: _Given, text: str, *, total: int | None = None) -> Iterator[Step]:
    """Show the progress of a long command on a terminal. Erase it at the end."""
    if given.json or not sys.stderr.isatty():
        yield Step(lambda _: None, text, total)
        return
    with _console(sys.stderr).status(printable(text)) as status:
        yield Step(status.update, text, total)


def _console(stream: TextIO) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - it would make --help slow

    return Console(file=stream, highlight=False, markup=False, emoji=False)


def _rendered(block: Block, console: "Console") -> "RenderableType":
    from rich.text import Text  # noqa: PLC0415 - it would make --help slow

    match block:
        case TextTable():
            return _table(block, console)
        case Pairs():
            return _pairs(block)
        case Lines():
            lines = (
                Text(_wrapped(each.text, console.width, hang=each.hang), STYLES[each.tone]) for each in block.lines
            )
            return Text("\n").join(lines)
        case _:
            return Text(printable(block, kept="\n"))


def _wrapped(text: str, width: int, *, hang: int = 0) -> str:
    """Return the text without control characters, in lines of this width, broken between words."""
    wrapper = TextWrapper(
        max(width, 1), subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False,
        replace_whitespace=False,
    )  # fmt: skip
    return "\n".join(wrapper.fill(line) for line in printable(text, kept="\n").split("\n"))


def _table(block: TextTable, console: "Console") -> "RenderableType":
    """Return the rows as a table, or if that is too wide, with a line for each field."""
    from rich.cells import cell_len  # noqa: PLC0415 - it would make --help slow
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for name in block.columns:
        values = [row.get(name) for row in block.rows]
        is_whole = is_time(name) or name in NAMES
        grid.add_column(
            Text(name),
            justify="right" if any(isinstance(each, int) for each in values) and not is_time(name) else "left",
            overflow="fold",
            min_width=max((cell_len(cell(name, each)) for each in values), default=0) if is_whole else None,
        )
    for row in block.rows:
        grid.add_row(*(_cell(name, row.get(name)) for name in block.columns))
    if console.measure(grid).minimum <= console.width:
        return grid
    records = [_pairs(Pairs({name: row.get(name) for name in block.columns})) for row in block.rows]
    return Group(*(each for record in records for each in (record, Text())))


def _pairs(block: Pairs) -> "RenderableType":
    from rich.table import Table  # noqa: PLC0415 - it would make --help slow
    from rich.text import Text  # noqa: PLC0415

    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in block.fields.items():
        grid.add_row(Text(name, style="bold"), _cell(name, value))
    return grid


def _cell(name: str, value: Any) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - it would make --help slow

    return Text(cell(name, value), style=_style(name, value))


def _style(name: str, value: Any) -> str:
    if value is None:
        return "dim"
    if (name, value) == ("reason", "hold") or name == "heldUntil" or (name == "overdueMs" and value > LATE_MS):
        return STYLES["warning"]
    if name == "problem" or (name == "found" and str(value).startswith("FAILED")):
        return STYLES["bad"]
    return "cyan" if name in NAMES else ""
