"""The headers of the scripts are contracts: what they say is what the code does and the store sends."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from message_buffer.errors import ScriptInvariantBroken
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, InvalidHeader, Script, load_script, parse_script
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.layers import Rules
from tests.support.engine import SETTINGS

NAMES = sorted(path.stem for path in LUA_DIRECTORY.glob("*.lua"))
NOW_MS = 1_700_000_000_000

# One script, two intentions.
RELEASES = {"leave_if_idle", "hand_over"}

# Below the header. The hot path does in one round trip what would otherwise take five.
MOST_LINES = 60
MOST_LINES_OF = {"buffer_message": 105}

# They touch pending without asking for a processor:
SCHEDULES_FOR_ITSELF = {
    "claim_due": "the processor itself, which is told the next due time",
    "return_claim": "the processor itself; it wakes itself if it planned to sleep longer",
    "hold_buffer": "what is held is due later, never sooner, and the watchdog passes before",
}

every_script = pytest.mark.parametrize("name", NAMES)


class Source:
    def __init__(self, name: str) -> None:
        self.script = load_script(name)
        lines = self.script.source.decode().splitlines()
        end = next(n for n, line in enumerate(lines) if not line.startswith("--"))
        self.header, body = lines[:end], lines[end:]
        while not body[0]:
            body = body[1:]
        naming = 0
        while body[naming].startswith(("local ", "  ", "--")):
            naming += 1
        self.naming, self.code = body[:naming], body[naming:]
        self.body = body

    @property
    def code_text(self) -> str:
        """Without comments, and with each call written out: some scripts keep redis.call in a local."""
        lines = [line.partition(" -- ")[0] for line in self.code if not line.lstrip().startswith("--")]
        return re.sub(r"(?<![\w.])call\(", "redis.call(", "\n".join(lines))

    def block(self, name: str) -> list[str] | None:
        """The lines between `begin name` and `end name`, without the indentation they share."""
        marks = [n for n, line in enumerate(self.body) if re.match(rf"\s*-- (begin|end) {name}\b", line)]
        if not marks:
            return None
        begin, end = marks
        indent = len(self.body[begin]) - len(self.body[begin].lstrip())
        assert all(line.startswith(" " * indent) for line in self.body[begin : end + 1])
        return [line[indent:] for line in self.body[begin : end + 1]]

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
        assert re.match(r"-- (KEYS\[\d+\]|ARGV\[\d+\]|Returns|Repeat|Keeps) +\S", line), line


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
    assert {word.encode() for word in source.words()} == source.script.words


@every_script
def test_a_script_is_short_enough_to_be_read_at_once(name: str) -> None:
    assert len(Source(name).body) <= MOST_LINES_OF.get(name, MOST_LINES)


@every_script
def test_a_line_fits_the_screen(name: str) -> None:
    assert [line for line in Source(name).body if len(line) > 140] == []


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
            assert re.match(r"redis\.call\('PEXPIRE', (conv|seen|emitted)_key, .*seen_ms\)", call), call


# -- blocks that several scripts share -------------------------------------------------------------


@pytest.mark.parametrize(("block", "least"), [("wanted", 6), ("find", 2)])
def test_a_shared_block_is_the_same_in_every_script_letter_for_letter(block: str, least: int) -> None:
    copies = {name: lines for name in NAMES if (lines := Source(name).block(block))}
    assert len(copies) >= least
    assert len({tuple(lines) for lines in copies.values()}) == 1, sorted(copies)


@every_script
def test_whoever_schedules_asks_for_a_processor(name: str) -> None:
    source = Source(name)
    schedules = any(re.match(r"redis\.call\('ZADD', pending_key", call) for call in source.calls())
    if name in SCHEDULES_FOR_ITSELF:
        assert schedules, "no reason needed any more"
    elif schedules:
        assert source.block("wanted")


@every_script
def test_whoever_reserves_a_start_answers_so(name: str) -> None:
    source = Source(name)
    if "starting_until" in source.code_text and name != "acquire_lease":
        assert {"start_id", "start_ms", "horizon_ms"} <= set(source.script.args)
        assert "start" in "\n".join(line for line in source.header if "Returns" in line)


# -- the store -------------------------------------------------------------------------------------


class Recorder:
    """A connection that answers the first form its script's header names, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Script, list[bytes], tuple[Any, ...]]] = []

    def run(self, script: Script, keys: list[bytes], args: tuple[Any, ...]) -> list[Any]:
        self.asked.append((script, keys, args))
        form = re.search(r"Returns +\{(.*?)\}", script.source.decode())
        assert form
        items = [item for item in form[1].split(", ") if not item.endswith("...")]
        word = re.findall(r'"([A-Z_]+)"', items[0])[0]
        return [word.encode(), *map(self._value, items[1:])]

    @staticmethod
    def _value(item: str) -> bytes | int:
        if item.startswith("left_out"):
            return b"1 3"
        return b"text" if re.search(r"_id|why|cursor|^state|^conversation$", item) else 7


