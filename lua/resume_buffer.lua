-- resume_buffer: end a hold; what was held is due now.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:moved       hash  conversation -> later due_at_ms
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[7]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  start_id               str   this call, the same again on a retry of it
-- ARGV[4]  start_ms               int   how long a start reservation stands
-- ARGV[5]  horizon_ms             int   work due later than this is left to the watchdog
-- Returns  {"RESUMED", due_at_ms | -1, count, start} | {"NOT_HELD", due_at_ms | -1, count, start}
-- Repeat   NOT_HELD, with the same start reservation
-- Keeps    the order behind a frozen batch

local pending_key, moved_key, inflight_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local conv_key, msgs_key = KEYS[6], KEYS[7]
local now_ms, conversation = tonumber(ARGV[1]), ARGV[2]
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local conv = redis.call('HMGET', conv_key, 'due_at', 'frozen', 'held_until')
local count = redis.call('LLEN', msgs_key)
local word, due_at = 'NOT_HELD', count > 0 and tonumber(conv[1])
if conv[3] then
  word = 'RESUMED'
  redis.call('HDEL', conv_key, 'held_until')
  if due_at and due_at > now_ms then
    due_at = now_ms
    redis.call('HSET', conv_key, 'due_at', due_at, 'why', 'resume')
    if not conv[2] then
      redis.call('HDEL', moved_key, conversation)
      if not redis.call('ZSCORE', inflight_key, conversation) then redis.call('ZADD', pending_key, due_at, conversation) end
    end
  end
end

local start = 0
if due_at then
  -- begin wanted (the same lines in every script that schedules; a test compares them)
  local processor = redis.call('HMGET', processor_key, 'expires_at', 'starting_until', 'starting_by', 'wake_at')
  if (tonumber(processor[1]) or 0) > now_ms then
    if due_at < (tonumber(processor[4]) or 0) then
      redis.call('HSET', processor_key, 'wake_at', 0)
      redis.call('LPUSH', wake_key, 1)
    end
  elseif due_at <= now_ms + horizon_ms and ((tonumber(processor[2]) or 0) <= now_ms or processor[3] == start_id) then
    redis.call('HSET', processor_key, 'starting_until', now_ms + start_ms, 'starting_by', start_id)
    start = 1
  end
  -- end wanted
end
return {word, due_at or -1, count, start}
