-- return_claim: return a claimed conversation to pending, because no conversation processor could be started for it.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  lease_id               str
-- ARGV[4]  due_at_ms              int   when to try again
-- Returns  {"RETURNED", due_at_ms} | {"BUSY"} | {"STALE"} | {"LOST"}
-- Repeat   returns STALE and changes nothing
-- Keeps    a conversation processor that started after all keeps its batch

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key, taken_key = KEYS[4], KEYS[5], KEYS[6]
local now, now_ms, conversation, lease_id, due_at = ARGV[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

local alive = redis.call('HGET', open_key, '')
if redis.call('HGET', processor_key, 'lease_id') ~= lease_id or alive < now then
  return {'LOST'}
end
if not redis.call('ZSCORE', inflight_key, conversation) then return {'STALE'} end
if (tonumber(redis.call('HGET', taken_key, 'token_until')) or 0) > now_ms then return {'BUSY'} end

redis.call('ZREM', inflight_key, conversation)
redis.call('ZADD', pending_key, due_at, conversation)
if due_at < tonumber(string.sub(alive, 14)) then
  redis.call('DEL', wake_key)
  redis.call('LPUSH', wake_key, 1)
  redis.call('HSET', open_key, '', string.sub(alive, 1, 13) .. '0000000000000')
end
return {'RETURNED', due_at}
