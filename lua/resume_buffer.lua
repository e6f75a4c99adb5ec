-- resume_buffer: end a hold; what was held is due now.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms, or earlier where the open buffer says so
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:held        zset  conversation -> held_until_ms; in the past, it has no effect
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  start_id               str   this call, the same again on a retry of it
-- ARGV[4]  start_ms               int   how long a start reservation stands
-- ARGV[5]  horizon_ms             int   work due later than this is left to the watchdog
-- Returns  {"RESUMED", due_at_ms | -1, start} | {"NOT_HELD", due_at_ms | -1, start}
-- Repeat   NOT_HELD, with the same start reservation
-- Keeps    the order behind a frozen batch

local pending_key, open_key, processor_key, wake_key, held_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, now_ms, conversation = ARGV[1], tonumber(ARGV[1]), ARGV[2]
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start, word = state[1], state[2], 0, 'NOT_HELD'
local due_at = buffer and tonumber(string.sub(buffer, 27, 39))
local held_until = tonumber(redis.call('ZSCORE', held_key, conversation))
if held_until then
  redis.call('ZREM', held_key, conversation)
  if held_until > now_ms then word = 'RESUMED' end -- otherwise the hold had run out by itself
  if buffer then
    local mode, why = string.sub(buffer, 40, 40) == 'f' and 'f' or '-', string.sub(buffer, 51)
    if word == 'RESUMED' and due_at > now_ms then
      due_at, why = now_ms, 'resume'
      if mode ~= 'f' then redis.call('ZADD', pending_key, 'XX', due_at, conversation) end -- XX: or it is in flight
    end
    redis.call('HSET', open_key, conversation, string.sub(buffer, 1, 26) .. due_at .. mode .. string.sub(buffer, 41, 50) .. why)
  end
end

if due_at then
  -- include start_or_wake
end
return {word, due_at or -1, start}
