-- peek_conversation: look at a conversation without changing it.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[3]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[4]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[5]  {b<shard>}:batch:<id>  list  the frozen batch
-- KEYS[6]  {b<shard>}:taken:<id>  hash  the frozen batch's identity and executor
-- ARGV[1]  conversation           str
-- ARGV[2]  limit                  int   at most this many payloads, oldest first, 0..1000
-- Returns  {"IDLE" | "PENDING" | "INFLIGHT", scheduled_at_ms | -1, due_at_ms | -1, why | "", count, first_at_ms | -1, last_at_ms | -1, generation, held_until_ms | -1, batch_id | "", attempt, frozen, payload...}
-- Repeat   reads again
-- Keeps    everything

local pending_key, inflight_key, conv_key, msgs_key, batch_key, taken_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local conversation, limit = ARGV[1], tonumber(ARGV[2])

local word, scheduled_at = 'PENDING', redis.call('ZSCORE', pending_key, conversation)
if not scheduled_at then
  scheduled_at = redis.call('ZSCORE', inflight_key, conversation)
  word = scheduled_at and 'INFLIGHT' or 'IDLE'
end
local conv = redis.call('HMGET', conv_key, 'due_at', 'why', 'first_at', 'last_at', 'generation', 'held_until', 'frozen')
return {word, tonumber(scheduled_at) or -1, tonumber(conv[1]) or -1, conv[2] or '', redis.call('LLEN', msgs_key),
  tonumber(conv[3]) or -1, tonumber(conv[4]) or -1, tonumber(conv[5]) or 0, tonumber(conv[6]) or -1,
  conv[7] or '', tonumber(redis.call('HGET', taken_key, 'attempt')) or 0, redis.call('LLEN', batch_key),
  unpack(limit > 0 and redis.call('LRANGE', msgs_key, 0, limit - 1) or {})}
