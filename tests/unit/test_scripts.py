"""The headers of the scripts are contracts: what they say is what the code does and the store sends."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from message_buffer.errors import ScriptInvariantBroken
from message_buffer.lanes.valkey.scripts import (
    LUA_DIRECTORY,
    Script,
    load_script,
    parse_script,
)
from message_buffer.lanes.valkey.store import Store
from tests.support.engine import SETTINGS

NAMES = sorted(path.stem for path in LUA_DIRECTORY.glob("*.lua"))

# They touch pending without asking for a processor:
SCHEDULES_FOR_ITSELF = {
    "acquire_lease": "the processor itself, which is awake until its first claim",
    "claim_due": "the processor itself, which is told the next due time",
    "return_claim": "the processor itself; it wakes itself if it planned to sleep longer",
}

every_script = pytest.mark.parametrize("name", NAMES)


class Source:
    """A script as its file has it, and its code with the includes in their places."""

    def __init__(self, name: str) -> None:
        self.script = load_script(name)
        self.lines = (LUA_DIRECTORY / f"{name}.lua").read_text("utf-8").splitlines()
        self.expanded = self.script.source.decode().splitlines()
        begin = next(n for n, line in enumerate(self.lines) if not line.startswith("--"))
        self.header = self.lines[:begin]
        while not self.lines[begin]:
            begin += 1
        end = begin
        while self.lines[end].startswith(("local ", "  ", "--")):
            end += 1
        self.body, self.naming, self.code = self.lines[begin:], self.lines[begin:end], self.expanded[end:]

    @property
    def includes(self) -> dict[str, int]:
        """Each include's name with the index of the line that names it."""
        found = ((re.fullmatch(r" *-- include (\w+)(: .+)?", line), n) for n, line in enumerate(self.lines))
        return {match[1]: n for match, n in found if match}

    def wanted(self, include: str) -> set[str]:
        """The functions that it includes by name."""
        return set(re.findall(r"\w+", self.lines[self.includes[include]].partition(": ")[2]))

    @property
    def code_text(self) -> str:
        """Without comments, and with each call written out: some scripts keep redis.call in a local."""
        lines = [line.partition(" -- ")[0] for line in self.code if not line.lstrip().startswith("--")]
        return re.sub(r"(?<![\w.])call\(", "redis.call(", "\n".join(lines))

    def calls(self) -> list[str]:
        """The text of each redis.call(…), nested parentheses included."""
        return [text for text, is_call in _split_calls(self.code_text) if is_call]

    def words(self) -> set[str]:
        """Every word in quotes that is no part of a command."""
        outside = " ".join(text for text, is_call in _split_calls(self.code_text) if not is_call)
        return set(re.findall(r"'([A-Z][A-Z_]+)'", outside))


def _split_calls(text: str) -> list[tuple[str, bool]]:
    parts, at = [], 0
    for found in re.finditer(r"redis\.call\(", text):
        if found.start() < at:
            continue
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        parts += [(text[at : found.start()], False), (text[found.start() : end], True)]
        at = end
    return [*parts, (text[at:], False)]


# -- header and code -------------------------------------------------------------------------------


@every_script
def test_a_script_begins_with_what_it_needs_answers_and_keeps(name: str) -> None:
    header = "\n".join(Source(name).header)
    for part in ("-- KEYS[1]", "-- ARGV[1]", "-- Returns  {", "-- Repeat   ", "-- Keeps    "):
        assert part in header
    for line in header.splitlines()[2:]:
        assert re.match(r"-- (KEYS\[\d+\]|ARGV\[\d+\]|Returns|Repeat|Keeps|       ) +\S", line), line


@every_script
def test_the_first_lines_name_every_key_and_argument_and_nothing_after_them_does(name: str) -> None:
    source = Source(name)
    naming = "\n".join(source.naming)
    for kind, names in (("KEYS", source.script.keys), ("ARGV", source.script.args)):
        used = [int(index) for index in re.findall(rf"{kind}\[(\d+)\]", naming)]
        assert sorted(set(used)) == list(range(1, len(names) + 1))
        assert not re.search(rf"\b{kind}\b", source.code_text)


def locals_of(source: Source) -> dict[str, str]:
    """KEYS[n] or ARGV[n] -> the name the script gives it."""
    found: dict[str, str] = {}
    for names, values in re.findall(r"^local (.+?) =\s+(.+?)$", "\n".join(source.naming), re.MULTILINE):
        indexes = re.findall(r"(?:KEYS|ARGV)\[\d+\]", values)
        found |= dict(zip(indexes, names.split(", "), strict=True)) if indexes else {}
    return found


