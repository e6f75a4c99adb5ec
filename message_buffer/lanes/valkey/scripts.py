"""Loads the Lua scripts, and the contract that each script states in its header.

A header names every key, every argument and every form of the answer. The store passes arguments and reads answers by
these names. The store refuses a call or an answer that does not fit the header, so script and caller cannot drift apart
unnoticed.

A script includes the code of include/name.lua with a line `-- include name`. With `-- include name: f, g`, it includes
only the functions f and g. The loader puts the included code into this one line, so that the line numbers in the
server's error messages are those of the script's file.
"""

import re
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha1
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

LUA_DIRECTORY = Path(__file__).parents[3] / "lua"

_KEY = re.compile(r"^-- KEYS\[\d+\] +\{b<shard>\}:(\S+)", re.MULTILINE)
_ARG = re.compile(r"^-- ARGV\[\d+\] +([a-z_]+)", re.MULTILINE)
_RETURNS = re.compile(r"^-- Returns +(.+(?:\n--  +.+)*)", re.MULTILINE)
_FORM = re.compile(r"\{([^{}]+)\}")
_INCLUDE = re.compile(r"^ *-- include ([a-z_]+)(?:: (.+))?$", re.MULTILINE)

Argument = str | bytes | int | float
ReadReply = Callable[[list[Any]], Any]


class Script(NamedTuple):
    name: str
    source: bytes
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    takes_conversation: bool
    """True if the conversation's id is among the arguments, not only in the names of the keys."""
    may_start: bool
    """True if the script may reserve the start of the shard's processor."""
    pick: Callable[[Mapping[str, Argument]], tuple[Argument, ...]]
    """A function that takes the arguments out of a mapping, in the header's order."""
    read: Mapping[bytes, ReadReply]
    """The first word of an answer -> a function that turns the answer into a tuple with the header's names."""


def parse_script(name: str, source: str) -> Script:
    """Return the script with the contract that its header states. The includes in `source` are already expanded."""
    header = source[: re.search(r"^(?!--)", source, re.MULTILINE).start()]  # type: ignore[union-attr]
    keys, args, returns = _KEY.findall(header), _ARG.findall(header), _RETURNS.search(header)
    assert returns is not None, f"the header of {name}.lua does not say what the script returns"
    read: dict[bytes, ReadReply] = {}
    for form in _FORM.findall(re.sub(r"\n-- +", " ", returns[1])):
        words, *items = re.split(r", (?![^(]*\))", form)
        read |= dict.fromkeys((word.encode() for word in re.findall("[A-Z_]+", words)), _reader(items))
    return Script(
        name, source.encode(), _sha(source), tuple(keys), tuple(args), "conversation" in args, "start_id" in args,
        itemgetter(*args), read,
    )  # fmt: skip


def _sha(source: str) -> str:
    # The protocol identifies a script by its SHA-1, which protects nothing here.
    return sha1(source.encode(), usedforsecurity=False).hexdigest()


def _reader(items: list[str]) -> ReadReply:
    """Return a function that turns an answer into a tuple whose fields have the names of these items.

    The function raises ValueError or TypeError if the values do not fit the items. The last item may repeat:
    `payloads...` becomes a list of that name, and `(conversation, due_at_ms)...` a list of tuples named `rows`.
    """
    last, count = items[-1] if items else "", len(items)
    has_rows, width = last.startswith("("), last.count(", ") + 1
    make = _form(tuple("rows" if item.startswith("(") else re.split(r"[ .]", item)[0] for item in items))
    if not last.endswith("..."):
        return make

    def read(values: list[Any]) -> Any:
        rest = values[count:]
        return make([*values[:count], list(zip(*[iter(rest)] * width, strict=True)) if has_rows else rest])

    return read


@cache
def _form(fields: tuple[str, ...]) -> ReadReply:
    """Return a function that makes a tuple with these names. It raises TypeError if the number of values differs."""
    reply: Any = namedtuple("Reply", ["word", *fields])  # type: ignore[misc] # the header has the names
    make: ReadReply = reply._make
    return make


def on_one_line(text: str) -> str:
    """Return an include's code on one line without comments. No string may contain `--`, and no line may begin with a
    parenthesis, which Lua would read as a call of the value before it."""
    code = (line.partition("--")[0].strip() for line in text.split("\n"))
    return " ".join(line for line in code if line)


@cache
def load_script(name: str, directory: Path = LUA_DIRECTORY, shebang: str = "") -> Script:
    """Return a script by its name. Only tests give a `shebang`, `#!lua`; it becomes the script's first line."""

    def code(include: re.Match[str]) -> str:
        included = on_one_line((directory / "include" / f"{include[1]}.lua").read_text("utf-8"))
        if include[2] is None:
            return included
        functions = {part.partition("(")[0]: part.strip() for part in included.split("local function ")}
        return " ".join(f"local function {functions[name]}" for name in include[2].split(", "))

    text = _INCLUDE.sub(code, (directory / f"{name}.lua").read_text("utf-8"))
    script = parse_script(name, text)
    if not shebang:
        return script
    source = f"{shebang}\n{text}"
    return script._replace(source=source.encode(), sha=_sha(source))
