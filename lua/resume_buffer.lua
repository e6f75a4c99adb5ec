-- resume_buffer: end a hold; the messages that it kept back are due now.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[4]  {b<shard>}:wake        list  at most one element
-- KEYS[5]  {b<shard>}:held        zset  conversation -> held_until_ms; a time in the past has no effect
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  start_id               str   names this call; a retry sends the same
-- ARGV[4]  start_ms               int   lifetime of a start reservation
-- ARGV[5]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"RESUMED", due_at_ms | -1, start} | {"NOT_ON_HOLD", due_at_ms | -1, start}
-- Repeat   returns NOT_ON_HOLD, with the same start reservation
-- Keeps    messages behind a frozen batch wait until it is completed

local pending_key, open_key, processor_key, wake_key, held_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, now_ms, conversation = ARGV[1], tonumber(ARGV[1]), ARGV[2]
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

-- include open_buffer: due_at_of, mode_of
-- include changed_buffer: with_due_at, with_mode

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start, word = state[1], state[2], 0, 'NOT_ON_HOLD'
local due_at = buffer and due_at_of(buffer)
local held_until = tonumber(redis.call('ZSCORE', held_key, conversation))
if held_until then
  redis.call('ZREM', held_key, conversation)
  if held_until > now_ms then word = 'RESUMED' end -- otherwise the hold had ended by itself
  if buffer then
    local mode = mode_of(buffer) == 'f' and 'f' or '-'
    if word == 'RESUMED' and due_at > now_ms then
      due_at = now_ms
      buffer = with_due_at(buffer, due_at, 'resume', 'resume')
      if mode ~= 'f' then
        redis.call('ZADD', pending_key, 'XX', due_at, conversation) -- XX: only if it is in pending
      end
    end
    redis.call('HSET', open_key, conversation, with_mode(buffer, mode))
  end
end

if due_at then
  -- include start_or_wake
end
return {word, due_at or -1, start}
