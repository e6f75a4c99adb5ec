-- hold_buffer: a human has taken over; keep messages back until resumed, or until the ceiling.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms, or earlier where the open buffer says so
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:conv:<id>   hash  what outlasts a buffer: generation, frozen batch, rhythm
-- KEYS[7]  {b<shard>}:held        zset  conversation -> held_until_ms; in the past, it has no effect
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  held_until_ms          int   the ceiling: held no longer than this
-- ARGV[4]  start_id               str   this call, the same again on a retry of it
-- ARGV[5]  start_ms               int   how long a start reservation stands
-- ARGV[6]  horizon_ms             int   work due later than this is left to the watchdog
-- Returns  {"HELD", held_until_ms, start}
-- Repeat   the same hold
-- Keeps    a frozen batch goes its way; what was claimed but not taken comes back; a longer hold is not shortened

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key, conv_key, held_key = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now, now_ms, conversation, held_until = ARGV[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local start_id, start_ms, horizon_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

held_until = math.max(held_until, tonumber(redis.call('ZSCORE', held_key, conversation)) or 0)
redis.call('ZADD', held_key, held_until, conversation)
local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
if buffer then
  local frozen = redis.call('HEXISTS', conv_key, 'frozen') == 1
  local due_at, mode, why = tonumber(string.sub(buffer, 27, 39)), frozen and 'f' or 'h', string.sub(buffer, 51)
  if due_at < held_until then
    due_at, why = held_until, 'hold'
    if not frozen then
      redis.call('ZREM', inflight_key, conversation)
      redis.call('ZADD', pending_key, due_at, conversation)
    end
  end
  redis.call('HSET', open_key, conversation, string.sub(buffer, 1, 26) .. due_at .. mode .. string.sub(buffer, 41, 50) .. why)
  -- include start_or_wake
end
return {'HELD', held_until, start}
