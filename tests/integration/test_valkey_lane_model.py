"""Random interleavings of the whole Valkey lane on a real server, judged after each step."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from message_buffer.lanes.valkey.connection import connect
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY
from message_buffer.settings import ConnectionSettings
from tests.support.engine import Engine
from tests.support.machine.base import RULES, SETTINGS
from tests.support.machine.machine import EngineMachine
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyServer


def machine_on(server: ValkeyServer, scripts: Path = LUA_DIRECTORY) -> type[EngineMachine]:
    client, admin = connect(ConnectionSettings(server.url, answer_timeout_ms=10_000)), server.admin()

    class OnStrictCluster(EngineMachine):
        def open_engine(self) -> Engine:
            admin.flushall()
            return Engine(client, admin, settings=SETTINGS, shebang=STRICT_SHEBANG, scripts=scripts)

    return OnStrictCluster


def replay(machine: EngineMachine, history: Iterable[Callable[[EngineMachine], object]]) -> None:
    """Make these steps and judge after each one and in the end, as Hypothesis does."""
    machine.begin()
    machine.everything_holds()
    for step in history:
        step(machine)
        machine.everything_holds()
    machine.teardown()


FOUND: dict[str, tuple[Callable[[EngineMachine], object], ...]] = {
    "by a clock a minute behind, the last batch is the newest that a forget covers": (
        lambda m: m.burst("ann", RULES[4], 1, 0, False),
        lambda m: m.batches_go_out("p1", 0, 0, 0, 0),
        lambda m: m.time_passes(1),
        lambda m: m.burst("ann", RULES[0], 1, 0, False),
        lambda m: m.forget("ann", -60_000, False, True),
        lambda m: m.burst("ann", RULES[0], 1, 0, False),
    ),
}


@pytest.mark.parametrize("title", FOUND)
def test_a_history_that_the_model_once_misjudged(title: str, valkey: ValkeyServer) -> None:
    replay(machine_on(valkey)(), FOUND[title])


@pytest.mark.case(3, 12, 17, 23, 29)
@pytest.mark.promise("P1", "P2", "P3", "P4", "P7")
@pytest.mark.timeout(600)
def test_any_interleaving_keeps_every_promise(valkey: ValkeyServer) -> None:
    run_state_machine_as_test(
        machine_on(valkey),
        settings=settings(
            stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
        ),
    )
