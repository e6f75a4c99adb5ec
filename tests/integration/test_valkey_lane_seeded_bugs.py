"""The model test must be able to fail: each bug below, planted into a copy of the scripts, is found by it.

They are the mistakes that other systems of this kind were caught with, and those that a later change to a script is
most likely to make.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.rules.rules_and_defaults import Rules
from tests.integration.test_valkey_lane_model import machine_on, replay
from tests.support.machine.base import CONVERSATIONS, RULES, SETTINGS
from tests.support.machine.machine import EngineMachine
from tests.support.machine.operator import HOLDS, MARK
from tests.support.valkey_server import ValkeyServer

pytestmark = pytest.mark.nightly
Step = Callable[[EngineMachine], None]


@dataclass(frozen=True)
class Bug:
    title: str
    script: str
    good: str
    bad: str
    history: tuple[Step, ...]
    """The steps that bring it about. The model is content with the same steps on the good scripts."""


def writes(machine: EngineMachine) -> None:
    machine.burst("ann", RULES[0], 1, 0, False)


def later(machine: EngineMachine) -> None:
    machine.engine.clock.advance(1_400)


def typing(machine: EngineMachine) -> None:
    """Leave an entry in `pending` that is earlier than the buffer is due."""
    writes(machine)
    machine.engine.clock.advance(500)
    writes(machine)


def vip(machine: EngineMachine) -> None:
    """Write what is due at once."""
    machine.burst("ann", RULES[4], 1, 0, False)


def others_are_due(machine: EngineMachine) -> None:
    for name in CONVERSATIONS[1:]:
        machine.burst(name, Rules(silence_ms=0, typing_inference_ms=0), 1, 0, False)
    machine.engine.clock.advance(1)


def all_are_due(machine: EngineMachine) -> None:
    others_are_due(machine)
    vip(machine)


def hammers(machine: EngineMachine) -> None:
    machine.burst_at_a_quota("ann", 6, 0, False)


def a_quarter_minute(machine: EngineMachine) -> None:
    machine.engine.clock.advance(15_000)


def held(machine: EngineMachine) -> None:
    machine.hold("ann", 200_000, HOLDS[0], 0, False)


def later_than_a_minute(machine: EngineMachine) -> None:
    machine.engine.clock.advance(61_000)


def held_by_both(machine: EngineMachine) -> None:
    held(machine)
    machine.hold("ann", 20_000, HOLDS[2], 0, False)


def marked(machine: EngineMachine) -> None:
    machine.hold("ann", 20_000, MARK, 0, False)


def a_while_later(machine: EngineMachine) -> None:
    machine.engine.clock.advance(81_000)


def claimed(machine: EngineMachine) -> None:
    machine.works("p1", 100, 0, 0, False, False)


def taken(machine: EngineMachine) -> None:
    machine._take_all("p1")


def emitted(machine: EngineMachine) -> None:
    machine.emit(0, False)


def replied(machine: EngineMachine) -> None:
    machine.engine.clock.advance(1)
    machine.reply("ann", 0, False)


def goes_out(machine: EngineMachine) -> None:
    machine.batches_go_out("p1", 0, 0, 0, 0)


def retried(machine: EngineMachine) -> None:
    machine.emitting_fails(0, 5_000, 0, False)


def failed(machine: EngineMachine) -> None:
    """Retry the batch at once, and count a failure."""
    machine.emitting_fails(0, 4, 0, False)


def given_away(machine: EngineMachine) -> None:
    """Let the conversation processor's time run out, and give its batch to another."""
    machine.engine.clock.advance(SETTINGS.token_ms + 1)
    machine.watchdog(0, False)
    taken(machine)


def a_lease_later(machine: EngineMachine) -> None:
    machine.engine.clock.advance(SETTINGS.lease_ms)


def an_expiry_later(machine: EngineMachine) -> None:
    machine.engine.clock.advance(SETTINGS.claim_ms)


def succeeds(machine: EngineMachine) -> None:
    """Let the other processor acquire the lease, if it can, and claim."""
    machine.works("p2", 100, 0, 0, False, False)


def forgotten(machine: EngineMachine) -> None:
    machine.forget("ann", 0, False, True)


