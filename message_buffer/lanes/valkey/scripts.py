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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha1
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

LUA_DIRECTORY = Path(__file__).parents[3] / "lua"

_KEY = re.compile(r"^-- KEYS\[(\d+)\]\s+\{b<shard>\}:(\S+)\s+\S+")
_ARG = re.compile(r"^-- ARGV\[(\d+)\]\s+([a-z_]+)\s+\S+")
_WORD = re.compile(r"\"([A-Z_]+)\"")
_RETURNS_LINES = re.compile(r"^-- Returns +(.+(?:\n--  +.+)*)", re.MULTILINE)
_RETURNS = re.compile(r"\{[^{}]+\}( \| \{[^{}]+\})*")
_FIRST_ITEM = re.compile(r"\"[A-Z_]+\"( \| \"[A-Z_]+\")*")
# A field's name. After it may come the value that means "not set", or all values that the field can have.
_FIELD = re.compile(r"([a-z][a-z_]*)( \| (-1|\"\"|nil)| = \"[A-Z]+\"( \| \"[A-Z]+\")*)?")

_MEANS_INCLUDE = re.compile(r"--\W*include\b")
_INCLUDE = re.compile(r"\s*-- include ([a-z_]+)(?:: ([a-z_]+(?:, [a-z_]+)*))?")
_FUNCTION = re.compile(r"local function ([a-z_]+)\(")
_STRING_OR_COMMENT = re.compile(r"""'(?:[^'\\\n]|\\[^\n])*'|"(?:[^"\\\n]|\\[^\n])*"|--[^\n]*""")


Argument = str | bytes | int | float
ReadReply = Callable[[list[Any]], Any]


class Script(NamedTuple):
    name: str
    source: bytes
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    words: frozenset[bytes]
    takes_conversation: bool
    """True if the conversation's id is among the arguments, not only in the names of the keys."""
    may_start: bool
    """True if the script may reserve the start of the shard's processor."""
    pick: Callable[[Mapping[str, Argument]], tuple[Argument, ...]]
    """A function that takes the arguments out of a mapping, in the header's order."""
    read: Mapping[bytes, ReadReply]
    """The first word of an answer -> a function that turns the answer into a tuple with the header's names."""


class InvalidHeader(Exception):
    pass


class InvalidInclude(Exception):
    pass


def parse_script(name: str, source: str) -> Script:
    """Return the script with the contract that its header states. The includes in `source` are already expanded."""
    keys: list[str] = []
    args: list[str] = []
    lines = source.split("\n")
    if not lines[0].startswith(f"-- {name}: "):
        raise InvalidHeader(f"{name}.lua: the first line must read '-- {name}: what it does'")
    header = list(takewhile(lambda line: line.startswith("--"), lines))
    for line in header:
        for pattern, names in ((_KEY, keys), (_ARG, args)):
            if found := pattern.match(line):
                names.append(found[2])
                if int(found[1]) != len(names):
                    raise InvalidHeader(f"{name}.lua: out of order: {line}")
    returns = _RETURNS_LINES.search("\n".join(header))
    if not keys or not args or not returns:
        raise InvalidHeader(f"{name}.lua: the header must name KEYS, ARGV and what the script Returns")
    read = _replies(name, re.sub(r"\n-- +", " ", returns[1]))
    body = source.encode()
    # The protocol identifies a script by its SHA-1, which protects nothing here.
    sha = sha1(body, usedforsecurity=False).hexdigest()
    return Script(
        name, body, sha, tuple(keys), tuple(args), frozenset(read), "conversation" in args, "start_id" in args,
        _picker(args), read,
    )  # fmt: skip


def _picker(args: list[str]) -> Callable[[Mapping[str, Argument]], tuple[Argument, ...]]:
    """Return a function that takes these arguments out of a mapping. It raises KeyError if an argument is missing."""
    if len(args) == 1:
        return lambda arguments: (arguments[args[0]],)
    return itemgetter(*args)


def _replies(name: str, returns: str) -> dict[bytes, ReadReply]:
    """Return the functions that read the forms of the answer, by the first word of each form."""
    if not _RETURNS.fullmatch(returns):
        raise InvalidHeader(f"{name}.lua: what it Returns must read {{...}} | {{...}}")
    read: dict[bytes, ReadReply] = {}
    for form in re.findall(r"\{([^{}]+)\}", returns):
        first, *items = re.split(r", (?![^(]*\))", form)
        if not _FIRST_ITEM.fullmatch(first):
            raise InvalidHeader(f"{name}.lua: an answer must begin with a word: {{{form}}}")
        reader = _reader(name, items)
        read |= {word.encode(): reader for word in _WORD.findall(first)}
    return read


