-- take_batch: freeze a claimed conversation's messages as its batch, or give the same frozen batch again.
--
-- KEYS[1]  {b<shard>}:moved       hash  conversation -> later due_at_ms
-- KEYS[2]  {b<shard>}:inflight    zset  conversation -> deadline_ms
-- KEYS[3]  {b<shard>}:conv:<id>   hash  state of the conversation's open buffer
-- KEYS[4]  {b<shard>}:msgs:<id>   list  buffered payloads, oldest first
-- KEYS[5]  {b<shard>}:batch:<id>  list  the frozen batch
-- KEYS[6]  {b<shard>}:taken:<id>  hash  the frozen batch's identity and executor
-- KEYS[7]  {b<shard>}:seen:<id>   zset  message id -> arrived_at_ms
-- ARGV[1]  now_ms                 int
-- ARGV[2]  conversation           str
-- ARGV[3]  token                  str   unique to this executor's run
-- ARGV[4]  executor_ms            int   how long the executor may take to complete the batch
-- ARGV[5]  batch_prefix           str   first part of the batch id, unique to the conversation
-- ARGV[6]  limit                  int   most messages in one batch, 1..1000
-- ARGV[7]  seen_ms                int   how long an idle conversation is remembered
-- Returns  {"TAKEN", batch_id, attempt, generation, first_at_ms, last_at_ms, due_at_ms, why, payload...} | {"BUSY", until_ms} | {"EMPTY"} | {"STALE"}
-- Repeat   the same batch, attempt and token
-- Keeps    once taken, the id and the content of a batch never change

local moved_key, inflight_key, conv_key, msgs_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local batch_key, taken_key, seen_key = KEYS[5], KEYS[6], KEYS[7]
local now_ms, conversation, token, executor_ms = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local batch_prefix, limit, seen_ms = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

if not redis.call('ZSCORE', inflight_key, conversation) then return {'STALE'} end
local taken = redis.call('HMGET', taken_key,
  'batch_id', 'attempt', 'token', 'token_until', 'cancelled', 'generation', 'first_at', 'last_at', 'due_at', 'why')
local batch_id, attempt, owner, token_until = taken[1], tonumber(taken[2]) or 0, taken[3], tonumber(taken[4]) or 0
local generation, first_at, last_at, due_at, why = taken[6], taken[7], taken[8], taken[9], taken[10]
if owner ~= token and token_until > now_ms then return {'BUSY', token_until} end

-- A removing command first: when memory is full the server refuses a script whose first write could grow.
redis.call('HDEL', moved_key, conversation)
if taken[5] and owner ~= token then -- cancelled while an executor held it, and that executor is gone
  redis.call('DEL', batch_key, taken_key)
  redis.call('HDEL', conv_key, 'frozen')
  batch_id, attempt = false, 0
end

if not batch_id then
  local count = redis.call('LLEN', msgs_key)
  if count == 0 then
    redis.call('ZREM', inflight_key, conversation)
    redis.call('PEXPIRE', conv_key, seen_ms)
    redis.call('PEXPIRE', seen_key, seen_ms)
    return {'EMPTY'}
  end
  local conv = redis.call('HMGET', conv_key, 'first_at', 'last_at', 'due_at', 'why', 'generation')
  first_at, last_at, due_at, why, generation = unpack(conv)
  batch_id = batch_prefix .. '-' .. first_at .. '-' .. generation
  if count <= limit then
    redis.call('RENAME', msgs_key, batch_key)
    redis.call('HDEL', conv_key, 'first_at', 'due_at', 'why')
  else
    for _ = 1, limit do redis.call('LMOVE', msgs_key, batch_key, 'LEFT', 'RIGHT') end
    -- What is left over is newer than this batch: its own generation, and due as soon as this one is done.
    redis.call('HINCRBY', conv_key, 'generation', 1)
    redis.call('HSET', conv_key, 'due_at', now_ms, 'why', 'max_messages')
  end
  redis.call('HSET', conv_key, 'frozen', batch_id)
  redis.call('HSET', taken_key, 'batch_id', batch_id, 'generation', generation,
    'first_at', first_at, 'last_at', last_at, 'due_at', due_at, 'why', why)
end

if owner ~= token then attempt = attempt + 1 end
redis.call('HSET', taken_key, 'attempt', attempt, 'token', token, 'token_until', now_ms + executor_ms)
redis.call('ZADD', inflight_key, 'XX', now_ms + executor_ms, conversation)
return {'TAKEN', batch_id, attempt, tonumber(generation), tonumber(first_at), tonumber(last_at), tonumber(due_at), why,
  unpack(redis.call('LRANGE', batch_key, 0, -1))}
