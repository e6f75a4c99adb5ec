-- flush_buffer: make a conversation's waiting messages, and its frozen batch, due now.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[6]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  start_id               str   names this call; a retry sends the same
-- ARGV[4]  start_ms               int   lifetime of a start reservation
-- ARGV[5]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"FLUSHED", due_at_ms, count, start} | {"EMPTY"}
-- Repeat   returns FLUSHED again, with the same start reservation
-- Keeps    a frozen batch's content; a hold continues for later messages

local pending_key, open_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local conv_key, msgs_key = KEYS[5], KEYS[6]
local now, now_ms, conversation = ARGV[1], tonumber(ARGV[1]), ARGV[2]
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

-- include open_buffer: due_at_of
-- include changed_buffer: with_due_at

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
local frozen = redis.call('HEXISTS', conv_key, 'frozen') == 1
if not buffer and not frozen then return {'EMPTY'} end

-- The time at which claim_due will claim the conversation, or 0 if it is in flight. `pending` has a frozen batch's
-- exact time, but an open buffer is claimed at its own due time if that is later.
local scheduled_at = tonumber(redis.call('ZSCORE', pending_key, conversation)) or 0
local due_at = buffer and due_at_of(buffer) or now_ms
if not frozen then scheduled_at = scheduled_at > 0 and math.max(scheduled_at, due_at) or 0 end
if scheduled_at > now_ms then
  redis.call('ZREM', pending_key, conversation)
  redis.call('ZADD', pending_key, now_ms, conversation)
end
if due_at > now_ms then
  due_at = now_ms
  -- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
  redis.call('HDEL', open_key, conversation)
  redis.call('HSET', open_key, conversation, with_due_at(buffer, due_at, 'flush', 'flush'))
end

-- include start_or_wake
return {'FLUSHED', due_at, redis.call('LLEN', msgs_key), start}
