"""Runs the scripts in lua/. For each script the store has a typed method of the same name.

Every script may be repeated with the same arguments. If a reply is lost, the connection makes the same call again, with
the time and the call id of the first try.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2s
from os import urandom
from pathlib import Path
from typing import Any, Literal, NamedTuple

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidId, ScriptInvariantBroken, TooManyHolds
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.holds import NO_END_MS, Hold, Holder, Holds, handoff_of, unexpired
from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.keys import batch_prefix, script_keys, shard_of, shard_of_encoded
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, Argument, Script, load_script
from message_buffer.limits import MAX_CALL_MS, MAX_RETRY_MS, MIN_RETRY_MS, MINUTE_MS
from message_buffer.messages.conversation_id import encode_conversation
from message_buffer.messages.wire_form import id_line
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.timing import Timing
from message_buffer.settings import StoreSettings

# For a longer message id, a lane remembers the digest. The ids of WhatsApp, Telegram and Twilio are shorter.
MAX_REMEMBERED_ID_BYTES = 96
# Checking the stage's quota and the number of waiting messages takes several commands. So they are checked only with
# messages 1, 9, 17, … of a buffer, each time for eight messages. If a rule sets the quota, every message is checked.
LOOK_EVERY = 8
# The changes of one webhook use up a quota for at most this long. If a quota is used up for much longer, the scripts
# assume that a wrong clock caused this.
MAX_OVERDRAFT_MS = 2 * MINUTE_MS
# An instance caches the quotas of this many accounts in the form that it sends to the script.
MAX_CHARGES_KEPT = 1_024
FIRST_PAGE = "open:0"  # the cursor of the first page of list_conversations
FIRST_LOOK = "near:0"  # the cursor of the first call of a search for a message


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
        self._loaded: dict[str, Script] = {}
        self._new_call_id = new_call_id
        self.settings = settings

    def prepare(self) -> None:
        """Begin to connect to Valkey, so that the first call waits less."""
        self._connection.prepare()

    def shard_of(self, conversation: str) -> int:
        return shard_of(conversation, self.settings.shards)

    def warm_up(self, *scripts: str) -> None:
        """Load these scripts and connect, so that the first calls are faster."""
        for name in scripts:
            self._load(name)
        # The function's user may not run PING, so read the state of a conversation that does not exist.
        self.peek_conversation("nobody")

    # -- a conversation's messages and batches -----------------------------------------------------------------

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.Buffered:
        # On this hot path each argument is named, because merging dictionaries takes longer than the rest of the call.
        reply = self._run(
            "buffer_message",
            conversation=conversation,
            now_ms=self._clock(),
            message_id=remembered_name(message_id),
            payload=payload,
            silence_ms=timing.silence_ms,
            typing_ms=timing.typing_ms,
            max_wait_ms=timing.max_wait_ms,
            max_messages=timing.max_messages,
            min_messages=timing.min_messages,
            flush_reason=timing.flush_reason,
            every=1 if charge is None or charge.is_exact else LOOK_EVERY,
            limits=_limits(self.settings, charge),
            pressed="" if timing.pressed_ms is None else timing.pressed_ms,
            silence_rule=timing.silence_rule,
            learned=timing.learned,
        )
        if reply.word == b"BUFFERED":
            return o.MessageBuffered(reply.due_at_ms, reply.count, _why(reply.why).rule, reply.start or None)
        if reply.word == b"REFUSED":
            return o.MessageRefused(reply.reason.decode(), reply.wait_ms)
        rule = _why(reply.why).rule if reply.why else None
        return o.MessageDuplicate(_or_none(reply.due_at_ms), reply.count, rule, reply.start or None)

    def charge_changes(self, conversation: str, charge: Charge, *, items: int) -> o.Charged | o.MessageRefused:
        """Charge changes and control words. The quotas are those of this conversation's shard.

        Their quotas are as large as those of messages, but counted apart. Otherwise the changes of a webhook would use
        up the quota of its messages with each delivery, and the messages would be refused for ever.
        """
        limits = _limits(self.settings, charge.under("changes"), items)
        reply = self._run("charge_changes", conversation=conversation, now_ms=self._clock(), limits=limits)
        return o.Charged() if reply.word == b"CHARGED" else o.MessageRefused(reply.reason.decode(), reply.wait_ms)

    def take_batch(self, conversation: str, token: str) -> o.BatchTaken | o.BatchBusy | o.RunStale:
        s = self.settings
        reply = self._run(
            "take_batch", conversation=conversation, now_ms=self._clock(), token=token, token_ms=s.token_ms,
            pause_ms=MIN_RETRY_MS, max_pause_ms=MAX_RETRY_MS, batch_prefix=batch_prefix(conversation),
            limit=s.max_batch, max_bytes=s.max_batch_bytes,
        )  # fmt: skip
        match reply.word:
            case b"TAKEN":
                return o.BatchTaken(
                    reply.batch_id.decode(), reply.attempt, reply.generation, reply.first_at_ms, reply.last_at_ms,
                    reply.due_at_ms, *_why(reply.why), reply.payloads, until_ms=reply.until_ms,
                    handoff=handoff_of(_holds("handoff", reply.handoff), self._clock()),
                    previous_at_ms=_or_none(reply.previous_at_ms), replied_at_ms=_or_none(reply.replied_at_ms),
                    tail=reply.tail.decode(),
                )  # fmt: skip
            case b"BUSY":
                return o.BatchBusy(reply.until_ms)
            case _:
                return o.RunStale()

    def renew_token(self, conversation: str, token: str) -> o.Renewed | o.RunStale:
        reply = self._run("renew_token", conversation=conversation, now_ms=self._clock(), token=token)
        return o.RunStale() if reply.word == b"STALE" else o.Renewed(reply.until_ms)

    def complete_batch(self, conversation: str, token: str, *, tail: str = "") -> o.BatchCompleted | o.RunStale:
        s = self.settings
        reply = self._run(
            "complete_batch", conversation=conversation, now_ms=self._clock(), token=token, seen_ms=s.seen_ms,
            max_emitted=s.max_emitted, max_seen=s.max_seen, tail=tail,
        )  # fmt: skip
        if reply.word == b"STALE":
            return o.RunStale()
        return o.BatchCompleted(_or_none(reply.due_at_ms), reply.count, reply.start or None)

    def retry_batch(self, conversation: str, token: str, *, retry_at_ms: int) -> o.BatchRetried | o.RunStale:
        reply = self._run(
            "retry_batch", conversation=conversation, now_ms=self._clock(), token=token, retry_at_ms=retry_at_ms
        )
        return o.RunStale() if reply.word == b"STALE" else o.BatchRetried(reply.due_at_ms, reply.start or None)

    def note_reply(self, conversation: str, *, at_ms: int) -> bool:
        """Note when a reply was sent. Return whether the conversation is known."""
        reply = self._run("note_reply", conversation=conversation, now_ms=self._clock(), at_ms=at_ms)
        return bool(reply.word == b"NOTED")

    # -- operators, control words, edits and typing events -----------------------------------------------------

    def flush_buffer(self, conversation: str) -> o.BufferFlushed | o.BufferEmpty:
        reply = self._run("flush_buffer", conversation=conversation, now_ms=self._clock())
        if reply.word == b"EMPTY":
            return o.BufferEmpty()
        return o.BufferFlushed(reply.due_at_ms, reply.count, reply.start or None)

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled:
        """Drop the messages. `cancel_id` is the id of the stop word's message, whose redelivery drops nothing."""
        kept_id = remembered_name(cancel_id or self._new_call_id())
        reply = self._run(
            "cancel_buffer", conversation=conversation, now_ms=self._clock(), cancel_id=kept_id,
            seen_ms=self.settings.seen_ms, max_seen=self.settings.max_seen,
        )  # fmt: skip
        if reply.word == b"REPEATED":
            return o.AlreadyCancelled(reply.generation)
        return o.BufferCancelled(reply.generation, reply.buffered, reply.frozen, bool(reply.leaving))

    def forget_conversation(self, conversation: str) -> o.ConversationForgotten:
        reply = self._run("forget_conversation", conversation=conversation, now_ms=self._clock())
        until_ms = _or_none(reply.leaving_until_ms)
        return o.ConversationForgotten(
            _or_none(reply.last_at_ms), reply.waiting, reply.frozen,
            # A run may begin a call to the bus just before its token ends, so add the time of that call.
            None if until_ms is None else until_ms + MAX_CALL_MS,
        )  # fmt: skip

    def hold_buffer(self, conversation: str, *, holder: Holder, cause: str, hold_ms: int | None) -> o.OnHold:
        """Hold the conversation. Raise TooManyHolds if the holder is a consumer and too many are on hold."""
        now_ms = self._clock()
        until_ms = NO_END_MS if hold_ms is None else now_ms + hold_ms
        reply = self._run(
            "hold_buffer", conversation=conversation, now_ms=now_ms, held_until_ms=until_ms, holder=holder,
            cause=cause, max_held=self.settings.max_held,
        )  # fmt: skip
        if reply.word == b"FULL":
            raise TooManyHolds("so many conversations are on hold that consumers cannot hold another; try again later")
        return o.OnHold(reply.held_until_ms, reply.start or None)

    def resume_buffer(
        self, conversation: str, *, holder: Holder | None = None, cause: str | None = None
    ) -> o.ResumeOutcome:
        reply = self._run(
            "resume_buffer", conversation=conversation, now_ms=self._clock(), holder=holder or "", cause=cause or ""
        )
        if reply.word == b"HELD":
            return o.OnHold(reply.held_until_ms, reply.start or None)
        outcome = o.HoldEnded if reply.word == b"RESUMED" else o.NotOnHold
        return outcome(_or_none(reply.due_at_ms), reply.start or None)

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended:
        reply = self._run(
            "extend_wait", conversation=conversation, now_ms=self._clock(), extend_ms=extend_ms, max_wait_ms=max_wait_ms
        )
        match reply.word:
            case b"EXTENDED":
                return o.BufferExtended(reply.due_at_ms)
            case b"UNMOVED":
                return o.BufferUnmoved(reply.due_at_ms)
            case _:
                return o.BufferEmpty()

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed:
        """Compute an open buffer's due time again, with changed rules. They apply until the next message, which brings
        its own rules."""
        reply = self._run("retime_buffer", conversation=conversation, now_ms=self._clock(), **timing.for_scripts)
        match reply.word:
            case b"RETIMED":
                return o.BufferRetimed(reply.due_at_ms, reply.count, _why(reply.why).rule, reply.start or None)
            case b"UNMOVED":
                return o.BufferUnmoved(reply.due_at_ms)
            case _:
                return o.BufferEmpty()

    def edit_message(self, conversation: str, message_id: str, *, payload: bytes) -> o.Edited:
        max_bytes = self.settings.max_waiting_bytes
        reply = self._search("edit_message", conversation, message_id, payload=payload, max_bytes=max_bytes)
        return o.MessageEdited(reply.behind == 0) if reply.word == b"EDITED" else _not_waiting(reply)

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted:
        s = self.settings
        reply = self._search("delete_message", conversation, message_id, seen_ms=s.seen_ms, max_seen=s.max_seen)
        return o.MessageDeleted() if reply.word == b"DELETED" else _not_waiting(reply)

    def find_message(self, conversation: str, message_id: str) -> o.Found:
        reply = self._search("find_message", conversation, message_id)
        return o.MessageWaiting() if reply.word == b"WAITING" else _not_waiting(reply)

    def peek_conversation(self, conversation: str, *, limit: int = 0) -> o.Conversation:
        reply = self._run("peek_conversation", conversation=conversation, limit=limit)
        why = _why(reply.why) if reply.why else None
        people, consumers = _holds("people", reply.people), _holds("consumers", reply.consumers)
        holds = (*people, *_holds("handoff", reply.handoff), *consumers)
        return o.Conversation(
            state=reply.word.decode(),
            due_at_ms=_or_none(reply.due_at_ms),
            flush_reason=why and why.reason,
            rule=why and why.rule,
            applied_wait_ms=why and why.wait_ms,
            count=reply.count,
            first_at_ms=_or_none(reply.first_at_ms),
            last_at_ms=_or_none(reply.last_at_ms),
            generation=reply.generation,
            holds=unexpired(holds, self._clock()),
            batch_id=reply.batch_id.decode() or None,
            attempt=reply.attempt,
            frozen=reply.frozen,
            payloads=reply.payloads,
        )

    # -- a shard's processor and the watchdog ------------------------------------------------------------------

    def acquire_lease(self, shard: int, lease_id: str) -> o.LeaseAcquired | o.LeaseTaken:
        reply = self._run_shard(
            "acquire_lease", shard, now_ms=self._clock(), lease_id=lease_id, lease_ms=self.settings.lease_ms
        )
        if reply.word == b"LEASED":
            return o.LeaseTaken(reply.expires_at_ms)
        return o.LeaseAcquired(reply.expires_at_ms, reply.returned)

    def renew_lease(self, shard: int, lease_id: str) -> o.Renewed | o.LeaseLost:
        reply = self._run_shard(
            "renew_lease", shard, now_ms=self._clock(), lease_id=lease_id, lease_ms=self.settings.lease_ms
        )
        return o.Renewed(reply.expires_at_ms) if reply.word == b"RENEWED" else o.LeaseLost()

    def release_lease(
        self, shard: int, lease_id: str, *, reason: Literal["idle", "handover"]
    ) -> o.LeaseReleased | o.WorkIsNear | o.LeaseLost:
        reply = self._run_shard("release_lease", shard, now_ms=self._clock(), lease_id=lease_id, reason=reason)
        match reply.word:
            case b"RELEASED":
                return o.LeaseReleased(_or_none(reply.next_due_at_ms), reply.start or None)
            case b"PENDING":
                return o.WorkIsNear(reply.next_due_at_ms)
            case _:
                return o.LeaseLost()

    def claim_due(self, shard: int, lease_id: str, *, limit: int = 100) -> o.ConversationsClaimed | o.LeaseLost:
        s, now_ms = self.settings, self._clock()
        reply = self._run_shard(
            "claim_due", shard, now_ms=now_ms, lease_id=lease_id, limit=limit, claim_ms=s.claim_ms,
            max_sleep_ms=s.max_sleep_ms, call_id=self._new_call_id(), slots=s.slots,
        )  # fmt: skip
        if reply.word == b"LOST":
            return o.LeaseLost()
        # If the call is a repeat, the script returns the times as strings.
        due = [o.DueConversation(conversation.decode(), int(due_at_ms)) for conversation, due_at_ms in reply.rows]
        return o.ConversationsClaimed(
            _or_none(reply.next_due_at_ms), due, now_ms + s.claim_ms, reply.expired, waits_for_slot=bool(reply.full)
        )

    def return_claim(
        self, conversation: str, lease_id: str, *, due_at_ms: int
    ) -> o.ClaimReturned | o.BatchBusy | o.RunStale | o.LeaseLost:
        reply = self._run(
            "return_claim", conversation=conversation, now_ms=self._clock(), lease_id=lease_id, due_at_ms=due_at_ms
        )
        match reply.word:
            case b"RETURNED":
                return o.ClaimReturned(reply.due_at_ms)
            case b"BUSY":
                return o.BatchBusy(None)
            case b"STALE":
                return o.RunStale()
            case _:
                return o.LeaseLost()

    def recover_expired(self, shard: int, *, limit: int = 500) -> o.ShardRecovered:
        reply = self._run_shard("recover_expired", shard, now_ms=self._clock(), limit=limit)
        return o.ShardRecovered(
            pending=reply.pending,
            inflight=reply.inflight,
            oldest_due_at_ms=_or_none(reply.oldest_due_at_ms),
            heartbeat_at_ms=_or_none(reply.heartbeat_at_ms),
            start_id=reply.start or None,
            conversations=[conversation.decode() for conversation in reply.conversations],
        )

    def list_conversations(self, shard: int, *, cursor: str = FIRST_PAGE, limit: int = 100) -> o.ConversationPage:
        """Return one page of a shard's conversations. A buffer that stays open meanwhile is on at least one page. A
        conversation with only a frozen batch may be on none, if a processor claims or returns it between two pages."""
        reply = self._run_shard("list_conversations", shard, cursor=cursor, limit=limit)
        names = [conversation.decode() for conversation in reply.conversations]
        return o.ConversationPage(reply.next_cursor.decode() or None, names)

    # -- making a call -----------------------------------------------------------------------------------------

    def _search(self, name: str, conversation: str, message_id: str, **arguments: Argument) -> Any:
        """Call a search script until it has found the message, or has no messages left to search.

        Each call continues where the last one stopped, and reads at least one message. Between two calls, other clients
        use the server, and may change the conversation.
        """
        kept_id, cursor = remembered_name(message_id), FIRST_LOOK
        while True:
            reply = self._run(
                name, conversation=conversation, message_id=kept_id, id_line=id_line(message_id), cursor=cursor,
                limit=self.settings.max_search, page_bytes=self.settings.search_bytes,
                max_emitted=self.settings.max_emitted, **arguments,
            )  # fmt: skip
            if reply.word != b"SEARCHING":
                return reply
            cursor = reply.next_cursor

    def _run(self, name: str, *, conversation: str, **arguments: Argument) -> Any:
        """Run a script on a conversation. Return its answer as a tuple with the names in the script's header."""
        script = self._loaded.get(name) or self._load(name)
        encoded = encode_conversation(conversation)
        if script.takes_conversation:
            arguments["conversation"] = conversation
        shard = shard_of_encoded(encoded, self.settings.shards)
        return self._call(script, shard, script_keys(script.keys, shard, encoded), arguments)

    def _run_shard(self, name: str, shard: int, **arguments: Argument) -> Any:
        """Run a script on a shard. Return its answer as a tuple with the names in the script's header."""
        script = self._loaded.get(name) or self._load(name)
        return self._call(script, shard, script_keys(script.keys, shard), arguments)

    def _load(self, name: str) -> Script:
        script = self._loaded[name] = load_script(name, self._scripts, self._shebang)
        return script

    def _call(self, script: Script, shard: int, keys: list[bytes], arguments: dict[str, Argument]) -> Any:
        if script.may_start:
            arguments["start_id"] = self._new_call_id()
            arguments["start_ms"], arguments["horizon_ms"] = self.settings.start_ms, self.settings.horizon_ms
        try:
            args = script.pick(arguments)
        except KeyError:
            args = ()
        if len(args) != len(arguments):
            misfits = ", ".join(sorted(arguments.keys() ^ set(script.args)))
            raise ScriptInvariantBroken(f"{script.name} takes {', '.join(script.args)}; unknown or missing: {misfits}")
        values = self._connection.run(script, keys, args)
        try:
            reply: Any = script.read[values[0]](values)
        except (TypeError, ValueError) as error:
            raise ScriptInvariantBroken(f"{script.name} returned values that do not fit its header") from error
        if script.may_start and getattr(reply, "start", False):
            reply = reply._replace(start=self._reserved(shard, str(arguments["start_id"])))
        return reply

    def _reserved(self, shard: int, start_id: str) -> str | None:  # noqa: ARG002 - for a lane
        """Return the id of the start that a script has reserved, which the caller must now make."""
        return start_id


