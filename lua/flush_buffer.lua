-- flush_buffer: stop waiting; what the conversation holds is due now.
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
-- Returns  {"FLUSHED", due_at_ms, count, start} | {"EMPTY"}
-- Repeat   FLUSHED again, with the same start reservation
-- Keeps    a batch waiting for its retry is tried now, as it is; a hold goes on for what comes later

local pending_key, moved_key, inflight_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local conv_key, msgs_key = KEYS[6], KEYS[7]
local now_ms, conversation = tonumber(ARGV[1]), ARGV[2]
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local conv = redis.call('HMGET', conv_key, 'due_at', 'frozen')
local count = redis.call('LLEN', msgs_key)
if count == 0 and not conv[2] then return {'EMPTY'} end

local due_at = tonumber(conv[1]) or now_ms
if count > 0 and due_at > now_ms then
  due_at = now_ms
  redis.call('HSET', conv_key, 'due_at', due_at, 'why', 'flush')
end
redis.call('HDEL', moved_key, conversation)
-- LT moves what is pending forward; what is in flight is left to complete_batch.
if not redis.call('ZSCORE', inflight_key, conversation) then redis.call('ZADD', pending_key, 'LT', now_ms, conversation) end

local start = 0
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
return {'FLUSHED', due_at, count, start}
