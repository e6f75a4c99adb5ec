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
        "the third message of a batch waits as the second",
        "buffer_message",
        "count == 2 and 2 or 7",
        "count <= 3 and 2 or 7",
    ),
    Planted("a gap of exactly 3 s is a longer one", "buffer_message", "gap_ms > 3000", "gap_ms >= 3000"),
    Planted(
        "the first message after half a minute is soon after a batch",
        "buffer_message",
        "gap_ms and gap_ms <= 30000 and 1 or 0",
        "gap_ms and 1 or 0",
    ),
    Planted(
        "the learned wait does not replace the inference",
        "buffer_message",
        "elseif learned ~= '' then",
        "elseif learned ~= '' and not (count > 1 and gap_ms - typing_ms < 0) then",
    ),
    Planted(
        "a lag of exactly a minute is a wrong clock", "buffer_message", "gap_ms >= -minute_ms", "gap_ms > -minute_ms"
    ),
    Planted(
        "the wait counts from the host's clock",
        "buffer_message",
        "due_at = arrived_at + wait_ms",
        "due_at = now_ms + wait_ms",
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
    Planted("the bytes of an earlier buffer count", "buffer_message", "call('HDEL', conv_key, 'large')", ""),
    Planted(
        "a hold that has ended counts",
        "buffer_message",
        "held_until > now_ms and due_at < held_until",
        "due_at < held_until",
    ),
    Planted(
        "a press cuts off what waits already",
        "buffer_message",
        "if is_pressed and old_due_at and old_due_at > due_at then",
        "if false then",
    ),
    Planted(
        "a press keeps the time of messages that lacked company",
        "buffer_message",
        "and (count == 1 or count - min_messages > 0)",
        "",
    ),
    Planted("retime may choose the past", "retime_buffer", "earliest_at = now_ms", "earliest_at = 0"),
    Planted("retime counts the messages, not the gaps", "retime_buffer", "/ (count - 1)", "/ count"),
    Planted(
        "retime ends a hold", "retime_buffer", "if held_until > now_ms and due_at < held_until then", "if false then"
    ),
    Planted(
        "typing exceeds the longest wait",
        "extend_wait",
        "math.min(now_ms + extend_ms, latest_at)",
        "now_ms + extend_ms",
    ),
    Planted("typing keeps the reason", "extend_wait", "if due_at == latest_at then", "if false then"),
    Planted(
        "too few messages are named for the bound",
        "buffer_message",
        "'max_wait', 'minMessages'",
        "'max_wait', 'maxWaitMs'",
    ),
    Planted("a hold makes a buffer due earlier", "hold_buffer", "if due_at < held_until then", "if true then"),
    Planted(
        "a resume moves what is due",
        "resume_buffer",
        "if held_until > now_ms and due_at > ends_at then",
        "if held_until > now_ms then",
    ),
    Planted(
        "a flush renames what is due", "flush_buffer", "if due_at > now_ms then\n  due_at", "if buffer then\n  due_at"
    ),
    Planted(
        "a gap as long as the inference is typing",
        "due_time",
        "facts.gap_ms < timing.typing_ms",
        "facts.gap_ms <= timing.typing_ms",
    ),
    Planted(
        "the longest wait is a silence if both end at once",
        "due_time",
        "due.due_at_ms >= latest_at_ms",
        "due.due_at_ms > latest_at_ms",
    ),
    Planted("a hold that has ended counts", "due_time", " if facts.held_until_ms > now_ms else due", ""),
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


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("planted", DIFFERENCES, ids=lambda planted: f"{planted.where}: {planted.title}")
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