@every_script
def test_keys_and_arguments_are_called_in_the_code_what_the_header_calls_them(name: str) -> None:
    source = Source(name)
    names = locals_of(source)
    for n, kind in enumerate(source.script.keys, 1):
        assert names[f"KEYS[{n}]"] == f"{kind.removesuffix(':<id>')}_key"
    for n, argument in enumerate(source.script.args, 1):
        called = names[f"ARGV[{n}]"]
        assert argument.endswith(called) or called == argument.removesuffix("_ms") or called == "due_at"


@every_script
def test_every_declared_key_and_argument_is_used(name: str) -> None:
    source = Source(name)
    for called in locals_of(source).values():
        assert re.search(rf"\b{called}\b", source.code_text), called


@every_script
def test_every_key_a_command_names_is_declared(name: str) -> None:
    source = Source(name)
    declared = {called for index, called in locals_of(source).items() if index.startswith("KEYS")}
    for call in source.calls():
        used = set(re.findall(r"\b[a-z]+_key\b", call))
        assert used
        assert used <= declared | {"list_key"}, call


@every_script
def test_the_words_of_the_header_are_the_words_the_code_answers(name: str) -> None:
    source = Source(name)
    returns = "\n".join(source.header).partition("-- Returns")[2].partition("-- Repeat")[0]
    assert source.words() == set(re.findall(r'"([A-Z_]+)"', returns))
    assert source.script.read.keys() <= {word.encode() for word in source.words()}


@every_script
def test_only_includes_know_the_places_of_an_open_buffer(name: str) -> None:
    assert not re.search(r"\bsub\(buffer\b", "\n".join(Source(name).body))


@every_script
def test_a_script_takes_time_and_payloads_from_outside_and_loops_a_bounded_number_of_times(name: str) -> None:
    code = Source(name).code_text
    for forbidden in (
        r"'TIME'",
        r"\bcjson\b",
        r"\bcmsgpack\b",
        r"\bwhile\b",
        r"\brepeat\b",
        r"math\.random",
        r"\bpcall\b",
    ):
        assert not re.search(forbidden, code), forbidden


@every_script
def test_only_the_memories_of_an_idle_conversation_expire(name: str) -> None:
    for call in Source(name).calls():
        if re.search(r"EXPIRE|SETEX|'P?X'|GETEX", call):
            of_quota = call == "redis.call('PEXPIRE', quota_key, hour_ms, 'NX')"
            assert of_quota or re.match(r"redis\.call\('PEXPIRE', (conv|seen|emitted)_key, .*seen_ms\)", call), call


# -- what several scripts include ------------------------------------------------------------------


INCLUDES = sorted(path.stem for path in (LUA_DIRECTORY / "include").glob("*.lua"))


every_include = pytest.mark.parametrize("include", INCLUDES)


@every_script
def test_whoever_schedules_asks_for_a_processor(name: str) -> None:
    source = Source(name)
    schedules = any(re.match(r"redis\.call\('ZADD', pending_key", call) for call in source.calls())
    if name in SCHEDULES_FOR_ITSELF:
        assert schedules, "no reason needed any more"
    elif schedules:
        assert "start_or_wake" in source.includes


@every_script
def test_whoever_reserves_a_start_answers_so(name: str) -> None:
    source = Source(name)
    if "starting_until" in source.code_text and name != "acquire_lease":
        assert {"start_id", "start_ms", "horizon_ms"} <= set(source.script.args)
        assert "start" in "\n".join(line for line in source.header if "Returns" in line)


# -- the store -------------------------------------------------------------------------------------


class Answering:
    """A connection that has one answer."""

    def __init__(self, *answer: Any) -> None:
        self.answer = list(answer)

    def run(self, _script: Script, _keys: list[bytes], _args: tuple[Any, ...]) -> list[Any]:
        return self.answer


def methods() -> set[str]:
    return {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")} - {
        "prepare",
        "shard_of",
        "warm_up",
    }


