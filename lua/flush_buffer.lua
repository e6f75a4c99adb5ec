-- flush_buffer: stop waiting; what the conversation holds is due now.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms, or earlier where the open buffer says so
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:conv:<id>   hash  what outlasts a buffer: generation, frozen batch, rhythm
-- KEYS[6]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  start_id               str   this call, the same again on a retry of it
-- ARGV[4]  start_ms               int   how long a start reservation stands
-- ARGV[5]  horizon_ms             int   work due later than this is left to the watchdog
-- Returns  {"FLUSHED", due_at_ms, count, start} | {"EMPTY"}
-- Repeat   FLUSHED again, with the same start reservation
-- Keeps    a batch waiting for its retry is tried now, as it is; a hold goes on for what comes later

local pending_key, open_key, processor_key, wake_key, conv_key, msgs_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local now, now_ms, conversation = ARGV[1], tonumber(ARGV[1]), ARGV[2]
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
local frozen = redis.call('HEXISTS', conv_key, 'frozen') == 1
if not buffer and not frozen then return {'EMPTY'} end

-- The time it is looked at: of a frozen batch its retry, of an open buffer the later of the two; in flight, none.
local scheduled_at = tonumber(redis.call('ZSCORE', pending_key, conversation)) or 0
local due_at = buffer and tonumber(string.sub(buffer, 27, 39)) or now_ms
if not frozen then scheduled_at = scheduled_at > 0 and math.max(scheduled_at, due_at) or 0 end
if scheduled_at > now_ms then
  redis.call('ZREM', pending_key, conversation)
  redis.call('ZADD', pending_key, now_ms, conversation)
end
if due_at > now_ms then
  due_at = now_ms
  -- A removing command first: when memory is full the server refuses a script whose first write could grow.
  redis.call('HDEL', open_key, conversation)
  redis.call('HSET', open_key, conversation, string.sub(buffer, 1, 26) .. due_at .. string.sub(buffer, 40, 50) .. 'flush')
end

-- include start_or_wake
return {'FLUSHED', due_at, redis.call('LLEN', msgs_key), start}
