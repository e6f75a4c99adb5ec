-- hold_buffer: a human has taken over; keep messages back until resumed, or until the ceiling.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms, or earlier where the open buffer says so
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:conv:<id>   hash  what outlasts a buffer: generation, hold, frozen batch, rhythm
-- ARGV[1]  conversation           str
-- ARGV[2]  held_until_ms          int   the ceiling: held no longer than this, at most seen_ms from now
-- ARGV[3]  seen_ms                int   how long an idle conversation is remembered
-- Returns  {"HELD", held_until_ms}
-- Repeat   the same hold
-- Keeps    a frozen batch goes its way; what was claimed but not taken comes back; a longer hold is not shortened

local pending_key, open_key, inflight_key, conv_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local conversation, held_until, seen_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local conv = redis.call('HMGET', conv_key, 'held_until', 'frozen')
held_until = math.max(held_until, tonumber(conv[1]) or 0)
redis.call('HSET', conv_key, 'held_until', held_until)
local buffer = redis.call('HGET', open_key, conversation)
if buffer then
  local due_at, mode, why = tonumber(string.sub(buffer, 27, 39)), conv[2] and 'f' or 'h', string.sub(buffer, 51)
  if due_at < held_until then
    due_at, why = held_until, 'hold'
    if not conv[2] then
      redis.call('ZREM', inflight_key, conversation)
      redis.call('ZADD', pending_key, due_at, conversation)
    end
  end
  redis.call('HSET', open_key, conversation, string.sub(buffer, 1, 26) .. due_at .. mode .. string.sub(buffer, 41, 50) .. why)
end
if buffer or conv[2] then redis.call('PERSIST', conv_key) else redis.call('PEXPIRE', conv_key, seen_ms) end
return {'HELD', held_until}
