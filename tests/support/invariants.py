"""Invariants between any two calls, checked on the keys themselves."""

from collections.abc import Mapping

from message_buffer.lanes.valkey.keys import shard_of
from tests.support.engine import Engine, Key
from tests.support.model import ConversationModel

Keys = dict[str, Key]

_NOTHING = Key("none", -2, [])


def assert_invariants(engine: Engine) -> None:
    assert_keys_hold(engine.keys())


# -- without a model -------------------------------------------------------------------------------


def assert_keys_hold(keys: Keys) -> None:
    """Fail if the keys contradict each other, or if a message could be forgotten or expire."""
    pending = keys.get("{b0}:pending", _NOTHING).pairs
    inflight = keys.get("{b0}:inflight", _NOTHING).pairs
    assert not pending.keys() & inflight.keys(), "in pending and in flight at once"
    for name, key in keys.items():
        _, kind, *rest = name.split(":", 2)
        if not rest:
            assert (key.ttl_ms > 0) == (kind == "quota"), f"{name} belongs to the whole shard"
        if kind in ("msgs", "batch"):
            conversation = rest[0]
            scheduled = conversation.encode() in pending.keys() | inflight.keys()
            assert scheduled, f"{name} holds messages that nothing will emit"
            assert_nothing_expires(keys, conversation)
        if kind == "wake":
            assert len(key.value) <= 1
    waiting = {name.split(":", 2)[2].encode() for name in keys if name.startswith("{b0}:msgs:")}
    assert open_buffers(keys) == waiting, "an open buffer for each conversation with messages, and for no other"


def open_buffers(keys: Keys) -> set[bytes]:
    return keys.get("{b0}:open", _NOTHING).pairs.keys() - {b""}


def assert_nothing_expires(keys: Keys, conversation: str) -> None:
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
        if kind not in ("open", "processor", "claimed", "held", "holds"):
            assert kind in ("conv", "seen", "emitted", "quota"), f"{name} has no owner"
            assert key.ttl_ms > 0, f"{name} stays for ever"


# -- against the model -----------------------------------------------------------------------------


def assert_agrees_with(model: Mapping[str, ConversationModel], keys: Keys) -> None:
    """Fail unless the keys of shard 0 hold exactly what the model says of each conversation."""
    held = keys.get("{b0}:held", _NOTHING).pairs
    ends = {name: each.held_until for name, each in model.items()}
    ends |= {f"handoff/{name}": each.marked_until for name, each in model.items()}
    assert held == {name.encode(): b"%d" % end for name, end in ends.items() if end}
    holds = {
        f"{holder}/{name}".encode(): f"{until} {cause}".encode()
        for name, each in model.items()
        for holder, (until, cause) in each.holds.items()
    }
    assert keys.get("{b0}:holds", _NOTHING).pairs == holds
    buffers = keys.get("{b0}:open", _NOTHING).pairs
    for name, each in model.items():
        assert shard_of(name, 1) == 0
        own = {kind: keys.get(f"{{b0}}:{kind}:{name}", _NOTHING) for kind in ("msgs", "batch", "taken", "conv", "seen")}
        buffer = buffers.get(name.encode())
        _schedule_agrees(name, each, keys, buffer)
        _messages_agree(each, own["msgs"], own["batch"])
        _frozen_batch_agrees(each, own["taken"])
        _memories_agree(each, own["conv"], own["seen"], keys.get(f"{{b0}}:emitted:{name}"))
        _open_buffer_agrees(each, own["conv"], buffer)


def _schedule_agrees(name: str, model: ConversationModel, keys: Keys, buffer: bytes | None) -> None:
    """Check I1 and its converse: a conversation is scheduled once, at its time, if and only if it has messages."""
    member = name.encode()
    pending = keys.get("{b0}:pending", _NOTHING).pairs
    inflight = keys.get("{b0}:inflight", _NOTHING).pairs
    where = {"PENDING": (True, False), "INFLIGHT": (False, True), "IDLE": (False, False)}[model.state]
    assert (member in pending, member in inflight) == where
    assert (model.state == "IDLE") == model.is_idle
    if model.state == "PENDING":
        moved_to = int(buffer[26:39]) if buffer and model.frozen is None else 0
        assert max(int(pending[member]), moved_to) == model.scheduled_at
    elif model.state == "INFLIGHT":
        assert float(inflight[member]) == model.score  # invariant I2 is computed from this deadline


def _messages_agree(model: ConversationModel, msgs: Key, batch: Key) -> None:
    assert msgs.value == [text for _, text in model.waiting]
    # I3: content and identity of a frozen batch are those first taken.
    assert batch.value == [text for _, text in (model.frozen.messages if model.frozen else [])]


def _frozen_batch_agrees(model: ConversationModel, taken: Key) -> None:
    assert (taken is _NOTHING) == (model.frozen is None)
    if model.frozen:
        assert taken.ttl_ms == -1
        assert taken.pairs[b"batch_id"].decode() == model.frozen.batch_id


def _memories_agree(model: ConversationModel, conv: Key, seen: Key, emitted: Key | None) -> None:
    """Check that everything of an idle conversation expires, and that the ids of any other conversation do not."""
    assert seen is _NOTHING or (seen.ttl_ms > 0) == model.is_idle
    if conv is not _NOTHING and (model.is_idle or model.frozen):
        # If an author has nothing but an open buffer, conv may be lost: the buffer has its own copy of the generation.
        assert (conv.ttl_ms > 0) == model.is_idle
    assert emitted is None or emitted.ttl_ms > 0
    remembered = {batch_id.decode(): int(at) for batch_id, at in emitted.pairs.items()} if emitted else {}
    assert remembered == model.emitted


def _open_buffer_agrees(model: ConversationModel, conv: Key, buffer: bytes | None) -> None:
    assert (buffer is not None) == bool(model.waiting)
    if buffer:
        assert int(buffer[40:50]) + len(model.waiting) == model.generation
        assert (int(buffer[:13]), int(buffer[13:26])) == (model.first_at, model.last_at)
        reason, rule, wait_ms = buffer[50:].decode().split()
        assert (int(buffer[26:39]), reason, rule, int(wait_ms)) == tuple(model.due or ())
        assert (buffer[39:40] == b"f") == (model.frozen is not None)
        if model.held_until and not model.frozen:
            assert buffer[39:40] == b"h", "nobody would look for the hold"
    elif conv is not _NOTHING:
        assert int(conv.pairs.get(b"generation", 0)) == model.generation
