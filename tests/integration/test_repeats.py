"""Any call may be made twice: because its answer got lost, or because the caller was invoked twice."""

from itertools import count
from typing import Any

import pytest

from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.lanes.valkey.store import Store
from message_buffer.settings import ConnectionSettings
from tests.support.engine import Engine
from tests.support.outcomes import same
from tests.support.proxy import behind_proxy
from tests.support.scenes import SCENES, Scene
from tests.support.valkey_server import STRICT_SHEBANG, ValkeyServer

every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)


def repeatable(engine: Engine, connection: Connection | None = None) -> Store:
    """Give every call the same call id."""
    return engine.another_store(new_call_id=lambda: "this call", connection=connection)


def bring_about(scene: Scene, engine: Engine) -> None:
    """Bring the engine into the scene's state, down to the ids of the calls that lead to it."""
    numbers = count(1)
    engine.store = engine.another_store(new_call_id=lambda: f"call {next(numbers)}")
    scene.state(engine)


def lifetimes(engine: Engine) -> dict[str, bool]:
    return {name: key.ttl_ms > 0 for name, key in engine.keys().items()}


def test_every_script_has_a_scene() -> None:
    assert {scene.script for scene in SCENES} == {path.stem for path in LUA_DIRECTORY.glob("*.lua")}


@every_scene
def test_a_repeated_call_changes_nothing_more_and_answers_as_its_header_says(engine: Engine, scene: Scene) -> None:
    scene.state(engine)
    store = repeatable(engine)
    first = scene.call(store, engine)
    once, kept_once = engine.settle(), lifetimes(engine)
    second = scene.call(store, engine)
    assert same(second, scene.again(first))
    assert engine.settle() == once
    assert lifetimes(engine) == kept_once


@pytest.fixture(scope="module")
def lossy_line(valkey: ValkeyServer) -> Any:
    admin = valkey.admin()
    with behind_proxy(valkey.port, admin) as proxy:
        for path in LUA_DIRECTORY.glob("*.lua"):
            admin.script_load(load_script(path.stem, shebang=STRICT_SHEBANG).source)
        yield proxy
    admin.close()


@pytest.mark.parametrize("lost", [1, 3])
@every_scene
def test_a_lost_answer_is_asked_for_again_and_nothing_is_doubled(
    unwatched: Engine, valkey: ValkeyServer, lossy_line: Any, scene: Scene, lost: int
) -> None:
    engine = unwatched
    bring_about(scene, engine)
    first = scene.call(repeatable(engine), engine)
    once = engine.settle()

    engine.admin.flushall()
    other = Engine(engine.client, engine.admin, shebang=STRICT_SHEBANG)
    bring_about(scene, other)
    url = valkey.url.replace(str(valkey.port), str(lossy_line.port))
    connection = Connection(lambda: connect(ConnectionSettings(url, answer_timeout_ms=10_000)), attempts=lost + 1)
    lossy_line.lose_answers(lost)
    answer = scene.call(repeatable(other, connection), other)
    connection.close()
    assert lossy_line.lost == lost
    assert other.settle() == once
    if lost == 1:
        assert same(answer, scene.again(first))
