-- cancel_buffer: drop what the conversation holds; nothing older than this call is emitted.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:moved       hash  conversation -> later due_at_ms
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[5]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[6]  {b<shard>}:batch:<id>  list  the frozen batch
-- KEYS[7]  {b<shard>}:taken:<id>  hash  the frozen batch's identity and executor
-- KEYS[8]  {b<shard>}:seen:<id>   zset  message id -> arrived_at_ms
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  seen_ms                int   how long an idle conversation is remembered
-- Returns  {"CANCELLED", generation, buffered, frozen, leaving}
-- Repeat   drops nothing more; the generation is bumped again
-- Keeps    a batch an executor holds cannot be called back (leaving = 1), but is not tried again

local pending_key, moved_key, inflight_key, conv_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local msgs_key, batch_key, taken_key, seen_key = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local now_ms, conversation, seen_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local buffered, frozen, leaving = redis.call('LLEN', msgs_key), redis.call('LLEN', batch_key), 0
local token_until = tonumber(redis.call('HGET', taken_key, 'token_until')) or 0
redis.call('DEL', msgs_key)
redis.call('HDEL', moved_key, conversation)
redis.call('HDEL', conv_key, 'first_at', 'due_at', 'why')
local generation = redis.call('HINCRBY', conv_key, 'generation', 1)
if token_until > now_ms then
  leaving = 1
  redis.call('HSET', taken_key, 'cancelled', 1)
else
  redis.call('DEL', batch_key, taken_key)
  redis.call('HDEL', conv_key, 'frozen')
  redis.call('ZREM', pending_key, conversation)
  redis.call('ZREM', inflight_key, conversation)
  redis.call('PEXPIRE', conv_key, seen_ms)
  redis.call('PEXPIRE', seen_key, seen_ms)
end
return {'CANCELLED', generation, buffered, frozen, leaving}
