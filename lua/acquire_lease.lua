-- acquire_lease: become the shard's processor, unless another one is alive.
--
-- KEYS[1]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[2]  {b<shard>}:wake        list  at most one element
-- ARGV[1]  now_ms                 int
-- ARGV[2]  lease_id               str   unique to this run of the processor
-- ARGV[3]  lease_ms               int
-- Returns  {"ACQUIRED", expires_at_ms} | {"HELD", expires_at_ms}
-- Repeat   renews
-- Keeps    one owner a shard; a start reservation ends when a processor has come

local processor_key, wake_key = KEYS[1], KEYS[2]
local now_ms, lease_id, lease_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local owner = redis.call('HMGET', processor_key, 'lease_id', 'expires_at')
local expires_at = tonumber(owner[2]) or 0
if owner[1] ~= lease_id and expires_at > now_ms then return {'HELD', expires_at} end

-- A removing command first: when memory is full the server refuses a script whose first write could grow.
redis.call('DEL', wake_key)
redis.call('HDEL', processor_key, 'starting_until', 'starting_by')
expires_at = now_ms + lease_ms
redis.call('HSET', processor_key, 'lease_id', lease_id, 'expires_at', expires_at, 'heartbeat_at', now_ms, 'wake_at', 0)
return {'ACQUIRED', expires_at}
