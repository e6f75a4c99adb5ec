-- renew_lease: extend the processor's lease and record its heartbeat.
--
-- KEYS[1]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[2]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- ARGV[1]  now_ms                 int
-- ARGV[2]  lease_id               str
-- ARGV[3]  lease_ms               int
-- Returns  {"RENEWED", expires_at_ms} | {"LOST"}
-- Repeat   renews again
-- Keeps    an ended lease remains ended, because another processor may have acted on its end

local open_key, processor_key = KEYS[1], KEYS[2]
local now, now_ms, lease_id, lease_ms = ARGV[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local alive = redis.call('HGET', open_key, '')
if redis.call('HGET', processor_key, 'lease_id') ~= lease_id or alive < now then
  return {'LOST'}
end

-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('HDEL', processor_key, 'heartbeat_at')
redis.call('HSET', processor_key, 'heartbeat_at', now_ms)
local expires_at = now_ms + lease_ms
redis.call('HSET', open_key, '', expires_at - 1 .. string.sub(alive, 14))
return {'RENEWED', expires_at}
