-- retry_batch: keep a batch that could not be emitted frozen, and schedule another try.
--
-- KEYS[1]  {b<shard>}:pending     zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open        hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor   hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake        list  at most one element
-- KEYS[6]  {b<shard>}:taken:<id>  hash  the frozen batch's id, times and owner
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  token                  str   the token that took the batch
-- ARGV[4]  retry_at_ms            int
-- ARGV[5]  start_id               str   names this call; a retry sends the same
-- ARGV[6]  start_ms               int   lifetime of a start reservation
-- ARGV[7]  horizon_ms             int   work due further ahead than this is left to the watchdog
-- Returns  {"RETRIED", due_at_ms, start} | {"STALE"}
-- Repeat   returns RETRIED again, with the same start reservation, until another conversation processor has taken the batch
-- Keeps    the batch's id and content; new messages do not move the retry

local pending_key, open_key, inflight_key, processor_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local wake_key, taken_key = KEYS[5], KEYS[6]
local now, now_ms, conversation, token, due_at = ARGV[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local start_id, start_ms, horizon_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

if redis.call('HGET', taken_key, 'token') ~= token then return {'STALE'} end

redis.call('ZREM', inflight_key, conversation)
redis.call('HSET', taken_key, 'token_until', 0)
redis.call('ZADD', pending_key, due_at, conversation)

local alive, start = redis.call('HGET', open_key, ''), 0
-- include slot_freed
-- include start_or_wake
return {'RETRIED', due_at, start}