def test_the_store_has_a_method_for_each_script_under_its_name() -> None:
    assert methods() == set(NAMES)


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        ("-- a forgotten", "renew_lease takes now_ms, lease_id; unknown or missing: lease_ms"),
        ("-- ARGV[3]  lease_word             str\n-- ARGV[4]", "unknown or missing: lease_word"),
        ("-- ARGV[3]  another                int\n-- a former", "unknown or missing: another, lease_ms"),
    ],
)
def test_the_store_refuses_a_call_that_does_not_fit_the_header(tmp_path: Path, declared: str, complaint: str) -> None:
    text = (LUA_DIRECTORY / "renew_lease.lua").read_text("utf-8")
    (tmp_path / "renew_lease.lua").write_text(text.replace("-- ARGV[3]", declared), "utf-8")
    store = Store(Answering(), SETTINGS, scripts=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ScriptInvariantBroken, match=complaint):
        store.renew_lease(0, "l")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("renew_lease", [b"RENEWED"]),
        ("renew_lease", [b"RENEWED", 1, 2]),
        ("claim_due", [b"CLAIMED"]),
        ("claim_due", [b"CLAIMED", -1, 0, 0, b"c"]),
    ],
)
def test_the_store_refuses_an_answer_that_does_not_fit_the_header(method: str, answer: list[Any]) -> None:
    with pytest.raises(ScriptInvariantBroken, match=f"{method} returned values that do not fit its header"):
        getattr(Store(Answering(*answer), SETTINGS), method)(0, "l")  # type: ignore[arg-type]


# -- the loader ------------------------------------------------------------------------------------

GOOD = """\
-- do_it: does it.
--
-- KEYS[1]  {b<shard>}:pending    zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:conv:<id>  hash  state
-- ARGV[1]  now_ms                int
-- ARGV[2]  limit                 int
-- Returns  {"DONE" | "DONE_NOW", count, next_ms | -1, state = "UP" | "DOWN", names...}
--          | {"PAGE", (name, at_ms)...} | {"NOT_DONE"}
return {'DONE', 1}
-- ARGV[3]  not_a_header          int
"""


def test_the_loader_reads_keys_arguments_and_words() -> None:
    script = parse_script("do_it", GOOD)
    assert script.keys == ("pending", "conv:<id>")
    assert script.args == ("now_ms", "limit")
    assert script.pick({"limit": 1, "now_ms": 5}) == (5, 1)
    assert script.read.keys() == {b"DONE", b"DONE_NOW", b"PAGE", b"NOT_DONE"}


def test_the_loader_reads_answers_by_the_names_of_the_header() -> None:
    read = parse_script("do_it", GOOD).read
    for word in (b"DONE", b"DONE_NOW"):
        done = read[word]([word, 3, -1, b"UP", b"a", b"b"])
        assert (done.word, done.count, done.next_ms, done.state, done.names) == (word, 3, -1, b"UP", [b"a", b"b"])
    assert read[b"PAGE"]([b"PAGE", b"a", 1, b"b", 2]).rows == [(b"a", 1), (b"b", 2)]
    assert read[b"PAGE"]([b"PAGE"]).rows == []
    assert read[b"NOT_DONE"]([b"NOT_DONE"]) == (b"NOT_DONE",)
    for short in ([b"DONE", 3, -1], [b"PAGE", b"a"], [b"NOT_DONE", 1]):
        with pytest.raises((TypeError, ValueError)):
            read[short[0]](short)  # type: ignore[index]


# -- includes --------------------------------------------------------------------------------------


def write_include(directory: Path, text: str) -> None:
    (directory / "include").mkdir()
    (directory / "include" / "shared.lua").write_text(text, "utf-8")


def test_an_include_takes_one_line_without_its_comments(tmp_path: Path) -> None:
    write_include(tmp_path, "-- shared: adds.\n\nlocal a = 1 -- goes\n  -- goes\n  b = a\n")
    (tmp_path / "s.lua").write_text(GOOD + "  -- include shared\nlast\n", "utf-8")
    assert load_script("s", tmp_path).source.decode() == GOOD + "local a = 1 b = a\nlast\n"


def test_an_include_gives_the_functions_that_are_wanted_of_it(tmp_path: Path) -> None:
    shared = "-- shared: adds.\n\nlocal function f(a)\n  return a -- itself\nend\n\nlocal function g() return 1 end\n"
    write_include(tmp_path, shared)
    (tmp_path / "s.lua").write_text(GOOD + "-- include shared: g\nlast\n", "utf-8")
    assert load_script("s", tmp_path).source.decode() == GOOD + "local function g() return 1 end\nlast\n"


@every_include
def test_an_include_means_the_same_on_one_line(include: str) -> None:
    for line in (LUA_DIRECTORY / "include" / f"{include}.lua").read_text("utf-8").splitlines():
        code = line.partition(" -- ")[0]
        assert not code.lstrip().startswith("("), "Lua would read a call of the value before it"
        assert line.startswith("--") or "--" not in code.lstrip().removeprefix("--"), "a string would be cut"
