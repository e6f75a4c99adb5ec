-- acquire_lease: make the caller the shard's processor, unless another processor is alive.
--
-- KEYS[1]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[2]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[3]  {b<shard>}:wake        list  at most one element
-- ARGV[1]  now_ms                 int
-- ARGV[2]  lease_id               str   unique to this run of the processor
-- ARGV[3]  lease_ms               int
-- Returns  {"ACQUIRED", expires_at_ms} | {"LEASED", expires_at_ms}
-- Repeat   renews the lease
-- Keeps    at most one processor has the lease; acquiring it ends the start reservation

local open_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3]
local now, now_ms, lease_id, lease_ms = ARGV[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local alive = redis.call('HGET', open_key, '')
if alive and alive > now and redis.call('HGET', processor_key, 'lease_id') ~= lease_id then
  return {'LEASED', string.sub(alive, 1, 13) + 1}
end

-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('DEL', wake_key)
redis.call('HDEL', processor_key, 'starting_until', 'starting_by')
redis.call('HSET', processor_key, 'lease_id', lease_id, 'heartbeat_at', now_ms)
local expires_at = now_ms + lease_ms
-- The lease's last millisecond, then wake_at, which is all zeros because the processor is awake.
redis.call('HSET', open_key, '', expires_at - 1 .. '0000000000000')
return {'ACQUIRED', expires_at}
