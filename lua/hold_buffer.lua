-- hold_buffer: keep messages back until held_until_ms, or until an operator resumes, because a person has taken over.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:conv:<id>   hash  facts that outlast a buffer: generation, frozen batch, rhythm
-- KEYS[7]  {b<shard>}:held        zset  conversation -> held_until_ms; a time in the past has no effect
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  held_until_ms          int   the hold ends at this time, unless an operator resumes earlier
-- ARGV[4]  start_id               str   names this call; a retry sends the same
-- ARGV[5]  start_ms               int   lifetime of a start reservation
-- ARGV[6]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"HELD", held_until_ms, start}
-- Repeat   the same hold again
-- Keeps    a frozen batch; the end of an earlier, longer hold. A buffer that was claimed but not taken returns to pending

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key, conv_key, held_key = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now, now_ms, conversation, held_until = ARGV[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local start_id, start_ms, horizon_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

-- include open_buffer: due_at_of
-- include changed_buffer: with_due_at, with_mode

held_until = math.max(held_until, tonumber(redis.call('ZSCORE', held_key, conversation)) or 0)
redis.call('ZADD', held_key, held_until, conversation)
local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
if buffer then
  local frozen = redis.call('HEXISTS', conv_key, 'frozen') == 1
  local due_at = due_at_of(buffer)
  if due_at < held_until then
    due_at = held_until
    buffer = with_due_at(buffer, due_at, 'hold', 'hold')
    if not frozen then
      redis.call('ZREM', inflight_key, conversation)
      redis.call('ZADD', pending_key, due_at, conversation)
    end
  end
  redis.call('HSET', open_key, conversation, with_mode(buffer, frozen and 'f' or 'h'))
  -- include start_or_wake
end
return {'HELD', held_until, start}