def remembered_name(message_id: str) -> bytes:
    """Return the name under which the lane remembers a message: its id, or the digest of a long id."""
    try:
        encoded = message_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidId("a message id must be valid Unicode: it holds a lone surrogate") from error
    if len(encoded) <= MAX_REMEMBERED_ID_BYTES:
        return encoded
    return b"blake2s:" + blake2s(encoded, digest_size=16).hexdigest().encode()


@lru_cache(maxsize=MAX_CHARGES_KEPT)
def _limits(settings: StoreSettings, charge: Charge | None, items: int = 1) -> str:
    """Return the bounds of a buffer, the quotas, and what `items` cost, as the text that the scripts read."""
    bounds = f"{settings.max_waiting} {settings.max_batch_bytes} {settings.max_waiting_bytes} "
    if charge is None:
        return bounds
    messages = items if charge.is_exact else LOOK_EVERY
    shards = 1 if charge.is_of_one_shard else settings.shards
    return bounds + "".join(f"{_costs_us(quota, shards, messages)} {name}//" for name, quota in charge.quotas)


def _costs_us(quota: Quota, shards: int, messages: int) -> str:
    """Return as text what these messages and the opening of a buffer cost, in microseconds.

    A quota is spread over a minute, so a message costs its share of that minute. Each shard counts alone and has an
    equal share of the quota, so the cost is multiplied by the number of shards.
    """
    minute_us = MINUTE_MS * 1_000 * shards
    # Limit the cost. Otherwise one webhook with many changes could block an account with a small quota for hours.
    cost_us = minute_us * messages // quota.messages_per_minute
    cost_us = min(cost_us, max(MAX_OVERDRAFT_MS * 1_000, minute_us // quota.messages_per_minute))
    return f"{cost_us} {minute_us // quota.conversations_per_minute}"


class _Why(NamedTuple):
    reason: str
    rule: str
    wait_ms: int


def _why(packed: bytes) -> _Why:
    """Unpack the field `why` of an answer, which lua/include/due_time.lua packs."""
    reason, rule, wait_ms = packed.decode().split()
    return _Why(reason, rule, int(wait_ms))


def _holds(holder: Holder, packed: bytes) -> Holds:
    """Return the hold that the script `hold_buffer` has packed, or no hold if the text is empty."""
    until_ms, _, cause = packed.decode().partition(" ")
    return (Hold(holder, int(until_ms), cause),) if until_ms else ()


def _or_none(value: int) -> int | None:
    return None if value == -1 else value


def _not_waiting(reply: Any) -> o.MessageFrozen | o.MessageAbsent:
    if reply.word == b"FROZEN":
        return o.MessageFrozen(reply.batch_id.decode())
    return o.MessageAbsent(bool(reply.known), reply.batch_id.decode() or None)
