"""The formula is stated twice, in lua/ and in `message_buffer.rules.due_time`. Both say the same to the millisecond."""

import inspect
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from types import ModuleType
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.rules import due_time
from tests.conftest import PROFILE
from tests.support.engine import Engine
from tests.support.two_formulas import TwoFormulas


def play(engine: Engine, seed: int, formula: ModuleType = due_time) -> None:
    engine.admin.flushall()
    TwoFormulas(engine, Random(seed), formula=formula).play()


@pytest.mark.promise("P4")
@pytest.mark.timeout(300)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**64 - 1))
def test_the_scripts_and_the_formula_agree_over_any_history(unwatched: Engine, seed: int) -> None:
    play(unwatched, seed)


class Planted(NamedTuple):
    title: str
    where: str
    """A script, or `due_time` for the formula in Python."""
    good: str
    bad: str


DIFFERENCES = (
    Planted("what is due moves", "buffer_message", "old_due_at <= now_ms then", "old_due_at < now_ms then"),
    Planted(
        "a gap as long as the inference is typing",
        "buffer_message",
        "gap_ms - typing_ms < 0",
        "gap_ms - typing_ms <= 0",
    ),
    Planted(
        "the first message is typing",
        "buffer_message",
        "elseif count > 1 and gap_ms",
        "elseif gap_ms and gap_ms",
    ),
    Planted(
        "the rhythm does not replace the inference",
        "buffer_message",
        "elseif mean then",
        "elseif mean and not (count > 1 and gap_ms - typing_ms < 0) then",
    ),
    Planted(
        "the wait is that of the rhythm before rounding",
        "buffer_message",
        "mean, dev = string.format('%.1f', mean), string.format('%.1f', dev)",
        "call('HSET', conv_key, 'gap_mean', string.format('%.1f', mean), 'gap_dev', string.format('%.1f', dev))",
    ),
    Planted(
        "the deviation learns from the new mean",
        "buffer_message",
        "math.abs(mean - gap_ms)",
        "math.abs(0.875 * mean + 0.125 * gap_ms - gap_ms)",
    ),
    Planted(
        "a gap at the ceiling does not count",
        "buffer_message",
        "gap_ms <= tonumber(ceiling_ms)",
        "gap_ms < tonumber(ceiling_ms)",
    ),
    Planted("a press teaches the rhythm", "buffer_message", " and pressed == '' then", " then"),
    Planted("the rhythm is rounded down", "buffer_message", "math.ceil(mean + k * dev)", "math.floor(mean + k * dev)"),
    Planted(
        "the ceiling goes before the floor",
        "buffer_message",
        "if wait_ms - floor_ms < 0 then",
        "if wait_ms - floor_ms < 0 and wait_ms - ceiling_ms < 0 then",
    ),
    Planted(
        "a lag of exactly a minute is a wrong clock", "buffer_message", "gap_ms >= -minute_ms", "gap_ms > -minute_ms"
    ),
    Planted("time runs back", "buffer_message", "then arrived_at = last_at end", "then end"),
    Planted(
        "the wait counts from the host's clock",
        "buffer_message",
        "due_at = arrived_at + wait_ms",
        "due_at = now_ms + wait_ms",
    ),
    Planted(
        "the longest wait is a silence if both end at once",
        "buffer_message",
        "elseif due_at >= latest_at then",
        "elseif due_at > latest_at then",
    ),
    Planted(
        "a message that reaches the minimum waits",
        "buffer_message",
        "if count - min_messages < 0 then",
        "if count - min_messages <= 0 then",
    ),
    Planted(
        "the count is reached one message later",
        "buffer_message",
        "count - max_messages >= 0 and",
        "count - max_messages > 0 and",
    ),
    Planted(
        "the count makes a time that has passed later",
        "buffer_message",
        "count - max_messages >= 0 and due_at >= now_ms",
        "count - max_messages >= 0",
    ),
    Planted(
        "the bytes are counted after the flush",
        "buffer_message",
        "has_max_bytes and due_at >= now_ms",
        "has_max_bytes and due_at > now_ms",
    ),
    Planted(
        "the bytes are reached one byte later", "buffer_message", "large - due_bytes >= 0", "large - due_bytes > 0"
    ),
    Planted("the bytes of an earlier buffer count", "buffer_message", "call('HDEL', conv_key, 'large')", ""),
    Planted(
        "a flush makes a time that has passed later",
        "buffer_message",
        "if flush_reason ~= '' and due_at >= now_ms then",
        "if flush_reason ~= '' then",
    ),
    Planted(
        "a hold that has ended counts",
        "buffer_message",
        "held_until > now_ms and due_at < held_until",
        "due_at < held_until",
    ),
    Planted(
        "a hold's end is the reason for an equal time",
        "buffer_message",
        "held_until > now_ms and due_at < held_until",
        "held_until > now_ms and due_at <= held_until",
    ),
    Planted(
        "a press cuts off what waits already",
        "buffer_message",
        "if is_pressed and old_due_at and old_due_at > due_at then",
        "if false then",
    ),
    Planted(
        "a press keeps the time, not the reason",
        "buffer_message",
        "due_at then due_at, reason = old_due_at, nil end",
        "due_at then due_at = old_due_at end",
    ),
    Planted(
        "a press waits as if it was typed", "buffer_message", "if is_pressed then wait_ms,", "if false then wait_ms,"
    ),
    Planted(
        "a press keeps the time of messages that lacked company",
        "buffer_message",
        "and (count == 1 or count - min_messages > 0)",
        "",
    ),
    Planted(
        "a press that exceeds the minimum waits as a typed message",
        "buffer_message",
        "or count - min_messages > 0)",
        "or count - min_messages > 1)",
    ),
    Planted("retime moves what is due", "retime_buffer", "old_due_at <= now_ms then", "old_due_at < now_ms then"),
    Planted("retime may choose the past", "retime_buffer", "earliest_at = now_ms", "earliest_at = 0"),
    Planted("retime counts the messages, not the gaps", "retime_buffer", "/ (count - 1)", "/ count"),
    Planted("retime forgets the rhythm", "retime_buffer", "if adaptive ~= '' then", "if false then"),
    Planted("retime forgets the minimum", "retime_buffer", "if count - min_messages < 0 then", "if false then"),
    Planted("retime forgets the count", "retime_buffer", "if count - max_messages >= 0 and", "if false and"),
    Planted(
        "retime counts before it bounds",
        "retime_buffer",
        "if flush_reason ~= '' and due_at >= now_ms",
        "if flush_reason ~= '' and due_at > now_ms",
    ),
    Planted(
        "retime ends a hold", "retime_buffer", "if held_until > now_ms and due_at < held_until then", "if false then"
    ),
    Planted("typing shortens a wait", "extend_wait", "or due_at <= old_due_at then", "then"),
    Planted("typing moves what is due", "extend_wait", "if old_due_at <= now_ms or", "if old_due_at < now_ms or"),
    Planted(
        "typing exceeds the longest wait",
        "extend_wait",
        "math.min(now_ms + extend_ms, latest_at)",
        "now_ms + extend_ms",
    ),
    Planted("typing keeps the reason", "extend_wait", "if due_at == latest_at then", "if false then"),
    Planted(
        "the floor is named for the rhythm",
        "buffer_message",
        "floor_ms, floor_rule end",
        "floor_ms, 'adaptive' end",
    ),
    Planted("a fixed window is named for its bound", "buffer_message", "silence_rule == 'windowMs' and", "false and"),
    Planted(
        "too few messages are named for the bound",
        "buffer_message",
        "'max_wait', 'minMessages'",
        "'max_wait', 'maxWaitMs'",
    ),
    Planted("the wait counts from now", "buffer_message", "due_at - arrived_at end", "due_at - now_ms end"),
    Planted("a hold keeps the rule", "hold_buffer", "'hold', 'hold')", "'hold', 'silenceMs')"),
    Planted("a hold makes a buffer due earlier", "hold_buffer", "if due_at < held_until then", "if true then"),
    Planted(
        "a hold leaves what is due",
        "hold_buffer",
        "if due_at < held_until then",
        "if due_at > now_ms and due_at < held_until then",
    ),
    Planted(
        "a resume moves what is due",
        "resume_buffer",
        "if word == 'RESUMED' and due_at > now_ms then",
        "if word == 'RESUMED' then",
    ),
    Planted(
        "a hold that has ended is resumed",
        "resume_buffer",
        "if held_until > now_ms then word",
        "if held_until >= now_ms then word",
    ),
    Planted(
        "a flush renames what is due", "flush_buffer", "if due_at > now_ms then\n  due_at", "if buffer then\n  due_at"
    ),
    Planted("what is due moves", "due_time", "facts.due.due_at_ms <= now_ms:", "facts.due.due_at_ms < now_ms:"),
    Planted(
        "a gap as long as the inference is typing",
        "due_time",
        "facts.gap_ms < timing.typing_ms",
        "facts.gap_ms <= timing.typing_ms",
    ),
    Planted(
        "the first message is typing",
        "due_time",
        "    if facts.message_count > 1 and facts.gap_ms is not None",
        "    if facts.gap_ms is not None",
    ),
    Planted("a gap at the ceiling does not count", "due_time", "if gap_ms > ceiling_ms:", "if gap_ms >= ceiling_ms:"),
    Planted("a press teaches the rhythm", "due_time", "or timing.pressed_ms is not None or gap_ms", "or gap_ms"),
    Planted("the first deviation is the gap", "due_time", "round(gap_ms / 2, 1)", "round(float(gap_ms), 1)"),
    Planted(
        "the rhythm is not rounded",
        "due_time",
        "round(0.875 * rhythm.mean_ms + 0.125 * gap_ms, 1)",
        "0.875 * rhythm.mean_ms + 0.125 * gap_ms",
    ),
    Planted("a lag of exactly a minute is a wrong clock", "due_time", "lag_ms <= MINUTE_MS", "lag_ms < MINUTE_MS"),
    Planted(
        "the longest wait is a silence if both end at once",
        "due_time",
        "due.due_at_ms >= latest_at_ms",
        "due.due_at_ms > latest_at_ms",
    ),
    Planted(
        "the count makes a time that has passed later",
        "due_time",
        "    if due.due_at_ms >= now_ms:\n",
        "    if True:\n",
    ),
    Planted(
        "the count goes before the bytes",
        "due_time",
        "        if facts.has_max_bytes:",
        "        if facts.has_max_bytes and facts.message_count < timing.max_messages:",
    ),
    Planted(
        "a press cuts off what waits already",
        "due_time",
        "return facts.due if facts.due is not None and facts.due.due_at_ms > pressed.due_at_ms else pressed",
        "return pressed",
    ),
    Planted(
        "a press keeps the time of messages that lacked company",
        "due_time",
        " or (facts.message_count > 1 and facts.message_count <= timing.min_messages)",
        "",
    ),
    Planted("a hold that has ended counts", "due_time", " if facts.held_until_ms > now_ms else due", ""),
    Planted(
        "a hold's end is the reason for an equal time",
        "due_time",
        "due if due.due_at_ms >= held_until_ms",
        "due if due.due_at_ms > held_until_ms",
    ),
    Planted("typing keeps the reason", "due_time", "if extended_ms == latest_at_ms:", "if False:"),
)


