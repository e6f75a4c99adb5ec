-- end_processor: end the lease and the reservation of a dead processor, and reserve a start if work is near.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- ARGV[1]  now_ms                 int
-- ARGV[2]  dead_id                str   start id of the run that died
-- ARGV[3]  calm_ms                int   deaths are counted from 1 if the last one's pause ended this long ago
-- ARGV[4]  pause_ms               int   pause after the second death in a row; it doubles up to 1.5 x start_ms
-- ARGV[5]  start_id               str   names this call; a retry sends the same
-- ARGV[6]  start_ms               int   lifetime of a start reservation
-- ARGV[7]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"ENDED", wait_ms, start} | {"STALE", wait_ms, start}
-- Repeat   returns STALE, with the same wait and the same start reservation
-- Keeps    the lease and the reservation of every run with another start id; if wait_ms is not 0, no processor starts before
--          it has passed

local pending_key, open_key, inflight_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now, now_ms, dead_id, calm_ms, pause_ms = ARGV[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local start_id, start_ms, horizon_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

-- include pause_after: pause_after

local found = redis.call('HMGET', processor_key, 'lease_id', 'starting_until', 'starting_by', 'deaths', 'died_at')
local alive, start = redis.call('HGET', open_key, ''), 0
local has_lease = alive and alive > now and string.sub(found[1], 1, #dead_id + 1) == dead_id .. '.'
local has_start, pause_id = found[3] == dead_id, 'after ' .. dead_id
local wait_ms = found[3] == pause_id and math.max(found[2] - now_ms, 0) or 0
if has_lease then
  -- Begin with a command that only removes, because a full server refuses a script whose first write might need memory.
  redis.call('DEL', wake_key)
  -- Set an end that is past by every host's clock. Keep lease_id, so that the successor puts back this one's claims.
  alive = now_ms - 60001 .. '0000000000000'
  redis.call('HSET', open_key, '', alive)
end
if has_lease or has_start then
  -- Keep the pause below 2 x start_ms, because start_or_wake ignores a reservation further ahead.
  local deaths, most_ms = tonumber(found[4]) or 0, 1.5 * start_ms
  if now_ms - (found[5] or 0) > calm_ms + pause_after(deaths, pause_ms, most_ms) then deaths = 0 end
  redis.call('HDEL', processor_key, 'died_at')
  redis.call('HSET', processor_key, 'deaths', deaths + 1, 'died_at', now_ms)
  local pause = pause_after(deaths + 1, pause_ms, most_ms)
  -- Keep the reservation if another caller has already started a successor.
  if has_start or now_ms >= tonumber(found[2] or 0) then
    redis.call('HDEL', processor_key, 'starting_until', 'starting_by')
    if pause > 0 then
      redis.call('HSET', processor_key, 'starting_until', now_ms + pause, 'starting_by', pause_id)
      wait_ms = pause
    end
  end
end

-- Conversations in flight count as work, because the dead processor may not have started their conversation processors.
local due_at = tonumber(redis.call('ZRANGE', pending_key, 0, 0, 'WITHSCORES')[2]) or math.huge
due_at = math.min(due_at, tonumber(redis.call('ZRANGE', inflight_key, 0, 0, 'WITHSCORES')[2]) or math.huge)
if not (alive and alive > now) then
  -- include start_or_wake
end
return {(has_lease or has_start) and 'ENDED' or 'STALE', wait_ms, start}
