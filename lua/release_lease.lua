-- release_lease: end the caller's lease; refuse to end an idle processor's while work is due soon or in flight.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- ARGV[1]  now_ms                 int
-- ARGV[2]  lease_id               str
-- ARGV[3]  reason                 str   'idle': refused if work is due within horizon_ms or in flight; 'handover': never
-- ARGV[4]  start_id               str   names this call; a retry sends the same
-- ARGV[5]  start_ms               int   lifetime of a start reservation
-- ARGV[6]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"RELEASED", next_due_at_ms | -1, start} | {"PENDING", next_due_at_ms} | {"LOST"}
-- Repeat   returns RELEASED again if a successor's start is reserved, otherwise LOST
-- Keeps    no message arrives unseen between the last claim and the end of the lease

local pending_key, open_key, inflight_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now_ms, lease_id, reason = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local start_id, start_ms, horizon_ms = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

local owner = redis.call('HMGET', processor_key, 'lease_id', 'starting_by')
local next_due_at = tonumber(redis.call('ZRANGE', pending_key, 0, 0, 'WITHSCORES')[2]) or -1
-- Conversations in flight count as work, because a processor must put them back if their conversation processor dies.
local next_deadline = tonumber(redis.call('ZRANGE', inflight_key, 0, 0, 'WITHSCORES')[2])
if next_deadline then
  next_deadline = math.ceil(next_deadline)
  next_due_at = next_due_at < 0 and next_deadline or math.min(next_due_at, next_deadline)
end
local near = next_due_at >= 0 and next_due_at <= now_ms + horizon_ms
if owner[1] ~= lease_id then
  if owner[2] == start_id then return {'RELEASED', next_due_at, 1} end
  return {'LOST'}
end
if reason == 'idle' and near then return {'PENDING', next_due_at} end

-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('HDEL', open_key, '')
redis.call('HDEL', processor_key, 'lease_id', 'heartbeat_at')
redis.call('DEL', wake_key)
if not near then return {'RELEASED', next_due_at, 0} end
redis.call('HSET', processor_key, 'starting_until', now_ms + start_ms, 'starting_by', start_id)
return {'RELEASED', next_due_at, 1}