TIMING = Rules(adaptive=True).timing
CALLS: dict[str, dict[str, Any]] = {
    "buffer_message": {"message_id": "m", "payload": b"p", "timing": TIMING},
    "take_batch": {"token": "t"},
    "settle_batch": {"token": "t", "left_out": [3, 1]},
    "complete_batch": {"token": "t"},
    "retry_batch": {"token": "t", "retry_at_ms": NOW_MS},
    "flush_buffer": {},
    "cancel_buffer": {},
    "hold_buffer": {"hold_ms": 5},
    "resume_buffer": {},
    "extend_wait": {"extend_ms": 5, "max_wait_ms": 6},
    "retime_buffer": {"timing": TIMING},
    "edit_message": {"message_id": "m", "payload": b"p"},
    "delete_message": {"message_id": "m"},
    "find_message": {"message_id": "m"},
    "peek_conversation": {"limit": 5},
    "acquire_lease": {"lease_id": "l"},
    "renew_lease": {"lease_id": "l"},
    "leave_if_idle": {"lease_id": "l"},
    "hand_over": {"lease_id": "l"},
    "claim_due": {"lease_id": "l"},
    "return_claim": {"lease_id": "l", "due_at_ms": NOW_MS},
    "recover_expired": {},
    "list_conversations": {},
}
# What an argument of this name must be, wherever it stands.
EXPECTED = {
    "now_ms": NOW_MS,
    "conversation": "c",
    "message_id": b"m",
    "payload": b"p",
    "token": "t",
    "lease_id": "l",
    "id_line": b'"m"\n',
    "start_id": "call",
    "call_id": "call",
    "held_until_ms": NOW_MS + 5,
    "retry_at_ms": NOW_MS,
    "due_at_ms": NOW_MS,
    "extend_ms": 5,
} | {name: value for name, value in SETTINGS._asdict().items() if name.endswith("_ms")}


def methods() -> set[str]:
    return {name for name, _ in inspect.getmembers(Store, inspect.isfunction) if not name.startswith("_")} - {
        "shard_of"
    }


def test_the_store_has_a_method_for_each_script_under_its_name() -> None:
    assert methods() - RELEASES == set(NAMES) - {"release_lease"}
    assert methods() == CALLS.keys()


@pytest.mark.parametrize("method", CALLS)
def test_the_store_sends_what_the_header_asks_for(method: str) -> None:
    recorder = Recorder()
    store = Store(recorder, SETTINGS, clock=lambda: NOW_MS, new_call_id=lambda: "call")  # type: ignore[arg-type]
    of_shard = "shard" in inspect.signature(getattr(Store, method)).parameters
    getattr(store, method)(0 if of_shard else "c", **CALLS[method])
    ((script, keys, args),) = recorder.asked
    assert script.name == ("release_lease" if method in RELEASES else method)
    assert keys == [f"{{b0}}:{kind.replace('<id>', 'c')}".encode() for kind in script.keys]
    assert not (of_shard and any("<id>" in kind for kind in script.keys))
    for name, value in zip(script.args, args, strict=True):
        if name in EXPECTED:
            assert value == EXPECTED[name], name
        if name.endswith("_ms"):
            assert type(value) is int, name
    if "timing" in CALLS[method]:
        first = script.args.index("silence_ms")
        count = len(TIMING.for_scripts)
        assert script.args[first : first + count] == TIMING._fields[:count]
        assert args[first : first + count] == TIMING.for_scripts


def test_the_store_refuses_a_call_that_does_not_fit_the_header(tmp_path: Path) -> None:
    text = (LUA_DIRECTORY / "renew_lease.lua").read_text("utf-8")
    (tmp_path / "renew_lease.lua").write_text(text.replace("-- ARGV[3]", "-- a forgotten"), "utf-8")
    store = Store(Recorder(), SETTINGS, scripts=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ScriptInvariantBroken, match="renew_lease takes 2 arguments, not 3"):
        store.renew_lease(0, "l")


# -- the loader ------------------------------------------------------------------------------------

GOOD = """\
-- do_it: does it.
--
-- KEYS[1]  {b<shard>}:pending    zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:conv:<id>  hash  state
-- ARGV[1]  now_ms                int
-- Returns  {"DONE", 1} | {"NOT_DONE"}
return {'DONE', 1}
-- ARGV[2]  not_a_header          int
"""


def test_the_loader_reads_keys_arguments_and_words() -> None:
    script = parse_script("do_it", GOOD)
    assert script.keys == ("pending", "conv:<id>")
    assert script.args == ("now_ms",)
    assert script.words == {b"DONE", b"NOT_DONE"}


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("-- do_it: ", "-- do_that: ", "the first line must read '-- do_it: what it does'"),
        ("-- do_it: does it.", "local x = 1", "the first line must read"),
        ("KEYS[2]", "KEYS[3]", "out of order: -- KEYS.3"),
        ("KEYS[1]", "KEYS[0]", "out of order: -- KEYS.0"),
        ("ARGV[1]", "ARGV[2]", "out of order: -- ARGV.2"),
        ("{b<shard>}:", "", "must name KEYS"),
        ("-- ARGV[1]  now_ms                int\n", "", "must name KEYS, ARGV"),
        ("-- Returns", "-- Answers", "what the script Returns"),
        ('"DONE", 1} | {"NOT_DONE"', "1", "what the script Returns"),
    ],
)
def test_the_loader_refuses_a_malformed_header(good: str, bad: str, complaint: str) -> None:
    assert good in GOOD
    with pytest.raises(InvalidHeader, match=f"do_it.lua: .*{complaint}"):
        parse_script("do_it", GOOD.replace(good, bad))


def test_a_script_is_read_once() -> None:
    assert load_script("renew_lease") is load_script("renew_lease")


def test_a_shebang_goes_before_the_script_and_makes_it_another() -> None:
    plain, strict = load_script("renew_lease"), load_script("renew_lease", shebang="#!lua")
    assert strict.source == b"#!lua\n" + plain.source
    assert strict.sha != plain.sha
    assert strict[3:] == plain[3:]


def test_an_unknown_script_is_no_file() -> None:
    with pytest.raises(FileNotFoundError):
        load_script("no_such_script")
