-- complete_batch: the batch is out; forget it, and schedule what came meanwhile.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:moved       hash  conversation -> later due_at_ms
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[7]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[8]  {b<shard>}:batch:<id>  list  the frozen batch
-- KEYS[9]  {b<shard>}:taken:<id>  hash  the frozen batch's identity and executor
-- KEYS[10] {b<shard>}:seen:<id>   zset  message id -> arrived_at_ms
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  token                  str   the one that took the batch
-- ARGV[4]  seen_ms                int   how long an idle conversation is remembered
-- ARGV[5]  start_id               str   this call, the same again on a retry of it
-- ARGV[6]  start_ms               int   how long a start reservation stands
-- ARGV[7]  horizon_ms             int   work due later than this is left to the watchdog
-- Returns  {"COMPLETED", due_at_ms | -1, count, start} | {"STALE"}
-- Repeat   COMPLETED again, with the same start reservation, until the next batch is completed
-- Keeps    an old executor's completion leaves a newer batch untouched

local pending_key, moved_key, inflight_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local conv_key, msgs_key, batch_key, taken_key, seen_key = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local now_ms, conversation, token, seen_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local start_id, start_ms, horizon_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

local first_call = redis.call('HGET', taken_key, 'token') == token
if not first_call and redis.call('HGET', conv_key, 'completed_by') ~= token then return {'STALE'} end

local count = redis.call('LLEN', msgs_key)
local due_at = tonumber(redis.call('HGET', conv_key, 'due_at'))
if first_call then
  redis.call('DEL', batch_key, taken_key)
  redis.call('ZREM', inflight_key, conversation)
  redis.call('ZREM', pending_key, conversation) -- recovered meanwhile: the executor was slow, not dead
  redis.call('HDEL', moved_key, conversation)
  redis.call('HDEL', conv_key, 'frozen')
  redis.call('HSET', conv_key, 'completed_by', token)
  if count > 0 then
    redis.call('ZADD', pending_key, due_at, conversation)
  else
    redis.call('PEXPIRE', conv_key, seen_ms)
    redis.call('PEXPIRE', seen_key, seen_ms)
  end
end

local start = 0
if count > 0 then
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
return {'COMPLETED', count > 0 and due_at or -1, count, start}
