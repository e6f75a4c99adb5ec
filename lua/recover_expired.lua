-- recover_expired: put back conversations whose claim or token has ended, and report the shard's health.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:held        zset  conversation -> held_until_ms; handoff/<id> -> the end of the mark
-- KEYS[7]  {b<shard>}:holds       hash  people/<id>, consumers/<id>, handoff/<id> -> end, a blank, cause
-- ARGV[1]  now_ms                 int
-- ARGV[2]  limit                  int   put back at most this many claims, and forget as many holds and marks, 1..1000
-- ARGV[3]  start_id               str   names this call; a retry sends the same
-- ARGV[4]  start_ms               int   lifetime of a start reservation
-- ARGV[5]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"RECOVERED", pending, inflight, oldest_due_at_ms | -1, heartbeat_at_ms | -1, start, conversations...}
-- Repeat   finds no expired claim; makes the same start reservation
-- Keeps    no conversation remains in flight beyond its deadline; holds and marks that have not ended

local pending_key, open_key, inflight_key = KEYS[1], KEYS[2], KEYS[3]
local processor_key, wake_key, held_key, holds_key = KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now, now_ms, limit = ARGV[1], tonumber(ARGV[1]), math.min(tonumber(ARGV[2]), 1000)
local start_id, start_ms, horizon_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

-- include open_buffer: due_at_of, mode_of

local expired
-- include put_back_expired

-- Forget holds and marks that ended over a minute ago. A more recent one may not have ended by the clock of a host that
-- lags. A mark has the same name in `held` and in `holds`.
local ended = redis.call('ZRANGE', held_key, '-inf', now_ms - 60000, 'BYSCORE', 'LIMIT', 0, limit)
for _, name in ipairs(ended) do
  redis.call('ZREM', held_key, name)
  redis.call('HDEL', holds_key, name, 'people/' .. name, 'consumers/' .. name)
end

-- Find the earliest exact due time. A score in pending may be too early, because later messages move a timer without
-- changing pending. Entries that are not read have higher scores, so they cannot be due earlier than the last one read.
local due_at = math.huge
local oldest = redis.call('ZRANGE', pending_key, 0, limit, 'WITHSCORES')
for i = 1, #oldest, 2 do
  local score = tonumber(oldest[i + 1])
  if score >= due_at then break end
  local buffer = i < 2 * limit and redis.call('HGET', open_key, oldest[i])
  if buffer and mode_of(buffer) ~= 'f' then score = math.max(score, due_at_of(buffer)) end
  due_at = math.min(due_at, score)
end

local oldest_due_at = due_at < math.huge and due_at or -1
-- Conversations in flight count as work, because only a processor puts them back in time.
due_at = math.min(due_at, tonumber(redis.call('ZRANGE', inflight_key, 0, 0, 'WITHSCORES')[2]) or math.huge)
local alive, start = redis.call('HGET', open_key, ''), 0
-- include start_or_wake
local heartbeat_at = tonumber(redis.call('HGET', processor_key, 'heartbeat_at')) or -1
return {'RECOVERED', redis.call('ZCARD', pending_key), redis.call('ZCARD', inflight_key),
  oldest_due_at, heartbeat_at, start, unpack(expired)}
