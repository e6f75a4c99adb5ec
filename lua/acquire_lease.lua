-- acquire_lease: make the caller the shard's processor, unless one is alive; put back the untaken claims of a dead one.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- ARGV[1]  now_ms                 int
-- ARGV[2]  lease_id               str   unique to this run of the processor
-- ARGV[3]  lease_ms               int
-- Returns  {"ACQUIRED", expires_at_ms, returned} | {"LEASED", expires_at_ms}
-- Repeat   renews the lease, and puts nothing back
-- Keeps    at most one processor has the lease; acquiring it ends the start reservation; a taken batch stays in flight

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key = KEYS[4], KEYS[5]
local now, now_ms, lease_id, lease_ms = ARGV[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local alive, owner = redis.call('HGET', open_key, ''), redis.call('HGET', processor_key, 'lease_id')
if alive and alive > now and owner ~= lease_id then
  return {'LEASED', string.sub(alive, 1, 13) + 1}
end

-- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
redis.call('DEL', wake_key)
local untaken, due = {}, {}
if owner and owner ~= lease_id then
  -- The former processor did not release its lease, so it died, perhaps before it had started a conversation processor
  -- for each of its claims. Claims beyond the first 1,000 expire by themselves.
  local inflight = redis.call('ZRANGE', inflight_key, 0, 999, 'WITHSCORES')
  for i = 1, #inflight, 2 do
    if inflight[i + 1] % 1 == 0 then -- a claim's deadline; the score of a taken batch ends with .5
      untaken[#untaken + 1], due[#due + 1], due[#due + 2] = inflight[i], now_ms, inflight[i]
    end
  end
  if #untaken > 0 then
    redis.call('ZREM', inflight_key, unpack(untaken))
    redis.call('ZADD', pending_key, unpack(due))
  end
end
redis.call('HDEL', processor_key, 'starting_until', 'starting_by')
redis.call('HSET', processor_key, 'lease_id', lease_id, 'heartbeat_at', now_ms)
local expires_at = now_ms + lease_ms
-- The lease's last millisecond, then wake_at, which is all zeros because the processor is awake.
redis.call('HSET', open_key, '', expires_at - 1 .. '0000000000000')
return {'ACQUIRED', expires_at, #untaken}
