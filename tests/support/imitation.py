"""fakeredis, with the one function that our scripts use and fakeredis lacks."""

from hashlib import sha1
from typing import Any

from fakeredis import FakeServer, FakeStrictRedis


def open_imitation() -> FakeStrictRedis:
    server: Any = FakeServer()
    client = FakeStrictRedis(server=server)
    client.eval("return 1", 0)  # creates the server's Lua runtime
    server._lua_runtime.globals()[b"redis"][b"sha1hex"] = _sha1hex
    return client


def _sha1hex(value: bytes) -> bytes:
    return sha1(value, usedforsecurity=False).hexdigest().encode()
