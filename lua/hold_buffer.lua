-- hold_buffer: a human has taken over; keep messages back until resumed, or until the ceiling.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:moved       hash  conversation -> later due_at_ms
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[5]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  held_until_ms          int   the ceiling: held no longer than this
-- ARGV[4]  seen_ms                int   how long an idle conversation is remembered
-- Returns  {"HELD", held_until_ms, count}
-- Repeat   the same hold
-- Keeps    a frozen batch goes its way; what was claimed but not taken comes back

local pending_key, moved_key, inflight_key, conv_key, msgs_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now_ms, conversation, held_until, seen_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local conv = redis.call('HMGET', conv_key, 'due_at', 'frozen')
local count = redis.call('LLEN', msgs_key)
redis.call('HSET', conv_key, 'held_until', held_until)
if count > 0 and tonumber(conv[1]) < held_until then
  redis.call('HSET', conv_key, 'due_at', held_until, 'why', 'hold')
  if not conv[2] then
    redis.call('ZREM', inflight_key, conversation)
    redis.call('HDEL', moved_key, conversation)
    redis.call('ZADD', pending_key, held_until, conversation)
  end
elseif count == 0 and not conv[2] then
  redis.call('PEXPIRE', conv_key, math.max(0, held_until - now_ms) + seen_ms)
end
return {'HELD', held_until, count}
