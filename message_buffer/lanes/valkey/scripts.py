"""Loads the Lua scripts and the contract each one states in its header.

A header names every key, every argument and every word the script can answer. The store builds a call's keys from it
and refuses a call or an answer that does not fit, so script and caller cannot drift apart unnoticed.

A line `-- include name` in a script stands for include/name.lua. The loader puts that file there as one line, so the
line numbers in the server's error messages are those of the script's file.
"""

import re
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

LUA_DIRECTORY = Path(__file__).parents[3] / "lua"

_KEY = re.compile(r"^-- KEYS\[(\d+)\]\s+\{b<shard>\}:(\S+)\s+\S+")
_ARG = re.compile(r"^-- ARGV\[(\d+)\]\s+([a-z_]+)\s+\S+")
_WORD = re.compile(r"\"([A-Z_]+)\"")

_MEANS_INCLUDE = re.compile(r"--\W*include\b")
_INCLUDE = re.compile(r"\s*-- include ([a-z_]+)")
_STRING_OR_COMMENT = re.compile(r"""'(?:[^'\\\n]|\\[^\n])*'|"(?:[^"\\\n]|\\[^\n])*"|--[^\n]*""")


class Script(NamedTuple):
    name: str
    source: bytes
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    words: frozenset[bytes]


class InvalidHeader(Exception):
    pass


class InvalidInclude(Exception):
    pass


def parse_script(name: str, source: str) -> Script:
    """Return the script with the contract that its header states. `source` has no includes left."""
    keys: list[str] = []
    args: list[str] = []
    words: frozenset[bytes] = frozenset()
    lines = source.split("\n")
    if not lines[0].startswith(f"-- {name}: "):
        raise InvalidHeader(f"{name}.lua: the first line must read '-- {name}: what it does'")
    for line in lines:
        if not line.startswith("--"):
            break
        for pattern, names in ((_KEY, keys), (_ARG, args)):
            if found := pattern.match(line):
                names.append(found[2])
                if int(found[1]) != len(names):
                    raise InvalidHeader(f"{name}.lua: out of order: {line}")
        if line.startswith("-- Returns "):
            words = frozenset(word.encode() for word in _WORD.findall(line))
    if not keys or not args or not words:
        raise InvalidHeader(f"{name}.lua: the header must name KEYS, ARGV and what the script Returns")
    body = source.encode()
    # The protocol identifies a script by its SHA-1; nothing is protected by it.
    return Script(name, body, sha1(body, usedforsecurity=False).hexdigest(), tuple(keys), tuple(args), words)


def expand_includes(name: str, text: str, directory: Path = LUA_DIRECTORY) -> str:
    """Return the script's text with each include in place of the line that names it, line for line."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if _MEANS_INCLUDE.search(line):
            found = _INCLUDE.fullmatch(line)
            if not found:
                raise InvalidInclude(f"{name}.lua: line {at + 1} must read '-- include name'")
            path = directory / "include" / f"{found[1]}.lua"
            if not path.is_file():
                raise InvalidInclude(f"{name}.lua: line {at + 1}: there is no include/{found[1]}.lua")
            lines[at] = on_one_line(found[1], path.read_text("utf-8"))
    return "\n".join(lines)


def on_one_line(name: str, text: str) -> str:
    """Return an include's code without its comments on one line; raise InvalidInclude if that could change it."""
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
    lines = [line.strip() for line in code.split("\n") if line.strip()]
    # After a line break Lua refuses such a line as ambiguous; after a space it would call what stands before it.
    if any(line.startswith("(") for line in lines):
        raise InvalidInclude(f"{where}: no line may begin with a parenthesis")
    return " ".join(lines)


@cache
def load_script(name: str, directory: Path = LUA_DIRECTORY, shebang: str = "") -> Script:
    """Return a script by its name. The tests' strict server wants `shebang`, `#!lua`, as the first line."""
    text = expand_includes(name, (directory / f"{name}.lua").read_text("utf-8"), directory)
    script = parse_script(name, text)
    if not shebang:
        return script
    source = f"{shebang}\n{text}".encode()
    return script._replace(source=source, sha=sha1(source, usedforsecurity=False).hexdigest())