BUGS = (
    Bug(
        "a processor without the lease may claim",
        "claim_due",
        "if owner[1] ~= lease_id or alive < now then return {'LOST'} end",
        "alive = alive or '0'",
        (lambda m: m.claim(crash=False, limit=1, processor="p1", skew=0, twice=False),),
    ),
    Bug(
        "a lease that ran out is revived",
        "renew_lease",
        " or alive < now then",
        " then",
        (
            lambda m: m.a_message_changes_long_after_its_batch(deletes=False, name="ann", processor="p1"),
            lambda m: m.renew(processor="p1", skew=60000, twice=False),
        ),
    ),
    Bug(
        "two processors own one shard",
        "acquire_lease",
        "if alive and alive > now and",
        "if false and",
        (
            lambda m: m.works(crash=False, early_ms=0, limit=1, processor="p2", skew=0, twice=False),
            lambda m: m.a_message_changes_long_after_its_batch(deletes=False, name="ann", processor="p1"),
        ),
    ),
    Bug(
        "a successor puts back taken batches",
        "acquire_lease",
        "if inflight[i + 1] % 1 == 0 then",
        "if true then",
        (vip, taken, a_lease_later, succeeds),
    ),
    Bug(
        "a successor leaves a dead processor's claims",
        "acquire_lease",
        "if owner and owner ~= lease_id then",
        "if false then",
        (vip, claimed, a_lease_later, succeeds),
    ),
    Bug(
        "a processor does not put back expired claims and tokens",
        "claim_due",
        "if next_deadline and next_deadline <= now_ms and",
        "if false and",
        (vip, claimed, an_expiry_later, claimed),
    ),
    Bug(
        "a processor sleeps past the end of a token",
        "claim_due",
        "if next_deadline then next_due_at =",
        "if false then next_due_at =",
        (vip, taken, claimed),
    ),
    Bug(
        "a processor leaves although conversations are in flight",
        "release_lease",
        "if next_deadline then",
        "if false then",
        (vip, taken, lambda m: m.leave("p1", False, 0, False)),
    ),
    Bug(
        "no processor is started for conversations in flight",
        "recover_expired",
        "due_at = math.min(due_at, tonumber(redis.call('ZRANGE', inflight_key, 0, 0, 'WITHSCORES')[2]) or math.huge)",
        "",
        (vip, taken, a_lease_later, lambda m: m.watchdog(0, False)),
    ),
    Bug(
        "any run may renew a token",
        "renew_token",
        "if taken[1] ~= token or",
        "if",
        (vip, taken, given_away, lambda m: m.renew_token(0, 0, False)),
    ),
    Bug(
        "a renewed token keeps its old score",
        "renew_token",
        "redis.call('ZADD', inflight_key, 'XX', token_until - 0.5, conversation)",
        "",
        (vip, taken, lambda m: m.time_passes(1_000), lambda m: m.renew_token(0, 0, False)),
    ),
    Bug(
        "every attempt's token lasts as long as the first one's",
        "take_batch",
        "if attempt > 1 then token_ms",
        "if false then token_ms",
        (vip, taken, failed, taken),
    ),
    Bug(
        "a later attempt says that its own batch came before it",
        "take_batch",
        "'previous_at', previous_at,",
        "'previous_at', last_at,",
        (vip, taken, failed, taken),
    ),
    Bug(
        "only the conversation's first reply is ever noted",
        "note_reply",
        "replied_at <= last_at and",
        "replied_at == 0 and",
        (vip, goes_out, replied, later, vip, goes_out, replied, vip, taken),
    ),
    Bug(
        "the last reply counts, not the first",
        "note_reply",
        "replied_at <= last_at and",
        "",
        (vip, goes_out, later, replied, later, replied, vip, taken),
    ),
    Bug(
        "read the list, then delete it",
        "take_batch",
        "redis.call('RENAME', msgs_key, batch_key)",
        "for _, p in ipairs(redis.call('LRANGE', msgs_key, 0, 1)) do redis.call('RPUSH', batch_key, p) end "
        "redis.call('DEL', msgs_key)",
        (lambda m: m.burst(count=3, name="ann", rules=RULES[4], skew=0, twice=False), taken),
    ),
    Bug(
        "claimed conversations leave pending and go nowhere",
        "claim_due",
        "redis.call('ZADD', inflight_key, unpack(claimed))",
        "",
        (lambda m: m.rules_bound_a_long_talk(name="ann"),),
    ),
    Bug(
        "a claim whose answer was lost is not given again",
        "claim_due",
        "if owner[2] == call_id then",
        "if false then",
        (
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.works(crash=False, early_ms=0, limit=1, processor="p1", skew=0, twice=True),
        ),
    ),
    Bug(
        "a moved timer is forgotten by the claim",
        "claim_due",
        "if buffer and mode_of(buffer) ~= 'f' then",
        "if false then",
        (typing, lambda m: m.works("p1", 1, 1, 0, False, False)),
    ),
    Bug(
        "what came meanwhile is not scheduled again",
        "complete_batch",
        "redis.call('ZADD', pending_key, due_at, conversation)",
        "",
        (
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.a_message_changes_long_after_its_batch(deletes=False, name="ann", processor="p1"),
        ),
    ),
    Bug(
        "an old conversation processor's completion removes the newer batch",
        "complete_batch",
        "local first_call = taken[1] == token",
        "local first_call = taken[2] ~= false",
        (vip, lambda m: m.conversation_processor_stalls(0, "p1", "completes")),
    ),
    Bug(
        "a completed conversation stays in flight",
        "complete_batch",
        "redis.call('ZREM', inflight_key, conversation)",
        "",
        (lambda m: m.rules_bound_a_long_talk(name="ann"),),
    ),
    Bug(
        "an emitted batch is not remembered",
        "complete_batch",
        "redis.call('ZADD', emitted_key, taken[3], taken[2])",
        "",
        (lambda m: m.rules_bound_a_long_talk(name="ann"),),
    ),
    Bug(
        "emitted batches are remembered for ever",
        "complete_batch",
        "redis.call('PEXPIRE', emitted_key, seen_ms)",
        "",
        (lambda m: m.rules_bound_a_long_talk(name="ann"),),
    ),
    Bug(
        "an edit that comes too late names the next batch",
        "edit_message",
        "'-inf', arrived_at - 1)",
        "'-inf', arrived_at)",
        (vip, goes_out, lambda m: m.edit_or_delete("ann", 0, "its own", False, False)),
    ),
    Bug(
        "a second conversation processor takes a batch that another holds",
        "take_batch",
        "if owner ~= token and token_until > now_ms then",
        "if false then",
        (vip, claimed, lambda m: m.take(0, True, False, 0, False), lambda m: m.take(0, False, False, 0, False)),
    ),
    Bug(
        "a retry renames the batch",
        "take_batch",
        "return {'TAKEN', batch_id,",
        "return {'TAKEN', batch_id .. '-' .. attempt,",
        (lambda m: m.rules_bound_a_long_talk(name="ann"),),
    ),
    Bug(
        "an edit changes the order",
        "edit_message",
        "redis.call('LSET', msgs_key, position, payload)",
        "redis.call('LREM', msgs_key, 1, redis.call('LINDEX', msgs_key, position)) "
        "redis.call('RPUSH', msgs_key, payload)",
        (
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.edit_or_delete(among="here", deletes=False, name="ann", twice=False, which=0),
        ),
    ),
    Bug(
        "a retry takes in what came since",
        "take_batch",
        "if owner ~= token then attempt = attempt + 1 end\n",
        "if owner ~= token then attempt = attempt + 1 end\n"
        "for _, p in ipairs(redis.call('LRANGE', msgs_key, 0, -1)) do redis.call('RPUSH', batch_key, p) end\n",
        (vip, taken, writes, given_away),
    ),
    Bug(
        "left-over messages keep the batch's generation",
        "take_batch",
        "generation + 1 - (count - fit)",
        "generation - (count - fit)",
        (
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.rules_bound_a_long_talk(name="ann"),
        ),
    ),
    Bug(
        "anybody may send a batch to its retry",
        "retry_batch",
        "if redis.call('HGET', taken_key, 'token') ~= token then return {'STALE'} end",
        "",
        (vip, lambda m: m.conversation_processor_stalls(0, "p1", "fails")),
    ),
    Bug(
        "new messages postpone a frozen batch's retry",
        "buffer_message",
        "if mode ~= 'f' then",
        "if true then",
        (
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.conversation_processor_stalls(processor="p1", then="dies", which=0),
            lambda m: m.rules_bound_a_long_talk(name="ann"),
        ),
    ),
    Bug(
        "a press cuts off what waits already",
        "buffer_message",
        "if is_pressed and old_due_at and old_due_at > due_at then",
        "if false then",
        (typing, lambda m: m.press("ann", RULES[0], 0, False)),
    ),
    Bug(
        "a buffer has the wrong reason",
        "extend_wait",
        "if due_at == latest_at then",
        "if true then",
        (writes, lambda m: m.typing("ann", 5_000, 0, False)),
    ),
    Bug(
        "a hold on an idle conversation is overlooked",
        "buffer_message",
        "call('ZSCORE', held_key, conversation) and 'h' or",
        "",
        (
            lambda m: m.hold("ann", 500, HOLDS[0], 0, False),
            lambda m: m.rules_bound_a_long_talk(name="ann"),
        ),
    ),
    Bug(
        "a hold that stands is swept",
        "recover_expired",
        "'-inf', now_ms - 60000,",
        "'-inf', now_ms + 60000,",
        (
            lambda m: m.hold("ann", 500, HOLDS[0], 0, False),
            lambda m: m.watchdog(skew=0, twice=False),
        ),
    ),
    Bug(
        "who held is kept for ever",
        "recover_expired",
        "redis.call('HDEL', holds_key, name, 'people/' .. name, 'consumers/' .. name)",
        "",
        (
            lambda m: m.hold("ann", 500, HOLDS[0], 0, False),
            later_than_a_minute,
            lambda m: m.watchdog(skew=0, twice=False),
        ),
    ),
    Bug(
        "a hand-off mark keeps messages back",
        "hold_buffer",
        "local member = holder == 'handoff' and field or conversation",
        "local member = conversation",
        (marked, writes),
    ),
    Bug(
        "a hand-off mark moves what waits",
        "hold_buffer",
        "holder ~= 'handoff' and state[1]",
        "state[1]",
        (writes, marked),
    ),
    Bug(
        "a batch that is taken again does not have the mark of that moment",
        "take_batch",
        "redis.call('HGET', holds_key, 'handoff/' .. conversation) or ''",
        "payloads and redis.call('HGET', holds_key, 'handoff/' .. conversation) or ''",
        (vip, claimed, taken, marked, retried, lambda m: m.time_passes(5_000), claimed, taken),
    ),
    Bug(
        "a mark that was ended is swept like one that stands",
        "resume_buffer",
        "redis.call('ZREM', held_key, field)",
        "",
        (marked, lambda m: m.resume("ann", MARK, 0, False)),
    ),
    Bug(
        "the end of a mark ends a hold",
        "resume_buffer",
        "elseif hold and each ~= 'handoff' then",
        "elseif hold and holder ~= 'handoff' then",
        (held, marked, lambda m: m.resume("ann", MARK, 0, False)),
    ),
    Bug(
        "the end of a hold that had ended anyway makes messages due, because a mark was ended",
        "resume_buffer",
        "if held_until > now_ms and due_at > ends_at then",
        "if word ~= 'NOT_ON_HOLD' and due_at > ends_at then",
        (
            lambda m: m.hold("ann", 500, HOLDS[0], 0, False),
            marked,
            later,
            writes,
            lambda m: m.resume("ann", (None, None), 0, False),
        ),
    ),
    Bug(
        "a mark that has ended is kept for ever",
        "recover_expired",
        "redis.call('HDEL', holds_key, name, 'people/' .. name",
        "redis.call('HDEL', holds_key, 'people/' .. name",
        (marked, a_while_later, lambda m: m.watchdog(skew=0, twice=False)),
    ),
    Bug(
        "a consumer ends people's hold",
        "resume_buffer",
        "holder == '' or holder == each and",
        "true or",
        (held, lambda m: m.resume("ann", HOLDS[2], 0, False)),
    ),
    Bug(
        "a consumer ends another consumer's hold",
        "resume_buffer",
        "cause == '' or cause == string.sub(hold, 15)",
        "true",
        (
            lambda m: m.hold("ann", 500, HOLDS[2], 0, False),
            lambda m: m.resume("ann", ("consumers", "shop"), 0, False),
        ),
    ),
    Bug(
        "the end of the longer hold ends the other, too",
        "resume_buffer",
        "if stays_until > 0 then redis.call('ZADD', held_key, stays_until, conversation) end",
        "",
        (held_by_both, lambda m: m.resume("ann", HOLDS[0], 0, False)),
    ),
    Bug(
        "what is on hold waits for the end of a hold that was ended",
        "resume_buffer",
        "if word == 'HELD' then ends_at, reason = stays_until, 'hold' end",
        "if word == 'HELD' then ends_at = due_at end",
        (writes, held_by_both, lambda m: m.resume("ann", HOLDS[0], 0, False)),
    ),
    Bug(
        "a shorter hold's cause is told",
        "hold_buffer",
        "tonumber(string.sub(hold, 1, 13)) < held_until then",
        "true then",
        (held, lambda m: m.hold("ann", 500, HOLDS[1], 0, False)),
    ),
    Bug(
        "waiting messages can expire",
        "buffer_message",
        "call('PERSIST', seen_key)",
        "call('PERSIST', seen_key) call('PEXPIRE', msgs_key, 60000)",
        (lambda m: m.rules_bound_a_long_talk(name="ann"),),
    ),
    Bug(
        "a duplicate is buffered again",
        "buffer_message",
        "if call('ZADD', seen_key, 'NX', now, message_id) == 0 then",
        "if false then",
        (lambda m: m.a_message_changes_long_after_its_batch(deletes=False, name="ann", processor="p1"),),
    ),
    Bug(
        "a refused message waits",
        "buffer_message",
        "call('LREM', msgs_key, -1, payload)",
        "",
        (hammers,),
    ),
    Bug(
        "what a refused message would have cost is not given back",
        "buffer_message",
        "for j = 1, i, 3 do call('HINCRBY', quota_key, spent[j], '-' .. spent[j + 1]) end",
        "",
        (hammers, a_quarter_minute, lambda m: m.burst_at_a_quota("ann", 1, 0, False)),
    ),
    Bug(
        "the quota of a host whose clock was far ahead blocks the others",
        "buffer_message",
        "or ahead_us > 2 * minute_us + 2 * cost_us then",
        "then",
        (
            lambda m: m.burst_at_a_quota("ann", 1, 600_000, False),
            lambda m: m.burst_at_a_quota("ann", 3, 0, False),
        ),
    ),
    Bug(
        "a conversation is never full",
        "buffer_message",
        "if is_counted and count - max_waiting > 0 then refused = 'waiting' end",
        "",
        (lambda m: m.burst("ann", RULES[2], 25, 0, False),),
    ),
    Bug(
        "the longest wait has no bound",
        "buffer_message",
        "elseif due_at >= latest_at then",
        "elseif false then",
        (lambda m: m.burst("ann", RULES[2], 1, 0, False), later, lambda m: m.burst("ann", RULES[1], 1, 0, False)),
    ),
    Bug(
        "off by one at the count limit",
        "buffer_message",
        "if count - max_messages >= 0 and",
        "if count - max_messages > 0 and",
        (lambda m: m.burst(count=3, name="ann", rules=RULES[1], skew=0, twice=False),),
    ),
    Bug(
        "a message that ends the wait does not wake the sleeping processor",
        "buffer_message",
        "if due_at - string.sub(alive, 14) < 0 then",
        "if false then",
        (lambda m: m.a_message_changes_long_after_its_batch(deletes=False, name="ann", processor="p1"),),
    ),
    Bug(
        "expired claims are not put back",
        "recover_expired",
        "redis.call('ZADD', pending_key, unpack(back))",
        "",
        (
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.repeated_late(which=0),
            lambda m: m.conversation_processor_stalls(processor="p1", then="dies", which=0),
        ),
    ),
    Bug(
        "claims are put back before their deadline",
        "recover_expired",
        "redis.call('ZRANGE', inflight_key, '-inf', now_ms, 'BYSCORE'",
        "redis.call('ZRANGE', inflight_key, '-inf', now_ms + 20000, 'BYSCORE'",
        (vip, claimed, lambda m: m.time_passes(5_000), lambda m: m.watchdog(0, False)),
    ),
    Bug(
        "a cancelled batch is tried again",
        "cancel_buffer",
        "redis.call('DEL', msgs_key, batch_key, taken_key)",
        "redis.call('DEL', msgs_key)",
        (
            lambda m: m.burst(count=1, name="ann", rules=RULES[0], skew=0, twice=False),
            lambda m: m.conversation_processor_stalls(processor="p1", then="dies", which=0),
            lambda m: m.cancel_what_is_frozen(skew=0, sure=True),
        ),
    ),
    Bug(
        "a cancel that is repeated late drops what came since",
        "cancel_buffer",
        "if redis.call('ZSCORE', seen_key, cancel_id) then",
        "if false then",
        (lambda m: m.cancel(name="ann", skew=0, sure=True, twice=True),),
    ),
    Bug(
        "a hold does not stop what was claimed",
        "hold_buffer",
        "redis.call('ZREM', inflight_key, conversation)",
        "",
        (vip, claimed, held),
    ),
    Bug(
        "an edit reaches into a frozen batch",
        "edit_message",
        "if list_key == msgs_key then return",
        "redis.call('LSET', list_key, at, ARGV[3]) if list_key == msgs_key then return",
        (vip, taken, lambda m: m.edit_or_delete("ann", 0, "here", False, False)),
    ),
    Bug(
        "a search from the oldest to the newest misses what moves towards the head",
        "delete_message",
        "step = math.min(step, count) - 1 position = step",
        "step = step < 999999 and step + 1 or 1 position = step - 1 if position >= count then break end",
        (
            lambda m: m.burst(count=3, name="ann", rules=RULES[2], skew=0, twice=False),
            lambda m: m.a_conversation_moves_while_a_message_is_looked_for(
                "ann", 2, "here", deletes=True, looks=2, then="deleted", processor="p1"
            ),
        ),
    ),
    Bug(
        "new rules make a buffer wait without a bound",
        "retime_buffer",
        "elseif due_at >= latest_at then",
        "elseif false then",
        (lambda m: m.rules_bound_a_long_talk(name="ann"),),
    ),
    Bug(
        "new rules end a hold",
        "retime_buffer",
        "if held_until > now_ms and",
        "if false and",
        (
            lambda m: m.rules_bound_a_long_talk(name="ann"),
            lambda m: m.hold("ann", 500, HOLDS[0], 0, False),
            lambda m: m.rules_change(name="ann", rules=RULES[1], skew=0, twice=False),
        ),
    ),
    Bug(
        "new rules move a frozen batch's retry",
        "retime_buffer",
        "if mode ~= 'f' and due_at < old_due_at then",
        "if due_at < old_due_at then",
        (vip, taken, retried, lambda m: m.rules_change_behind_a_retry(RULES[1], 0)),
    ),
    Bug(
        "new rules schedule what is in flight",
        "retime_buffer",
        "'XX', due_at, conversation)",
        "due_at, conversation)",
        (writes, claimed, lambda m: m.rules_change_by_a_lagging_clock_while_it_is_claimed(RULES[1])),
    ),
    Bug(
        "a frozen batch with nothing behind it is not listed",
        "list_conversations",
        "{open = 'inflight:0', inflight",
        "{open = '', inflight",
        (
            lambda m: m.burst(count=1, name="ann", rules=RULES[0], skew=0, twice=False),
            lambda m: m.conversation_processor_stalls(processor="p1", then="dies", which=0),
            lambda m: m.listing(),
        ),
    ),
    Bug(
        "deleting the last message leaves an empty buffer scheduled",
        "delete_message",
        "redis.call('ZREM', pending_key, conversation)",
        "",
        (writes, lambda m: m.edit_or_delete("ann", 0, "here", True, False)),
    ),
    Bug(
        "a forget leaves the frozen batch",
        "forget_conversation",
        "redis.call('UNLINK', conv_key, msgs_key, batch_key, taken_key, seen_key, emitted_key)",
        "redis.call('UNLINK', conv_key, msgs_key, seen_key, emitted_key)",
        (vip, taken, forgotten),
    ),
    Bug(
        "a forget leaves the conversation's name among the last claims",
        "forget_conversation",
        "redis.call('LSET', claimed_key, i - 1, '')",
        "",
        (vip, claimed, forgotten),
    ),
    Bug(
        "a returned claim takes the batch from a living conversation processor",
        "return_claim",
        "if (tonumber(redis.call('HGET', taken_key, 'token_until')) or 0) > now_ms then return {'BUSY'} end",
        "",
        (vip, claimed, lambda m: m.invocation_fails(0, "p1", 0, "arrived", 0, False)),
    ),
    Bug(
        "more conversations are in flight than there are slots",
        "claim_due",
        "limit = math.max(math.min(limit, free), 0)",
        "",
        (all_are_due, claimed),
    ),
    Bug(
        "a completed batch does not wake the processor that waits for a slot",
        "complete_batch",
        "string.sub(alive, 14) == '0000000000001'",
        "false",
        (all_are_due, taken, emitted, lambda m: m.complete(0, 0, False)),
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.script}: {bug.title}")
def test_the_model_finds(bug: Bug, valkey: ValkeyServer, tmp_path: Path) -> None:
    scripts = tmp_path / "lua"
    shutil.copytree(LUA_DIRECTORY, scripts)
    # The bug goes into one script, even where its line comes from an include.
    source = load_script(bug.script).source.decode()
    assert source.count(bug.good) == 1, "the line this bug replaces has changed: plant it anew"
    (scripts / f"{bug.script}.lua").write_text(source.replace(bug.good, bug.bad), "utf-8")

    replay(machine_on(valkey)(), bug.history)
    with pytest.raises(AssertionError):
        replay(machine_on(valkey, scripts)(), bug.history)
