-- retime_buffer: compute an open buffer's due time again, because rules have changed.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch, rhythm
-- KEYS[6]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[7]  {b<shard>}:held        zset  conversation -> held_until_ms; a time in the past has no effect
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  silence_ms             int
-- ARGV[4]  typing_ms              int   wait this long if the buffer's mean gap is shorter; 0 = off, or more than silence_ms
-- ARGV[5]  max_wait_ms            int
-- ARGV[6]  max_messages           int
-- ARGV[7]  min_messages           int
-- ARGV[8]  flush_reason           str   '' = wait; any other = due now, for this reason
-- ARGV[9]  adaptive               str   '' = off; 'k floor_ms ceiling_ms' = wait the mean gap + k deviations, within these bounds
-- ARGV[10] start_id               str   names this call; a retry sends the same
-- ARGV[11] start_ms               int   lifetime of a start reservation
-- ARGV[12] horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"RETIMED", due_at_ms, count, start} | {"UNMOVED", due_at_ms} | {"EMPTY"}
-- Repeat   the same again, with the same start reservation
-- Keeps    a due buffer remains due; due <= first arrival + max wait, unless a hold ends later; a frozen batch's retry
--          does not move

local pending_key, open_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local conv_key, msgs_key, holds_key = KEYS[5], KEYS[6], KEYS[7]
local now, now_ms, conversation = ARGV[1], tonumber(ARGV[1]), ARGV[2]
local silence_ms, typing_ms, max_wait_ms = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local max_messages, min_messages, flush_reason, adaptive = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9]
local start_id, start_ms, horizon_ms = ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])

-- include open_buffer: first_at_of, last_at_of, due_at_of, mode_of, reason_of
-- include changed_buffer: with_due_at

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
if not buffer then return {'EMPTY'} end
local old_due_at, mode, reason = due_at_of(buffer), mode_of(buffer), reason_of(buffer)
if old_due_at < now_ms then return {'UNMOVED', old_due_at} end

local count, due_at = redis.call('LLEN', msgs_key), old_due_at
if old_due_at > now_ms then
  local first_at, last_at, wait_ms = first_at_of(buffer), last_at_of(buffer), silence_ms
  local conv = redis.call('HMGET', conv_key, 'gap_mean', 'gap_dev')
  if adaptive ~= '' and conv[1] then
    local k, floor_ms, ceiling_ms = string.match(adaptive, '(%S+) (%S+) (%S+)')
    wait_ms = math.max(floor_ms, math.min(ceiling_ms, math.ceil(conv[1] + k * conv[2])))
  elseif count > 1 and (last_at - first_at) / (count - 1) < typing_ms then
    wait_ms = math.max(silence_ms, typing_ms) -- typing_ms may be 0, the mean gap below 0 if clocks differ
  end
  due_at, reason = last_at + wait_ms, 'silence'
  if count < min_messages or due_at >= first_at + max_wait_ms then due_at, reason = first_at + max_wait_ms, 'max_wait' end
  due_at = math.max(due_at, now_ms) -- by the new rules it may have been due already
  if count >= max_messages then due_at, reason = now_ms, 'max_messages' end
  if flush_reason ~= '' then due_at, reason = now_ms, flush_reason end
  local held_until = tonumber(redis.call('ZSCORE', holds_key, conversation)) or 0
  if held_until > now_ms and due_at < held_until then due_at, reason = held_until, 'hold' end
  -- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
  redis.call('HDEL', open_key, conversation)
  redis.call('HSET', open_key, conversation, with_due_at(buffer, due_at, reason))
  if mode ~= 'f' and due_at < old_due_at then redis.call('ZADD', pending_key, 'XX', due_at, conversation) end
end

-- include start_or_wake
return {'RETIMED', due_at, count, start}
