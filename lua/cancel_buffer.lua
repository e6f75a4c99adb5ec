-- cancel_buffer: drop a conversation's waiting messages and its frozen batch.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[5]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[6]  {b<shard>}:batch:<id>  list  the frozen batch
-- KEYS[7]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- KEYS[8]  {b<shard>}:seen:<id>   zset  message id -> arrived_at_ms
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  cancel_id              str   names this call, or the message that asked for the cancel; a retry sends the same
-- ARGV[4]  seen_ms                int   how long an idle conversation is remembered
-- ARGV[5]  max_seen               int   number of message ids that it remembers
-- Returns  {"CANCELLED", generation, buffered, frozen, leaving} | {"REPEATED", generation}
-- Repeat   returns REPEATED, however late, and drops nothing
-- Keeps    a dropped batch is not retried; if leaving = 1, a conversation processor may still emit it once

local pending_key, open_key, inflight_key, conv_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local msgs_key, batch_key, taken_key, seen_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local now_ms, conversation, cancel_id = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local seen_ms, max_seen = tonumber(ARGV[4]), tonumber(ARGV[5])

-- include open_buffer: last_at_of, base_of
-- include forget_ids: forget_ids

local buffer = redis.call('HGET', open_key, conversation)
if redis.call('ZSCORE', seen_key, cancel_id) then
  local generation = tonumber(redis.call('HGET', conv_key, 'generation')) or 0
  if buffer then generation = base_of(buffer) + redis.call('LLEN', msgs_key) end
  return {'REPEATED', generation}
end
local buffered, frozen = redis.call('LLEN', msgs_key), redis.call('LLEN', batch_key)
local leaving = (tonumber(redis.call('HGET', taken_key, 'token_until')) or 0) > now_ms
redis.call('DEL', msgs_key, batch_key, taken_key)
redis.call('HDEL', open_key, conversation)
redis.call('ZREM', pending_key, conversation)
redis.call('ZREM', inflight_key, conversation)
redis.call('HDEL', conv_key, 'frozen', 'tail')
local generation = (redis.call('HGET', conv_key, 'generation') or 0) + 1
if buffer then
  generation = base_of(buffer) + buffered + 1
  redis.call('HSET', conv_key, 'last_at', last_at_of(buffer))
end
redis.call('HSET', conv_key, 'generation', string.format('%010d', generation))
redis.call('ZADD', seen_key, now_ms, cancel_id)
forget_ids('+inf')
redis.call('PEXPIRE', conv_key, seen_ms)
redis.call('PEXPIRE', seen_key, seen_ms)
return {'CANCELLED', generation, buffered, frozen, leaving and 1 or 0}
