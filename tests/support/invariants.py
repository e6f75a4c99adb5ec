"""Invariants between any two calls, checked on the keys themselves."""

from tests.support.engine import Engine, Key

_NOTHING = Key("none", -2, [])


def assert_invariants(engine: Engine) -> None:
    keys = engine.keys()
    pending = keys.get("{b0}:pending", _NOTHING).pairs
    inflight = keys.get("{b0}:inflight", _NOTHING).pairs
    assert not pending.keys() & inflight.keys(), "in pending and in flight at once"
    for name, key in keys.items():
        _, kind, *rest = name.split(":", 2)
        if not rest:
            assert key.ttl_ms < 0, f"{name}, which belongs to the whole shard, expires"
        if kind in ("msgs", "batch"):
            conversation = rest[0]
            scheduled = conversation.encode() in pending.keys() | inflight.keys()
            assert scheduled, f"{name} holds messages that nothing will emit"
            assert_nothing_expires(keys, conversation)
        if kind == "wake":
            assert len(key.value) <= 1
    waiting = {name.split(":", 2)[2].encode() for name in keys if name.startswith("{b0}:msgs:")}
    assert open_buffers(keys) == waiting, "an open buffer for each conversation with messages, and for no other"


def open_buffers(keys: dict[str, Key]) -> set[bytes]:
    return {name for name in keys.get("{b0}:open", _NOTHING).pairs if name}


def assert_nothing_expires(keys: dict[str, Key], conversation: str) -> None:
    for kind in ("conv", "msgs", "batch", "taken", "seen"):
        key = keys.get(f"{{b0}}:{kind}:{conversation}", _NOTHING)
        # The conv hash of an open buffer may be lost, but not while it describes a frozen batch.
        if kind != "conv" or b"frozen" in key.pairs:
            assert key.ttl_ms < 0, f"{kind} of {conversation} expires while messages wait"


def assert_nothing_left_behind(engine: Engine) -> None:
    """Assert that only the shard's own keys remain, and keys that expire by themselves."""
    keys = engine.keys()
    assert open_buffers(keys) == set()
    for name, key in keys.items():
        kind = name.split(":", 2)[1]
        if kind not in ("open", "processor", "claimed", "held"):
            assert kind in ("conv", "seen", "emitted"), f"{name} has no owner"
            assert key.ttl_ms > 0, f"{name} stays for ever"
