"""The store: one typed method per script in lua/, under the script's name.

Every script may be repeated with the same arguments, so a call whose answer was lost is simply made again, with the
time and the call id of the first try.
"""

import re
from collections.abc import Callable, Iterable
from os import urandom
from pathlib import Path
from typing import Any

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidId, InvalidInput, InvalidSettings, ScriptInvariantBroken
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.valkey.connection import Argument, Connection
from message_buffer.lanes.valkey.keys import batch_prefix, encode_conversation, script_keys, shard_of
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.lanes.valkey.settings import NOT_TOLD, StoreSettings
from message_buffer.limits import DAY_MS
from message_buffer.messages.wire_form import id_line
from message_buffer.rules.timing import Timing

FIRST_PAGE = "open:0"  # of list_conversations
_CURSOR = re.compile("(open|inflight|pending):[0-9]{1,20}")


class Store:
    def __init__(
        self,
        connection: Connection,
        settings: StoreSettings,
        *,
        clock: Clock = system_clock,
        scripts: Path = LUA_DIRECTORY,
        shebang: str = "",
        new_call_id: Callable[[], str] = lambda: urandom(8).hex(),
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._scripts = scripts
        self._shebang = shebang
        self._new_call_id = new_call_id
        self.settings = settings

    def shard_of(self, conversation: str) -> int:
        return shard_of(conversation, self.settings.shards)

    # -- what a conversation goes through ----------------------------------------------------------------------

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing
    ) -> o.Buffered | o.Duplicate:
        word, due_at_ms, count, start = self._run(
            "buffer_message", conversation, self._clock(), conversation, encode_message_id(message_id), payload,
            *timing.for_scripts, *self._start(),
        )  # fmt: skip
        if word == b"BUFFERED":
            return o.Buffered(due_at_ms, count, bool(start))
        return o.Duplicate(_or_none(due_at_ms), count, bool(start))

    def take_batch(self, conversation: str, token: str) -> o.Taken | o.Busy | o.Stale:
        s = self.settings
        reply = self._run(
            "take_batch", conversation, self._clock(), conversation, token, _told("executor_ms", s.executor_ms),
            batch_prefix(conversation), s.max_batch, s.max_batch_bytes,
        )  # fmt: skip
        match reply[0]:
            case b"TAKEN":
                _, batch_id, attempt, generation, first_at, last_at, due_at, why, left_out, *payloads = reply
                return o.Taken(
                    batch_id.decode(), attempt, generation, first_at, last_at, due_at, why.decode(), payloads,
                    left_out=None if left_out is None else _positions(left_out),
                )  # fmt: skip
            case b"BUSY":
                return o.Busy(reply[1])
            case _:
                return o.Stale()

    def settle_batch(self, conversation: str, token: str, *, left_out: Iterable[int]) -> o.Settled | o.Stale:
        words = " ".join(map(str, sorted(left_out)))
        reply = self._run("settle_batch", conversation, token, words)
        return o.Stale() if reply[0] == b"STALE" else o.Settled()

    def complete_batch(self, conversation: str, token: str) -> o.Completed | o.Stale:
        reply = self._run(
            "complete_batch", conversation, self._clock(), conversation, token, self.settings.seen_ms,
            self.settings.max_emitted, *self._start(),
        )  # fmt: skip
        if reply[0] == b"STALE":
            return o.Stale()
        return o.Completed(_or_none(reply[1]), reply[2], bool(reply[3]))

    def retry_batch(self, conversation: str, token: str, *, retry_at_ms: int) -> o.Retried | o.Stale:
        reply = self._run("retry_batch", conversation, self._clock(), conversation, token, retry_at_ms, *self._start())
        return o.Stale() if reply[0] == b"STALE" else o.Retried(reply[1], bool(reply[2]))

    # -- what operators, control words and typing events do to it ----------------------------------------------

    def flush_buffer(self, conversation: str) -> o.Flushed | o.Empty:
        reply = self._run("flush_buffer", conversation, self._clock(), conversation, *self._start())
        return o.Empty() if reply[0] == b"EMPTY" else o.Flushed(reply[1], reply[2], bool(reply[3]))

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled | o.AlreadyCancelled:
        """`cancel_id`: of the message that asked for it, so that its redelivery does not cancel again."""
        reply = self._run(
            "cancel_buffer", conversation, self._clock(), conversation,
            encode_message_id(cancel_id or self._new_call_id()), self.settings.seen_ms,
        )  # fmt: skip
        if reply[0] == b"REPEATED":
            return o.AlreadyCancelled(reply[1])
        return o.Cancelled(reply[1], reply[2], reply[3], bool(reply[4]))

    def hold_buffer(self, conversation: str, *, hold_ms: int) -> o.OnHold:
        _whole("hold_ms", hold_ms, 1, DAY_MS)
        now_ms = self._clock()
        _, held_until_ms, start = self._run(
            "hold_buffer", conversation, now_ms, conversation, now_ms + hold_ms, *self._start()
        )
        return o.OnHold(held_until_ms, bool(start))

    def resume_buffer(self, conversation: str) -> o.Resumed | o.NotHeld:
        word, due_at_ms, start = self._run("resume_buffer", conversation, self._clock(), conversation, *self._start())
        outcome = o.Resumed if word == b"RESUMED" else o.NotHeld
        return outcome(_or_none(due_at_ms), bool(start))

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended | o.Unmoved | o.Empty:
        _whole("extend_ms", extend_ms, 1, DAY_MS)
        _whole("max_wait_ms", max_wait_ms, 1, DAY_MS)
        reply = self._run("extend_wait", conversation, self._clock(), conversation, extend_ms, max_wait_ms)
        match reply[0]:
            case b"EXTENDED":
                return o.Extended(reply[1])
            case b"UNMOVED":
                return o.Unmoved(reply[1])
            case _:
                return o.Empty()

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed | o.Unmoved | o.Empty:
        """For the buffers that were open when their rules changed; what comes later is buffered by the new ones."""
        reply = self._run(
            "retime_buffer", conversation, self._clock(), conversation, *timing.for_scripts, *self._start()
        )
        match reply[0]:
            case b"RETIMED":
                return o.Retimed(reply[1], reply[2], bool(reply[3]))
            case b"UNMOVED":
                return o.Unmoved(reply[1])
            case _:
                return o.Empty()

    def edit_message(self, conversation: str, message_id: str, *, payload: bytes) -> o.Edited | o.Frozen | o.Absent:
        reply = self._run(
            "edit_message", conversation, encode_message_id(message_id), id_line(message_id), payload,
            self.settings.max_search, self.settings.max_emitted,
        )  # fmt: skip
        return o.Edited(reply[1], reply[2]) if reply[0] == b"EDITED" else _not_waiting(reply)

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted | o.Frozen | o.Absent:
        reply = self._run(
            "delete_message", conversation, conversation, encode_message_id(message_id), id_line(message_id),
            self.settings.max_search, self.settings.seen_ms, self.settings.max_emitted,
        )  # fmt: skip
        return o.Deleted(reply[1]) if reply[0] == b"DELETED" else _not_waiting(reply)

    def find_message(self, conversation: str, message_id: str) -> o.Waiting | o.Frozen | o.Absent:
        reply = self._run(
            "find_message", conversation, encode_message_id(message_id), id_line(message_id),
            self.settings.max_search, self.settings.max_emitted,
        )  # fmt: skip
        return o.Waiting(reply[1]) if reply[0] == b"WAITING" else _not_waiting(reply)

    def peek_conversation(self, conversation: str, *, limit: int = 0) -> o.Conversation:
        word, scheduled, due, why, count, first, last, generation, held, batch_id, attempt, frozen, *payloads = (
            self._run("peek_conversation", conversation, conversation, limit)
        )
        return o.Conversation(
            word.decode(), _or_none(scheduled), _or_none(due), why.decode() or None, count, _or_none(first),
            _or_none(last), generation, _or_none(held), batch_id.decode() or None, attempt, frozen, payloads,
        )  # fmt: skip

    # -- what processors and the watchdog do to a shard --------------------------------------------------------

    def acquire_lease(self, shard: int, lease_id: str) -> o.Acquired | o.Held:
        word, expires_at_ms = self._run_shard("acquire_lease", shard, self._clock(), lease_id, self._lease_ms)
        return o.Acquired(expires_at_ms) if word == b"ACQUIRED" else o.Held(expires_at_ms)

    def renew_lease(self, shard: int, lease_id: str) -> o.Renewed | o.Lost:
        reply = self._run_shard("renew_lease", shard, self._clock(), lease_id, self._lease_ms)
        return o.Renewed(reply[1]) if reply[0] == b"RENEWED" else o.Lost()

    def leave_if_idle(self, shard: int, lease_id: str) -> o.Released | o.WorkIsNear | o.Lost:
        return self._release_lease(shard, lease_id, "idle")

    def hand_over(self, shard: int, lease_id: str) -> o.Released | o.WorkIsNear | o.Lost:
        return self._release_lease(shard, lease_id, "handover")

    def _release_lease(self, shard: int, lease_id: str, reason: str) -> o.Released | o.WorkIsNear | o.Lost:
        reply = self._run_shard("release_lease", shard, self._clock(), lease_id, reason, *self._start())
        match reply[0]:
            case b"RELEASED":
                return o.Released(_or_none(reply[1]), bool(reply[2]))
            case b"PENDING":
                return o.WorkIsNear(reply[1])
            case _:
                return o.Lost()

    def claim_due(self, shard: int, lease_id: str, *, limit: int = 100) -> o.Claimed | o.Lost:
        s = self.settings
        reply = self._run_shard(
            "claim_due",
            shard,
            self._clock(),
            lease_id,
            limit,
            _told("claim_ms", s.claim_ms),
            s.look_ms,
            self._new_call_id(),
        )
        if reply[0] == b"LOST":
            return o.Lost()
        pairs = zip(reply[2::2], reply[3::2], strict=True)  # a repeat answers the times as strings
        return o.Claimed(_or_none(reply[1]), [o.Due(name.decode(), int(due_at_ms)) for name, due_at_ms in pairs])

    def return_claim(
        self, conversation: str, lease_id: str, *, due_at_ms: int
    ) -> o.Returned | o.Busy | o.Stale | o.Lost:
        reply = self._run("return_claim", conversation, self._clock(), conversation, lease_id, due_at_ms)
        match reply[0]:
            case b"RETURNED":
                return o.Returned(reply[1])
            case b"BUSY":
                return o.Busy(None)
            case b"STALE":
                return o.Stale()
            case _:
                return o.Lost()

    def recover_expired(self, shard: int, *, limit: int = 500) -> o.Recovered:
        _, pending, inflight, oldest_due_at_ms, heartbeat_at_ms, start, *conversations = self._run_shard(
            "recover_expired", shard, self._clock(), limit, *self._start()
        )
        return o.Recovered(
            pending, inflight, _or_none(oldest_due_at_ms), _or_none(heartbeat_at_ms), bool(start),
            [name.decode() for name in conversations],
        )  # fmt: skip

    def list_conversations(self, shard: int, *, cursor: str = FIRST_PAGE, limit: int = 100) -> o.Page:
        """A buffer that is open from the first page to the last is on one of them, whatever happens to it meanwhile.

        A conversation with nothing but a frozen batch is, too, unless it moves between the calls.
        """
        if not _CURSOR.fullmatch(cursor):
            raise InvalidInput(f"a cursor is what the page before gave, not {cursor!r}")
        _whole("limit", limit, 1, 1000)
        _, next_cursor, *rows = self._run_shard("list_conversations", shard, cursor, limit)
        listed = zip(rows[::3], rows[1::3], rows[2::3], strict=True)
        return o.Page(
            next_cursor.decode() or None, [o.Listed(name.decode(), state.decode(), at) for name, state, at in listed]
        )

    # -- how a call is made ------------------------------------------------------------------------------------

    def _start(self) -> tuple[str, int, int]:
        return self._new_call_id(), self.settings.start_ms, self.settings.horizon_ms

    @property
    def _lease_ms(self) -> int:
        return _told("lease_ms", self.settings.lease_ms)

    def _run(self, name: str, conversation: str, *args: Argument) -> list[Any]:
        return self._call(name, shard_of(conversation, self.settings.shards), encode_conversation(conversation), args)

    def _run_shard(self, name: str, shard: int, *args: Argument) -> list[Any]:
        return self._call(name, shard, b"", args)

    def _call(self, name: str, shard: int, conversation: bytes, args: tuple[Argument, ...]) -> list[Any]:
        script = load_script(name, self._scripts, self._shebang)
        if len(args) != len(script.args):
            raise ScriptInvariantBroken(f"{name} takes {len(script.args)} arguments, not {len(args)}")
        return self._connection.run(script, script_keys(script.keys, shard, conversation), args)


def _told(name: str, value: int) -> int:
    if value == NOT_TOLD:
        raise InvalidSettings(f"{name} is not among this function's settings, so it must not make this call")
    return value


def _whole(name: str, value: int, low: int, high: int) -> None:
    """The scripts keep times in 13 digits: a fraction, or a digit more, would spoil what stands behind it."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidInput(f"{name} is a whole number from {low} to {high}, not {value}")


def encode_message_id(message_id: str) -> bytes:
    try:
        return message_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidId("a message id must be valid Unicode: it holds a lone surrogate") from error


def _positions(words: bytes) -> frozenset[int]:
    return frozenset(map(int, words.split()))


def _or_none(value: int) -> int | None:
    return None if value == -1 else value


def _not_waiting(reply: list[Any]) -> o.Frozen | o.Absent:
    if reply[0] == b"FROZEN":
        return o.Frozen(reply[1].decode())
    return o.Absent(bool(reply[1]), reply[2].decode() or None)
