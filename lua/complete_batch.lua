-- complete_batch: forget a batch that was emitted, and schedule the messages that arrived in the meantime.
--
-- KEYS[1]  {b<shard>}:pending      zset  conversation -> due_at_ms or earlier; the open buffer has the exact time
-- KEYS[2]  {b<shard>}:open         hash  conversation -> its open buffer; "" -> the living processor (README.md)
-- KEYS[3]  {b<shard>}:inflight     zset  conversation -> deadline_ms
-- KEYS[4]  {b<shard>}:processor    hash  the shard's lease and start reservation
-- KEYS[5]  {b<shard>}:wake         list  at most one element
-- KEYS[6]  {b<shard>}:conv:<id>    hash  facts that outlast a buffer: generation, frozen batch
-- KEYS[7]  {b<shard>}:batch:<id>   list  the frozen batch
-- KEYS[8]  {b<shard>}:taken:<id>   hash  the frozen batch's id, times and owner
-- KEYS[9]  {b<shard>}:msgs:<id>    list  buffered payloads, oldest first
-- KEYS[10] {b<shard>}:seen:<id>    zset  message id -> arrived_at_ms
-- KEYS[11] {b<shard>}:emitted:<id> zset  batch id -> its last_at_ms
-- KEYS[12] {b<shard>}:held         zset  conversation -> held_until_ms; a time in the past has no effect
-- ARGV[1]  now_ms                  int
-- ARGV[2]  conversation            str
-- ARGV[3]  token                   str   the token that took the batch
-- ARGV[4]  seen_ms                 int   how long an idle conversation is remembered
-- ARGV[5]  max_emitted             int   number of batches that the conversation remembers
-- ARGV[6]  max_seen                int   number of message ids that it remembers, beside those of waiting messages
-- ARGV[7]  start_id                str   names this call; a retry sends the same
-- ARGV[8]  start_ms                int   lifetime of a start reservation
-- ARGV[9]  horizon_ms              int   work due further ahead than this is left to the watchdog
-- ARGV[10] tail                    str   the unfinished turn, for the counts of the next batch; '' = not known
-- Returns  {"COMPLETED", due_at_ms | -1, count, start} | {"STALE"}
-- Repeat   returns COMPLETED again, with the same start reservation, until the next batch is completed
-- Keeps    a newer batch: an old conversation processor cannot complete it

local pending_key, open_key, inflight_key, processor_key, wake_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local conv_key, batch_key, taken_key, msgs_key = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local seen_key, emitted_key, held_key = KEYS[10], KEYS[11], KEYS[12]
local now, now_ms, conversation, token, seen_ms = ARGV[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local max_emitted, max_seen = tonumber(ARGV[5]), tonumber(ARGV[6])
local start_id, start_ms, horizon_ms, tail = ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10]

-- include open_buffer: first_at_of, due_at_of
-- include changed_buffer: with_mode
-- include forget_ids: forget_ids

local taken = redis.call('HMGET', taken_key, 'token', 'batch_id', 'last_at')
local first_call = taken[1] == token
if not first_call and redis.call('HGET', conv_key, 'completed_by') ~= token then return {'STALE'} end

local state = redis.call('HMGET', open_key, conversation, '')
local buffer, alive, start = state[1], state[2], 0
local due_at = buffer and due_at_of(buffer)
if first_call then
  redis.call('DEL', batch_key, taken_key)
  redis.call('ZREM', inflight_key, conversation)
  redis.call('ZREM', pending_key, conversation) -- it is in pending if it was put back because this run was slow
  -- Forget old message ids, but never that of a waiting message. A host whose clock lags may have recorded an id up to
  -- a minute before the buffer's first arrival.
  local waiting_ms = buffer and first_at_of(buffer) - 60001 or now_ms + 60000
  redis.call('ZREMRANGEBYSCORE', seen_key, '-inf', math.min(now_ms - seen_ms, waiting_ms))
  forget_ids(waiting_ms)
  redis.call('HDEL', conv_key, 'frozen')
  redis.call('HSET', conv_key, 'completed_by', token, 'tail', tail)
  redis.call('ZADD', emitted_key, taken[3], taken[2])
  redis.call('ZREMRANGEBYRANK', emitted_key, 0, -max_emitted - 1)
  redis.call('PEXPIRE', emitted_key, seen_ms)
  if buffer then
    local mode = redis.call('ZSCORE', held_key, conversation) and 'h' or '-'
    redis.call('HSET', open_key, conversation, with_mode(buffer, mode))
    redis.call('ZADD', pending_key, due_at, conversation)
  else
    redis.call('PEXPIRE', conv_key, seen_ms)
    redis.call('PEXPIRE', seen_key, seen_ms)
  end
  -- include slot_freed
end

if due_at then
  -- include start_or_wake
end
return {'COMPLETED', due_at or -1, redis.call('LLEN', msgs_key), start}
