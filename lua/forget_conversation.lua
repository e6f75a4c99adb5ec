-- forget_conversation: erase all keys and members of a conversation.
--
-- KEYS[1]  {b<shard>}:pending      zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open         hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight     zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:held         zset  conversation -> held_until_ms; handoff/<id> -> the end of the mark
-- KEYS[5]  {b<shard>}:claimed      list  conversation, due_at_ms, ... of the last claim
-- KEYS[6]  {b<shard>}:conv:<id>    hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[7]  {b<shard>}:msgs:<id>    list  buffered payloads, oldest first
-- KEYS[8]  {b<shard>}:batch:<id>   list  the frozen batch
-- KEYS[9]  {b<shard>}:taken:<id>   hash  the frozen batch's id, times and owner
-- KEYS[10] {b<shard>}:seen:<id>    zset  message id -> arrived_at_ms
-- KEYS[11] {b<shard>}:emitted:<id> zset  batch id -> its last_at_ms
-- KEYS[12] {b<shard>}:holds        hash  people/<id>, consumers/<id>, handoff/<id> -> end, a blank, cause
-- ARGV[1]  now_ms                  int
-- ARGV[2]  conversation            str
-- Returns  {"FORGOTTEN", last_at_ms | -1, waiting, frozen, leaving_until_ms | -1}
-- Repeat   erases what has arrived in between; the counts of the first call are lost
-- Keeps    nothing: a message that arrives later, even one delivered again, begins a new conversation

local pending_key, open_key, inflight_key, held_key, claimed_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local conv_key, msgs_key, batch_key, taken_key, seen_key, emitted_key, holds_key =
  KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local now_ms, conversation = tonumber(ARGV[1]), ARGV[2]

-- include open_buffer: last_at_of

local buffer = redis.call('HGET', open_key, conversation)
local waiting, frozen = redis.call('LLEN', msgs_key), redis.call('LLEN', batch_key)
local taken = redis.call('HMGET', taken_key, 'token_until', 'last_at')
local token_until, last_at = tonumber(taken[1]) or 0, -1
local ended_at = redis.call('HGET', conv_key, 'last_at')
for _, arrived_at in ipairs({ended_at or -1, taken[2] or -1, buffer and last_at_of(buffer) or -1}) do
  -- Hosts' clocks differ by up to a minute. A time that is further ahead is wrong, so ignore it.
  if tonumber(arrived_at) < now_ms + 60000 then last_at = math.max(last_at, arrived_at) end
end
redis.call('UNLINK', conv_key, msgs_key, batch_key, taken_key, seen_key, emitted_key)
redis.call('HDEL', open_key, conversation)
redis.call('ZREM', pending_key, conversation)
redis.call('ZREM', inflight_key, conversation)
redis.call('ZREM', held_key, conversation, 'handoff/' .. conversation)
redis.call('HDEL', holds_key, 'people/' .. conversation, 'consumers/' .. conversation, 'handoff/' .. conversation)
for i, name in ipairs(redis.call('LRANGE', claimed_key, 0, -1)) do
  if i % 2 == 1 and name == conversation then
    redis.call('LSET', claimed_key, i - 1, '')
    redis.call('LSET', claimed_key, i, '')
  end
end
redis.call('LREM', claimed_key, 0, '')
return {'FORGOTTEN', last_at, waiting, frozen, token_until > now_ms and token_until or -1}