def _reader(name: str, items: list[str]) -> ReadReply:
    """Return a function that turns an answer into a tuple whose fields have the names of these items.

    The function raises ValueError or TypeError if the values do not fit the items.

    The last item may repeat: `payloads...` becomes a list of that name, and `(conversation, due_at_ms)...` becomes a
    list of tuples named `rows`.
    """
    repeated = items[-1] if items and items[-1].endswith("...") else ""
    single = items[:-1] if repeated else items
    if not repeated:
        return _form(_fields(name, single))
    row = re.fullmatch(r"\((.+)\)\.\.\.", repeated)
    width = len(_fields(name, row[1].split(", "))) if row else 1
    form = _form(_fields(name, [*single, "rows" if row else repeated[:-3]]))
    count = 1 + len(single)

    def read(values: list[Any]) -> Any:
        rest = values[count:]
        return form([*values[:count], list(zip(*[iter(rest)] * width, strict=True)) if row else rest])

    return read


@cache
def _form(fields: tuple[str, ...]) -> ReadReply:
    """Return a function that makes a tuple with these names. It raises TypeError if the number of values differs."""
    reply: Any = namedtuple("Reply", ["word", *fields])  # type: ignore[misc] # the header has the names
    make: ReadReply = reply._make
    return make


def _fields(name: str, items: list[str]) -> tuple[str, ...]:
    found = [_FIELD.fullmatch(item) for item in items]
    if None in found:
        raise InvalidHeader(f"{name}.lua: a part of the answer has no name: {items[found.index(None)]}")
    return tuple(match[1] for match in found if match)


def expand_includes(name: str, text: str, directory: Path = LUA_DIRECTORY) -> str:
    """Return the script's text. Each line that names an include is replaced by the include's code, as one line."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if _MEANS_INCLUDE.search(line):
            found = _INCLUDE.fullmatch(line)
            if not found:
                raise InvalidInclude(
                    f"{name}.lua: line {at + 1} must read '-- include name' or '-- include name: f, g'"
                )
            path = directory / "include" / f"{found[1]}.lua"
            if not path.is_file():
                raise InvalidInclude(f"{name}.lua: line {at + 1}: there is no include/{found[1]}.lua")
            wanted = found[2].split(", ") if found[2] else []
            lines[at] = on_one_line(found[1], path.read_text("utf-8"), wanted)
    return "\n".join(lines)


def on_one_line(name: str, text: str, wanted: Sequence[str] = ()) -> str:
    """Return an include's code, or only the functions that the script wants, on one line without comments.

    Raise InvalidInclude if Lua could understand the joined line differently from the separate lines.
    """
    where = f"include/{name}.lua"
    if not text.startswith(f"-- {name}: "):
        raise InvalidInclude(f"{where}: the first line must read '-- {name}: what it does'")
    if _MEANS_INCLUDE.search(text):
        raise InvalidInclude(f"{where}: an include includes nothing")
    if any(token.startswith("--[") for token in _STRING_OR_COMMENT.findall(text)):
        raise InvalidInclude(f"{where}: a comment must end with its line")
    code = _STRING_OR_COMMENT.sub(lambda token: "" if token[0].startswith("--") else token[0], text)
    if re.search(r"['\"]|\[=*\[", _STRING_OR_COMMENT.sub("", text)):
        raise InvalidInclude(f"{where}: a string must end on its line, and stand in ' or \"")
    lines = [line.rstrip() for line in code.split("\n") if line.strip()]
    # Once the lines are joined, Lua would read such a parenthesis as a call of the value before it.
    if any(line.lstrip().startswith("(") for line in lines):
        raise InvalidInclude(f"{where}: no line may begin with a parenthesis")
    if wanted:
        functions = _functions(lines)
        if unknown := set(wanted) - functions.keys():
            raise InvalidInclude(f"{where}: there is no function {', '.join(sorted(unknown))}")
        lines = [line for function in wanted for line in functions[function]]
    return " ".join(line.strip() for line in lines)


def _functions(lines: list[str]) -> dict[str, list[str]]:
    """Return each function's name with its lines. A function begins at the left margin."""
    functions: dict[str, list[str]] = {"": []}
    for line in lines:
        if found := _FUNCTION.match(line):
            functions[found[1]] = []
        functions[next(reversed(functions))].append(line)
    return functions


@cache
def load_script(name: str, directory: Path = LUA_DIRECTORY, shebang: str = "") -> Script:
    """Return a script by its name. Only tests give a `shebang`, `#!lua`; it becomes the script's first line."""
    text = expand_includes(name, (directory / f"{name}.lua").read_text("utf-8"), directory)
    script = parse_script(name, text)
    if not shebang:
        return script
    source = f"{shebang}\n{text}".encode()
    return script._replace(source=source, sha=sha1(source, usedforsecurity=False).hexdigest())
