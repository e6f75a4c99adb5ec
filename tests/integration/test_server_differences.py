"""The mistakes that only the real server refuses, so that its result decides and not that of fakeredis."""

from collections.abc import Iterator
from typing import Any

import pytest
from fakeredis import FakeServer, FakeStrictRedis
from redis.exceptions import ResponseError

from tests.support.valkey_server import ValkeyServer

KEY, KEY_OF_ANOTHER_SHARD = "{b0}:k", "{b1}:k"


@pytest.fixture
def real(valkey: ValkeyServer) -> Iterator[Any]:
    admin = valkey.admin()
    admin.flushall()
    yield admin
    admin.close()


@pytest.fixture
def imitation() -> Iterator[Any]:
    """Yield a fakeredis for each test: a script may break it for those that follow."""
    client = FakeStrictRedis(server=FakeServer())
    yield client
    client.close()


def run(client: Any, script: str, *keys: str) -> Any:
    return client.execute_command("EVAL", script, len(keys or (KEY,)), *(keys or (KEY,)))


def test_only_the_server_knows_the_shebang(real: Any, imitation: Any) -> None:
    assert run(real, "#!lua\nreturn 1") == 1
    with pytest.raises(ResponseError, match="Error running script"):
        run(imitation, "#!lua\nreturn 1")


def test_only_the_server_refuses_a_key_of_another_slot_that_was_not_declared(real: Any, imitation: Any) -> None:
    script = f"return redis.call('SET', '{KEY_OF_ANOTHER_SHARD}', 1)"
    with pytest.raises(ResponseError, match="do not hash to the same slot"):
        run(real, f"#!lua\n{script}")
    assert run(imitation, script) == b"OK"


def test_only_the_server_refuses_keys_of_two_slots_in_one_call(real: Any, imitation: Any) -> None:
    with pytest.raises(ResponseError, match="hash to the same slot"):
        run(real, "return 1", KEY, KEY_OF_ANOTHER_SHARD)
    assert run(imitation, "return 1", KEY, KEY_OF_ANOTHER_SHARD) == 1


def test_only_the_server_runs_out_of_memory(real: Any, imitation: Any) -> None:
    script = "return redis.call('RPUSH', KEYS[1], 'x')"
    real.config_set("maxmemory", 1)
    try:
        with pytest.raises(ResponseError, match="maxmemory"):
            run(real, script)
    finally:
        real.config_set("maxmemory", 0)
    imitation.config_set("maxmemory", 1)
    assert run(imitation, script) == 1
