-- return_claim: put a claimed conversation back because no executor could be sent for it.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms
-- KEYS[2]  {b<shard>}:moved       hash  conversation -> later due_at_ms
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:taken:<id>  hash  the frozen batch's identity and executor
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  lease_id               str
-- ARGV[4]  due_at_ms              int   when to try again
-- Returns  {"RETURNED", due_at_ms} | {"BUSY"} | {"STALE"} | {"LOST"}
-- Repeat   answers STALE and changes nothing
-- Keeps    an executor that got the invocation after all keeps its batch

local pending_key, moved_key, inflight_key, processor_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local wake_key, taken_key = KEYS[5], KEYS[6]
local now_ms, conversation, lease_id, due_at = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

local owner = redis.call('HMGET', processor_key, 'lease_id', 'expires_at', 'wake_at')
if owner[1] ~= lease_id or tonumber(owner[2]) <= now_ms then return {'LOST'} end
if not redis.call('ZSCORE', inflight_key, conversation) then return {'STALE'} end
local token_until = tonumber(redis.call('HGET', taken_key, 'token_until')) or 0
if token_until > now_ms then return {'BUSY'} end

redis.call('ZREM', inflight_key, conversation)
redis.call('HDEL', moved_key, conversation)
redis.call('ZADD', pending_key, due_at, conversation)
if due_at < (tonumber(owner[3]) or 0) then
  redis.call('HSET', processor_key, 'wake_at', 0)
  redis.call('LPUSH', wake_key, 1)
end
return {'RETURNED', due_at}