def first_failing(engine: Engine, formula: ModuleType) -> int | None:
    """Return the first of some histories over which the scripts and the formula differ, or None."""
    for seed in range(500):
        try:
            play(engine, seed, formula)
        except AssertionError:
            return seed
    return None


# Each takes a second. Every third is enough for each change; the nightly run plants all.
PLANTED = DIFFERENCES if PROFILE == "nightly" else DIFFERENCES[::3]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: f"{planted.where}: {planted.title}")
def test_a_planted_difference_is_found(planted: Planted, unwatched: Engine, tmp_path: Path) -> None:
    formula, engine = due_time, unwatched
    if planted.where == "due_time":
        source = inspect.getsource(due_time)
        (tmp_path / "planted.py").write_text(changed(source, planted), "utf-8")
        formula = loaded(tmp_path / "planted.py")
    else:
        scripts = tmp_path / "lua"
        shutil.copytree(LUA_DIRECTORY, scripts)
        source = load_script(planted.where).source.decode()
        (scripts / f"{planted.where}.lua").write_text(changed(source, planted), "utf-8")
        engine = Engine(unwatched.client, unwatched.admin, shebang=unwatched.shebang, scripts=scripts)

    found_by = first_failing(engine, formula)
    assert found_by is not None
    play(unwatched, found_by)


def loaded(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def changed(source: str, planted: Planted) -> str:
    assert source.count(planted.good) == 1, "the line that this difference replaces has changed: plant it anew"
    return source.replace(planted.good, planted.bad)
