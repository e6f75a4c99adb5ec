"""The model test finds each of these bugs, planted in the scripts that the watchdog runs for a notice."""

import shutil
from pathlib import Path

import pytest

from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from tests.integration.test_valkey_lane_model import machine_on, replay
from tests.integration.test_valkey_lane_seeded_bugs import Bug, Step, all_are_due, claimed, taken, vip
from tests.support.machine.machine import EngineMachine
from tests.support.valkey_server import ValkeyServer


def started(machine: EngineMachine) -> None:
    machine.started_processor_works("s1.a", 0)


def processor_dies(dead_id: str) -> Step:
    return lambda machine: machine.processor_reported_dead(dead_id, 0, False)


def reported_dead(machine: EngineMachine) -> None:
    machine.conversation_processor_reported_dead(0, None, 0, True, 0, False)


def reported_dead_by_mistake(machine: EngineMachine) -> None:
    machine.conversation_processor_reported_dead(0, None, 0, False, 0, False)


def earlier_claim_reported(machine: EngineMachine) -> None:
    machine.conversation_processor_reported_dead(1, None, 0, False, 0, False)


def asleep(machine: EngineMachine) -> None:
    machine.claim("p1", 100, 0, False, False)


def a_moment(machine: EngineMachine) -> None:
    machine.engine.clock.advance(50)


BUGS = (
    Bug(
        "a notice ends the lease of any processor",
        "end_processor",
        "string.sub(found[1], 1, #dead_id + 1) == dead_id .. '.'",
        "true",
        (started, processor_dies("s2")),
    ),
    Bug(
        "an id that begins like that of the lease ends it",
        "end_processor",
        "string.sub(found[1], 1, #dead_id + 1) == dead_id .. '.'",
        "string.sub(found[1], 1, #dead_id) == dead_id",
        (started, processor_dies("s")),
    ),
    Bug(
        "the lease of the dead processor stays alive",
        "end_processor",
        "redis.call('HSET', open_key, '', alive)",
        "",
        (vip, started, processor_dies("s1"), lambda m: m.started_processor_works("s2.a", 0)),
    ),
    Bug(
        "a late notice frees the reservation of the successor",
        "end_processor",
        "local has_start, pause_id = found[3] == dead_id,",
        "local has_start, pause_id = found[3],",
        (vip, processor_dies("s1")),
    ),
    Bug(
        "the claims of a dead processor start no successor",
        "end_processor",
        "due_at = math.min(due_at, tonumber(redis.call('ZRANGE', inflight_key, 0, 0, 'WITHSCORES')[2]) or math.huge)",
        "",
        (vip, started, processor_dies("s1")),
    ),
    Bug(
        "a notice ends whatever is in flight",
        "end_claim",
        "if not is_dead then return {'STALE', start} end",
        "if not score then return {'STALE', start} end",
        (vip, claimed, lambda m: m.conversation_processor_reported_dead(0, None, 1, False, 0, False)),
    ),
    Bug(
        "a late notice takes the batch from the next run",
        "end_claim",
        "if is_taken then is_dead = string.sub(taken[1], 1, #deadline + 1) == deadline .. '.' end",
        "is_dead = is_dead or is_taken",
        (vip, taken, reported_dead, a_moment, taken, earlier_claim_reported),
    ),
    Bug(
        "a late notice takes back the claim of the next run",
        "end_claim",
        "local is_taken = score and math.ceil(score) == tonumber(taken[2])",
        "local is_taken = score and taken[1]",
        (vip, taken, reported_dead, a_moment, claimed, earlier_claim_reported),
    ),
    Bug(
        "a conversation that is put back stays in flight",
        "end_claim",
        "redis.call('ZREM', inflight_key, conversation)",
        "",
        (vip, claimed, reported_dead),
    ),
    Bug(
        "the token of the dead run stays alive",
        "end_claim",
        "redis.call('HSET', taken_key, 'token_until', now_ms - 60000)",
        "",
        (vip, taken, reported_dead, a_moment, taken),
    ),
    Bug(
        "a backlog is started although every run dies",
        "claim_due",
        "if (tonumber(owner[3]) or 0) > 1 then slots = 1 end",
        "",
        (vip, claimed, reported_dead, a_moment, claimed, a_moment, reported_dead, all_are_due, claimed),
    ),
    Bug(
        "the sleeping processor is not woken for the conversation of a dead run",
        "end_claim",
        "if due_at - string.sub(alive, 14) < 0 then",
        "if false then",
        (vip, claimed, asleep, reported_dead),
    ),
    Bug(
        "a repeated call forgets the start that it reserved",
        "end_claim",
        "found[3] == start_id and 1 or 0",
        "0",
        (
            vip, claimed, lambda m: m.leave("p1", True, 0, False), lambda m: m.time_passes(31_000 - 1_001),
            lambda m: m.conversation_processor_reported_dead(0, None, 0, True, 0, True),
        ),
    ),
)  # fmt: skip


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.script}: {bug.title}")
def test_the_model_finds(bug: Bug, valkey: ValkeyServer, tmp_path: Path) -> None:
    scripts = tmp_path / "lua"
    shutil.copytree(LUA_DIRECTORY, scripts)
    source = load_script(bug.script).source.decode()
    assert source.count(bug.good) == 1, "the script no longer has the line that this bug replaces"
    (scripts / f"{bug.script}.lua").write_text(source.replace(bug.good, bug.bad), "utf-8")

    replay(machine_on(valkey)(), bug.history)
    with pytest.raises(AssertionError):
        replay(machine_on(valkey, scripts)(), bug.history)
