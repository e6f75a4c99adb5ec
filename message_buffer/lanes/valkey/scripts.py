"""Loads the Lua scripts and the contract each one states in its header.

A header names every key, every argument and every word the script can answer. The store builds a call's keys from it
and refuses a call or an answer that does not fit, so script and caller cannot drift apart unnoticed.
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


class Script(NamedTuple):
    name: str
    source: bytes
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    words: frozenset[bytes]


class InvalidHeader(Exception):
    pass


def parse_script(name: str, source: str) -> Script:
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


@cache
def load_script(name: str, directory: Path = LUA_DIRECTORY, shebang: str = "") -> Script:
    """A script by name. `shebang` goes before it as the first line; the tests' strict server wants `#!lua`."""
    text = (directory / f"{name}.lua").read_text("utf-8")
    script = parse_script(name, text)
    if not shebang:
        return script
    source = f"{shebang}\n{text}".encode()
    return script._replace(source=source, sha=sha1(source, usedforsecurity=False).hexdigest())
