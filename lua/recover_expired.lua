-- recover_expired: put back what dead executors left behind, and report the shard's health.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms, or earlier where the open buffer says so
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:held        zset  conversation -> held_until_ms; in the past, it has no effect
-- ARGV[1]  now_ms                 int
-- ARGV[2]  limit                  int   at most this many are put back, 1..1000
-- ARGV[3]  start_id               str   this call, the same again on a retry of it
-- ARGV[4]  start_ms               int   how long a start reservation stands
-- ARGV[5]  horizon_ms             int   work due later than this is left to the watchdog
-- Returns  {"RECOVERED", pending, inflight, oldest_due_at_ms | -1, heartbeat_at_ms | -1, start, conversation...}
-- Repeat   nothing left to put back; the same start reservation
-- Keeps    nothing stays in flight without an executor; a hold that stands

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key, held_key = KEYS[4], KEYS[5], KEYS[6]
local now, now_ms, limit = ARGV[1], tonumber(ARGV[1]), math.min(tonumber(ARGV[2]), 1000)
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local expired = redis.call('ZRANGE', inflight_key, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit)
if #expired > 0 then
  local back = {}
  for _, conversation in ipairs(expired) do back[#back + 1], back[#back + 2] = now_ms, conversation end
  -- A removing command first: when memory is full the server refuses a script whose first write could grow.
  redis.call('ZREM', inflight_key, unpack(expired))
  redis.call('ZADD', pending_key, unpack(back))
end

-- Holds that ran out; this clock may be a minute ahead.
redis.call('ZREMRANGEBYSCORE', held_key, '-inf', now_ms - 60000)

-- The oldest by true due time: later messages may have moved a timer without touching pending. What lies behind the
-- entries looked at is due no earlier than the last of them says.
local due_at = math.huge
local oldest = redis.call('ZRANGE', pending_key, 0, limit, 'WITHSCORES')
for i = 1, #oldest, 2 do
  local score = tonumber(oldest[i + 1])
  if score >= due_at then break end
  local buffer = i < 2 * limit and redis.call('HGET', open_key, oldest[i])
  if buffer and string.sub(buffer, 40, 40) ~= 'f' then score = math.max(score, tonumber(string.sub(buffer, 27, 39))) end
  due_at = math.min(due_at, score)
end

local alive, start = redis.call('HGET', open_key, ''), 0
-- include start_or_wake
local heartbeat_at = tonumber(redis.call('HGET', processor_key, 'heartbeat_at')) or -1
return {'RECOVERED', redis.call('ZCARD', pending_key), redis.call('ZCARD', inflight_key),
  due_at < math.huge and due_at or -1, heartbeat_at, start, unpack(expired)}
