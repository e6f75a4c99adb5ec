-- renew_lease: prolong the processor's lease and beat its heart.
--
-- KEYS[1]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- ARGV[1]  now_ms                 int
-- ARGV[2]  lease_id               str
-- ARGV[3]  lease_ms               int
-- Returns  {"RENEWED", expires_at_ms} | {"LOST"}
-- Repeat   renews again
-- Keeps    a lease that ran out is not revived: others may have acted on its end

local processor_key = KEYS[1]
local now_ms, lease_id, lease_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local owner = redis.call('HMGET', processor_key, 'lease_id', 'expires_at')
if owner[1] ~= lease_id or tonumber(owner[2]) <= now_ms then return {'LOST'} end

-- A removing command first: when memory is full the server refuses a script whose first write could grow.
redis.call('HDEL', processor_key, 'heartbeat_at')
redis.call('HSET', processor_key, 'expires_at', now_ms + lease_ms, 'heartbeat_at', now_ms)
return {'RENEWED', now_ms + lease_ms}
